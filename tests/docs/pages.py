"""What the documents say, as data: commands, blocks, links, headings."""
import fnmatch
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOT_RUN = ROOT / "docs/not-run.txt"
BLOCK = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.M | re.S)


def pages():
    """README.md, the pages of docs/ and its folders, and the chart's README."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")), ROOT / "charts/lockstep/README.md"]


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page, language):
    """The texts of the page's fenced blocks of this language, in order."""
    return [text for found, text in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


def commands(text):
    """The commands of a block of shell: a line each, with its continuations and here-document; comments left out."""
    found, open_lines, closing = [], [], None
    for line in text.splitlines():
        open_lines.append(line)
        if closing is None:
            here = re.search(r"<<'?(\w+)'?", line)
            closing = here.group(1) if here else None
            unfinished = closing is not None or line.endswith("\\")
        else:
            unfinished = line != closing
        if unfinished:
            continue
        command = "\n".join(open_lines) if closing else without_comment(" ".join(
            part.rstrip("\\").strip() for part in open_lines))
        open_lines, closing = [], None
        if command:
            found.append(command)
    assert not open_lines, f"a command without an end: {open_lines}"
    return found


def without_comment(line):
    """`#` begins a comment where a word could begin, outside quotes."""
    quote = None
    for at, letter in enumerate(line):
        if quote:
            quote = None if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at].strip()
    return line.strip()


def page_commands(page):
    """Of its blocks of shell and of Python, in order."""
    found = []
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "sh":
            found += commands(text)
        if language == "python":
            found.append(f"python3 - <<'END'\n{text}END")
    return found


class NotRun:
    """docs/not-run.txt: `PATTERN — REASON` a line, patterns as of file names."""

    def __init__(self, path=NOT_RUN):
        lines = path.read_text(encoding="utf-8").splitlines()
        self.rules = {}
        for number, line in enumerate(lines, 1):
            if not line or line.startswith("#"):
                continue
            pattern, dash, reason = line.partition(" — ")
            assert dash and reason.strip(), f"{path.name}:{number}: expected `PATTERN — REASON`, found {line!r}"
            self.rules[pattern.strip()] = reason.strip()

    def reason(self, command):
        """Why it is not run, or None."""
        return next((reason for pattern, reason in self.rules.items() if matches(command, pattern)), None)

    def stale(self, all_commands):
        """Patterns that are for no command."""
        return [pattern for pattern in self.rules if not any(matches(one, pattern) for one in all_commands)]


def matches(command, pattern):
    """`*` is the only letter of a pattern that stands for others: commands are full of [ and ?."""
    return fnmatch.fnmatchcase(command, re.sub(r"([\[?])", r"[\1]", pattern))


def headings(path):
    """The anchors that a page on GitHub has."""
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    found = []
    for title in re.findall(r"^#+ (.+)$", text, re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
        found.append(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def links(path):
    """Targets of links and pictures, outside of blocks."""
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    return re.findall(r"!?\[(?:[^][]|\[[^]]*\])*\]\(([^)\s]+)\)", text)


def code_spans(path):
    """What stands between backticks, outside of blocks."""
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]
