#!/usr/bin/env python3
"""Writes docs/images/running.svg: what a terminal shows of a run, as text, in two pictures that take turns.

  scripts/terminal_svg.py [--bin build/release/bin]

It trains SASRec on MovieLens-100K with two ranks (a minute) in a terminal of its own and draws the screen as it was at
60 % and at the end. Nothing is drawn that was not shown. Needs pyte, a terminal emulator:
pip install -r scripts/requirements-docs.txt.
"""
import argparse
import codecs
import fcntl
import html
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios

import pyte

ROOT = pathlib.Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/images/running.svg"
COLUMNS, ROWS = 120, 50
COMMAND = ["lockstep", "run", "sasrec", "--dataset", "ml-100k.inter", "--train_dir", "demo/", "--nproc", "2",
           "--maxlen", "50", "--num_epochs", "60"]
SHOWN_AT = 0.6
# Of a letter in the picture, in pixels.
WIDTH, HEIGHT, SIZE, MARGIN = 7.8, 17, 13, 14
BACKGROUND, INK = "#14171b", "#e6e9ee"
COLOURS = {"default": INK, "cyan": "#3bc9db", "brightblack": "#566270", "green": "#69db7c", "red": "#ff8787",
           "brown": "#ffd43b", "blue": "#74c0fc", "magenta": "#e599f7", "white": "#ffffff", "black": "#000000"}


def record(argv, folder, path):
    """The screen at SHOWN_AT of the run, and at its end: lists of lines of pyte's letters."""
    screen = pyte.Screen(COLUMNS, ROWS)
    screen.set_mode(pyte.modes.LNM)
    stream = pyte.Stream(screen)
    stream.feed(f"$ {' '.join(argv)}\r\n")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {"PATH": f"{path}:/usr/bin:/bin", "HOME": folder, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    program = subprocess.Popen(argv, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    decoder = codecs.getincrementaldecoder("utf-8")()
    middle = None
    while True:
        try:
            text = decoder.decode(os.read(ours, 4096))
        except OSError:  # the other end is closed
            break
        stream.feed(text)
        done = re.search(r"(\d+)%  step", "\n".join(screen.display))
        if middle is None and done and int(done.group(1)) >= 100 * SHOWN_AT:
            middle = lines_of(screen)
    os.close(ours)
    if program.wait() != 0:
        sys.exit("\n".join(screen.display))
    return middle, lines_of(screen)


def lines_of(screen):
    return [[screen.buffer[row][column] for column in range(COLUMNS)] for row in range(ROWS)]


def runs_of(line):
    """(column, colour, bold, text) of the stretches of a line that look the same, blanks left out."""
    found = []
    for column, letter in enumerate(line):
        look = (letter.fg, letter.bold)
        if found and found[-1][1:3] == look and found[-1][0] + len(found[-1][3]) == column:
            found[-1] = (*found[-1][:3], found[-1][3] + letter.data)
        else:
            found.append((column, *look, letter.data))
    return [run for run in found if run[3].strip()]


def drawn(lines):
    texts = []
    for row, line in enumerate(lines):
        for column, colour, bold, text in runs_of(line):
            blank = len(text) - len(text.lstrip())
            text = text.strip()
            x, y = MARGIN + (column + blank) * WIDTH, MARGIN + (row + 1) * HEIGHT
            weight = ' font-weight="bold"' if bold else ""
            look = f'textLength="{len(text) * WIDTH:.1f}" fill="{COLOURS.get(colour, INK)}"{weight}'
            texts.append(f'<text x="{x:.1f}" y="{y}" {look}>{html.escape(text)}</text>')
    return "\n".join(texts)


def picture(middle, end):
    width, height = COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + 2 * MARGIN
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img"
     aria-label="A terminal with a run of Lockstep, at {SHOWN_AT:.0%} and at its end">
<style>
text {{ font: {SIZE}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
       white-space: pre; }}
@keyframes middle {{ 0%, 45% {{ opacity: 1 }} 50%, 95% {{ opacity: 0 }} 100% {{ opacity: 1 }} }}
@keyframes end {{ 0%, 45% {{ opacity: 0 }} 50%, 95% {{ opacity: 1 }} 100% {{ opacity: 0 }} }}
#middle {{ opacity: 0; animation: middle 14s infinite }} #end {{ animation: end 14s infinite }}
</style>
<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>
<g id="middle">
{drawn(middle)}
</g>
<g id="end">
{drawn(end)}
</g>
</svg>
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path, help="folder of the programs")
    programs = parser.parse_args().bin.resolve()
    data = subprocess.run([ROOT / "scripts/get_ml100k"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "ml-100k.inter").symlink_to(data)
        middle, end = record(COMMAND, folder, programs)
    if middle is None:
        sys.exit(f"the run was never seen at {SHOWN_AT:.0%}")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(middle, end), encoding="utf-8")
    print(f"{PICTURE}: {PICTURE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
