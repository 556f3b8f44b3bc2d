#!/usr/bin/env python3
"""`lockstep sasrec recommend` for all users of MovieLens-100K beside the PyTorch twin that does the same.

Both read the data set and the weights, score all items for each user and write the best ten as JSON lines; seconds from exec
to the end, and without the start of the program (ours with its own figure, the twin's measured inside). In turn; medians.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from bench_sasrec import BIN, DATA, machine, publish, say

MAXLEN = 200
NAME = f"SASRec.epoch=1.lr=0.001.layer=2.head=1.hidden=50.maxlen={MAXLEN}.pth"
TOPK = 10


def twin(weights, out):
    """In a child process; prints the seconds from after its imports to the end."""
    import torch
    from sasrec_twin import SASRec, read_interactions
    began = time.perf_counter()
    sequences, items = read_interactions(DATA)
    model = SASRec(items, maxlen=MAXLEN)
    model.load_state_dict(torch.load(weights, weights_only=True))
    model.eval()
    users = [user for user, sequence in enumerate(sequences) if sequence]
    with open(out, "w", encoding="utf-8") as file, torch.no_grad():
        for first in range(0, len(users), 256):
            chunk = users[first:first + 256]
            rows = torch.zeros(len(chunk), MAXLEN, dtype=torch.long)
            for row, user in zip(rows, chunk):
                newest = torch.tensor(sequences[user][-MAXLEN:])
                row[MAXLEN - len(newest):] = newest
            scores = model.encode(rows)[:, -1] @ model.item_emb.weight.T
            scores[:, 0] = -torch.inf
            best = scores.topk(TOPK)
            for user, values, indices in zip(chunk, best.values.tolist(), best.indices.tolist()):
                file.write(json.dumps({"user": user, "items": [{"item": i, "score": s} for i, s in zip(indices, values)]}) + "\n")
    print(time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    parser.add_argument("--twin", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.twin:
        twin(*options.twin)
        return
    if not DATA.exists():
        raise SystemExit(f"{DATA} is missing: run scripts/get_ml100k")
    import torch
    from sasrec_twin import SASRec, read_interactions
    whole, inside = ([], []), ([], [])
    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(folder, NAME)
        torch.save(SASRec(read_interactions(DATA)[1], maxlen=MAXLEN).state_dict(), weights)
        commands = ([BIN / "lockstep", "sasrec", "recommend", "--checkpoint", weights, "--dataset", DATA, "--topk", str(TOPK),
                     "--out", pathlib.Path(folder, "ours")],
                    [sys.executable, __file__, "--twin", weights, pathlib.Path(folder, "twin")])
        for repetition in range(options.repetitions):
            say(f"recommend: {repetition + 1}/{options.repetitions}")
            for side, command in enumerate(commands):
                began = time.perf_counter()
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                whole[side].append(time.perf_counter() - began)
                inside[side].append(float(re.search(r"([\d.]+)(?: s)?\s*$", done.stdout or done.stderr).group(1)))
        rows = [len(pathlib.Path(folder, side).read_text(encoding="utf-8").splitlines()) for side in ("ours", "twin")]
    assert rows[0] == rows[1], rows
    text = [f"{machine()}. {rows[0]} users, maxlen {MAXLEN}, {options.repetitions} repetitions; medians.", "",
            "| seconds | Lockstep | PyTorch twin | ratio |", "|---|---|---|---|"]
    for name, (ours, theirs) in (("from exec to the end", whole), ("data, scores and rows", inside)):
        text.append(f"| {name} | {statistics.median(ours):.2f} | {statistics.median(theirs):.2f} | "
                    f"{statistics.median(ours) / statistics.median(theirs):.3f} |")
    publish("recommend", text, options.write)


if __name__ == "__main__":
    main()
