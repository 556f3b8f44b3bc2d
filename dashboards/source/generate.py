#!/usr/bin/env python3
"""Writes dashboards/*.json from the boards beside this file. --check: writes nothing and fails where a file differs.

The files are committed, because users import them from a checkout and the chart carries them.
"""
import json
import pathlib
import sys

import fleet
import operator_board
import training_run

TARGET = pathlib.Path(__file__).resolve().parents[1]
BOARDS = {"training-run.json": training_run.make, "fleet.json": fleet.make, "operator.json": operator_board.make}


def texts():
    """File name → its text."""
    return {name: json.dumps(make(), indent=1, ensure_ascii=False) + "\n" for name, make in BOARDS.items()}


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(f"usage: {sys.argv[0]} [--check]", file=sys.stderr)
        return 2
    different = [name for name, text in texts().items()
                 if not (TARGET / name).exists() or (TARGET / name).read_text(encoding="utf-8") != text]
    if sys.argv[1:]:
        for name in different:
            print(f"dashboards/{name} is not what dashboards/source makes: run dashboards/source/generate.py",
                  file=sys.stderr)
        return 1 if different else 0
    for name in different:
        (TARGET / name).write_text(texts()[name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
