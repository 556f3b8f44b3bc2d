"""Seconds from a failure to the next committed step, as a table at the end of a run."""


class Timings:
    def __init__(self):
        self.rows = []

    def add(self, what, seconds, note=""):
        self.rows.append((what, seconds, note))

    def table(self):
        if not self.rows:
            return []
        width = max(len(what) for what, _, _ in self.rows)
        lines = ["", f"| {'what happened'.ljust(width)} | seconds | |", f"|{'-' * (width + 2)}|--------:|---|"]
        return lines + [f"| {what.ljust(width)} | {seconds:7.2f} | {note} |" for what, seconds, note in self.rows]
