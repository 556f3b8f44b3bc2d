"""Whether the measured figures meet the targets: said on the terminal, in the report's table, and by the exit code."""
import sys


class Verdicts:
    def __init__(self):
        self._rows = []
        self._missed = []

    def at_most(self, target, values, limit, unit, digits=3):
        """Judges all values, not their median: a target holds for each time."""
        found = f"{len(values)} times, at most {max(values):.{digits}f} {unit}".rstrip() if values else "nothing"
        self.judge(target, bool(values) and max(values) <= limit, found)

    def judge(self, target, is_met, found):
        self._rows.append(f"| {target} | {found} | {'met' if is_met else 'MISSED'} |")
        if not is_met:
            self._missed.append(f"{target}: {found}")

    def table(self):
        return ["| target | measured | |", "|---|---|---|", *self._rows]

    def end(self):
        """Exits with 1 when a target was missed, after the report was written."""
        for missed in self._missed:
            print(f"MISSED: {missed}", file=sys.stderr, flush=True)
        if self._missed:
            sys.exit(1)
