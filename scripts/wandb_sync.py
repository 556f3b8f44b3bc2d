#!/usr/bin/env python3
"""Sends the figures of a run that was started with --use_wandb to Weights & Biases: wandb_sync.py FOLDER [--follow]

FOLDER is the run's folder; project, name and entity are those of the run (--wandb_project, …). What was sent is
remembered in FOLDER/wandb/sent.json, so that the script may be called again and sends what is new; a resumed run goes
on in the same graphs. --follow: waits for more, until it is interrupted or the run has been silent for --idle seconds.
It needs the package wandb (pip install wandb) and a login (wandb login, or WANDB_API_KEY). Where one of them or the
network is missing it says so and ends with 0: the figures stay in the folder, and nothing is lost. WANDB_MODE=offline
writes them into FOLDER/wandb, for `wandb sync`.
"""
import argparse
import json
import pathlib
import sys
import time

NOT_FIGURES = ("step", "evaluation", "time")
POLL_SECONDS = 2
# Seconds that wandb.init may take; its default is 90.
INIT_SECONDS = 30


def stop(sentence, code=0):
    print(f"wandb_sync.py: {sentence}", file=sys.stderr)
    sys.exit(code)


def key_of(line):
    """Lines are in the order of their steps; an evaluation comes behind the step that it follows."""
    return [line["step"], int("evaluation" in line)]


class Lines:
    """The lines of metrics.jsonl after the last one that was sent."""

    def __init__(self, path, sent):
        self.path, self.sent = path, sent

    def new(self):
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        for line in text[:text.rfind("\n") + 1].splitlines():  # the last one may be half written
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            if key_of(record) > self.sent:
                yield record


def read_run(folder):
    path = folder / "wandb" / "run.json"
    if not path.exists():
        stop(f"{path} is not there: give the folder of a run that was started with --use_wandb", 2)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        stop(f"{path} is damaged ({error}): start the run again with --use_wandb, which writes it", 2)


def read_memory(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def remember(path, run, lines):
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"id": run["id"], "sent": lines.sent}) + "\n", encoding="utf-8")
    part.replace(path)


def begin(run, folder):
    stays = f"the figures stay in {folder}/wandb; call this again"
    try:
        import wandb
    except ImportError as error:
        stop(f"the package wandb cannot be imported ({error}): pip install wandb; {stays} then")
    try:
        return wandb.init(project=run["project"], name=run["name"], entity=run["entity"] or None, id=run["id"],
                          resume="allow", config=run["config"], dir=str(folder),
                          settings=wandb.Settings(init_timeout=INIT_SECONDS))
    except Exception as error:  # whatever it is, the run's figures are not in danger
        sentence = " ".join(str(error).split())
        stop(f"Weights & Biases cannot be reached or knows no login ({type(error).__name__}: {sentence}); {stays} "
             "with a network and after `wandb login`, or with WANDB_MODE=offline")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="the run's folder")
    parser.add_argument("--follow", action="store_true", help="wait for more")
    parser.add_argument("--idle", type=float, default=600, metavar="SECONDS", help="with --follow: so long (600)")
    given = parser.parse_args()
    run = read_run(given.folder)
    memory = given.folder / "wandb" / "sent.json"
    before = read_memory(memory)
    # Another run in the same folder has another id.
    lines = Lines(given.folder / "wandb" / "metrics.jsonl", before["sent"] if before.get("id") == run["id"] else [-1, 0])
    if not given.follow and next(lines.new(), None) is None:
        stop(f"there is nothing new in {lines.path}")
    session = begin(run, given.folder)
    # Not wandb's own step: what is logged at a step that it has seen is dropped, also an evaluation of the last one.
    session.define_metric("train/step")
    session.define_metric("*", step_metric="train/step")
    count, last_news = 0, time.monotonic()
    try:
        while True:
            for record in lines.new():
                figures = {name: value for name, value in record.items() if name not in NOT_FIGURES}
                session.log({**figures, "train/step": record["step"]})
                lines.sent, count, last_news = key_of(record), count + 1, time.monotonic()
            remember(memory, run, lines)
            if not given.follow or time.monotonic() - last_news > given.idle:
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        pass
    finally:
        session.finish()
        remember(memory, run, lines)
    print(f"{count} lines of {lines.path} for {run['project']}/{run['name']} (step {lines.sent[0]} is the last)")


if __name__ == "__main__":
    main()
