#!/usr/bin/env python3
"""Time and memory of reading a large data set, beside two ways of doing the same in Python: bench_data.py [--events N]

Doing the same: read the file, drop users and items with fewer than 5 lines (counted once), number the others, sort each
user's events stably by time. On our side it is a whole run: lockstep-worker from exec to its end, with a model as small as it
can be and one step; a run on a tiny file is measured as well, so that what is not reading can be seen. Plain Python is what
the guides' preprocessing does, two passes over the lines with dictionaries; pandas is left out where it is not installed
(PYTHON names another interpreter that has it). CPU seconds and peak memory are the kernel's own, of the whole process.
Prints a table for docs/workloads/sasrec.md.
"""
import argparse
import os
import pathlib
import platform
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("LOCKSTEP_BIN", ROOT / "build/release/bin"))
PYTHON = os.environ.get("PYTHON", sys.executable)
LINES_PER_WRITE = 100_000
HEADER = "user_id:token\titem_id:token\ttimestamp:float\n"

PLAIN = """
import collections, sys
users, items = collections.Counter(), collections.Counter()
with open(sys.argv[1]) as lines:
    next(lines)
    for line in lines:
        user, item, when = line.rstrip().split("\\t")
        users[user] += 1
        items[item] += 1
user_numbers, item_numbers, events = {}, {}, {}
with open(sys.argv[1]) as lines:
    next(lines)
    for line in lines:
        user, item, when = line.rstrip().split("\\t")
        if users[user] < 5 or items[item] < 5:
            continue
        user = user_numbers.setdefault(user, len(user_numbers) + 1)
        item = item_numbers.setdefault(item, len(item_numbers) + 1)
        events.setdefault(user, []).append((int(when), item))
for history in events.values():
    history.sort(key=lambda event: event[0])
print(len(user_numbers), len(item_numbers), sum(map(len, events.values())))
"""
PANDAS = """
import sys
import pandas
data = pandas.read_csv(sys.argv[1], sep="\\t", skiprows=1, names=["user", "item", "time"], header=None)
users, items = data.user.value_counts(), data.item.value_counts()
data = data[(data.user.map(users) >= 5) & (data.item.map(items) >= 5)]
data["user"], data["item"] = pandas.factorize(data.user)[0] + 1, pandas.factorize(data.item)[0] + 1
data = data.sort_values(["user", "time"], kind="stable")
offsets = data.user.value_counts(sort=False).cumsum()
print(data.user.max(), data.item.max(), len(data))
"""


def write(path, events, user_name, item_name, seed=5):
    """Ratings of one user are spread over the file, as in a log; popular items come often."""
    draw = random.Random(seed)
    users, items = max(10, events // 50), max(10, events // 100)
    with open(path, "w", encoding="ascii") as file:
        file.write(HEADER)
        for begin in range(0, events, LINES_PER_WRITE):
            file.write("".join(
                f"{user_name(draw.randrange(users))}\t{item_name(int(items * draw.random() ** 2))}\t{1_000_000_000 + at // 7}\n"
                for at in range(begin, min(events, begin + LINES_PER_WRITE))))


FORMS = {
    "small numbers": (lambda u: u + 1, lambda i: i + 1),
    "numbers up to 10^18": (lambda u: 10**18 - u * 4_000_000_007, lambda i: 1 + i * 9_000_000_011),
    "words": (lambda u: f"user-{u:08x}", lambda i: f"sku/{i:07d}-x"),
}


def measured(argv):
    """(wall seconds, CPU seconds, peak MiB, output)"""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([str(word) for word in argv], stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode != 0:
        raise SystemExit(f"exit code {process.returncode} from {argv[0]}:\n{text[-3000:]}")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text


def ours(path, folder):
    return measured([BIN / "lockstep-worker", "sasrec", "--dataset", path, "--train_dir", f"{folder}/", "--max_steps", 1,
                     "--batch_size", 2, "--maxlen", 2, "--hidden_units", 2, "--num_blocks", 0, "--eval_users", 1,
                     "--threads", 1, "--device", "cpu", "--status_port", 0, "--no_tensorboard"])


def has_pandas():
    return subprocess.run([PYTHON, "-c", "import pandas"], capture_output=True, check=False).returncode == 0


def counts_of(text):
    """(users, items, events) of our start table."""
    rows = {}
    for line in text.splitlines():
        for label in ("users", "items", "interactions"):
            words = line.split()
            if words[-2:-1] == [label] and words[-1].isdigit():
                rows[label] = int(words[-1])
    return rows["users"], rows["items"], rows["interactions"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    arguments.add_argument("--events", type=int, default=10_000_000)
    events = arguments.parse_args().events
    sides = {"plain Python": PLAIN, **({"pandas": PANDAS} if has_pandas() else {})}
    print(f"{events} events, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print("| ids | side | s (CPU) | peak MiB | times ours, CPU | times ours, memory |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "large.inter"
        write(path, 2000, *FORMS["small numbers"])
        _, cpu, memory, _ = ours(path, f"{folder}/tiny")
        print(f"| (2000 events) | Lockstep | {cpu:.1f} | {memory:.0f} | | |", flush=True)
        for number, (form, names) in enumerate(FORMS.items()):
            write(path, events, *names)
            _, cpu, memory, text = ours(path, f"{folder}/run{number}")
            print(f"| {form} | Lockstep | {cpu:.1f} | {memory:.0f} | 1 | 1 |", flush=True)
            for side, program in sides.items():
                _, their_cpu, their_memory, their_text = measured([PYTHON, "-c", program, path])
                if tuple(map(int, their_text.split())) != counts_of(text):
                    raise SystemExit(f"{side} found {their_text.strip()}, Lockstep {counts_of(text)}")
                print(f"| | {side} | {their_cpu:.1f} | {their_memory:.0f} | {their_cpu / cpu:.1f} | "
                      f"{their_memory / memory:.1f} |", flush=True)


if __name__ == "__main__":
    main()
