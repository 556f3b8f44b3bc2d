#!/usr/bin/env python3
"""Images a second per core: preparing them beside a loader on Pillow, on the same files.

Ours is `prepare` with one thread, in memory: read, decode, crop, cache. The other side opens each file with Pillow, converts it
to RGB and crops it as the public image models' training does (BOX, BICUBIC). Photographs have the size of ImageNet's (500 x 375,
made from real emoji magnified on noise: packages carry no free set of photographs), as JPEG of quality 90 and as PNG; emoji are PNG
files that have the size already. Sides take turns; medians. bench_images.py [--repetitions N] [--side S] [--write]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from bench_sasrec import machine, publish, say
from programs import fetched, program, tools_folder
from test_images import adm_crop, opened
from verdicts import Verdicts

TARGET_RATIO = 3


def ours(folder, side):
    done = subprocess.run([program(tools_folder() / "images_tool"), folder, str(side)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["seconds"]


def theirs(files, side):
    began = time.perf_counter()
    np.stack([adm_crop(opened(file), side) for file in files])
    return time.perf_counter() - began


def make_photographs(emoji, folder, suffix):
    folder.mkdir()
    noise = np.random.default_rng(1).normal(0, 6, (375, 500, 3))
    for i, file in enumerate(emoji):
        picture = np.array(opened(file).resize((500, 375), Image.Resampling.BICUBIC))
        Image.fromarray(np.clip(picture + noise, 0, 255).astype(np.uint8)).save(folder / f"{i:04}{suffix}", quality=90)
    return sorted(folder.iterdir())


def copy(files, folder):
    folder.mkdir()
    for i, file in enumerate(files):
        (folder / f"{i:04}.png").write_bytes(file.read_bytes())
    return sorted(folder.iterdir())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    source = fetched("get_emoji")
    emoji = sorted(source.rglob("*.png"))
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as folder:
        sets = {"photographs, JPEG 500 x 375": make_photographs(emoji[::10], pathlib.Path(folder, "jpeg"), ".jpg"),
                "photographs, PNG 500 x 375": make_photographs(emoji[::10], pathlib.Path(folder, "png"), ".png"),
                "emoji, PNG 64 x 64": copy(emoji, pathlib.Path(folder, "emoji"))}
        times = {name: ([], []) for name in sets}
        for repetition in range(options.repetitions):
            say(f"images: {repetition + 1}/{options.repetitions}")
            for name, files in sets.items():
                times[name][0].append(ours(files[0].parent, options.side))
                times[name][1].append(theirs(files, options.side))
    lines = [f"{machine()}. To {options.side} x {options.side}, one core on both sides, medians of {options.repetitions}.", "",
             "| images a second per core | files | Lockstep | Pillow | ratio |", "|---|---|---|---|---|"]
    ratios = {}
    for name, (own, other) in times.items():
        count, own, other = len(sets[name]), statistics.median(own), statistics.median(other)
        ratios[name] = other / own
        lines.append(f"| {name} | {count} | {count / own:,.0f} | {count / other:,.0f} | {other / own:.1f} |")
    for name, ratio in ratios.items():
        verdicts.judge(f"{name}: at least {TARGET_RATIO}x a Pillow loader per core", ratio >= TARGET_RATIO, f"{ratio:.1f}x")
    lines += ["", *verdicts.table()]
    publish("images", lines, options.write)
    verdicts.end()


if __name__ == "__main__":
    main()
