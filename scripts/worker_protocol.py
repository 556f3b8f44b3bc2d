#!/usr/bin/env python3
"""Writes the tables of docs/worker-protocol.md from the headers that define the protocol: runner/contract/messages.h (with
messages.cc and message_codec.h), beat_page.h, phase.h, exit_code.h, env_names.h, and the headers that have the deadlines.

  scripts/worker_protocol.py           writes them
  scripts/worker_protocol.py --check   says whether they are up to date, and changes nothing

What is between `<!-- NAME: made from … -->` and `<!-- /NAME -->` is made here; all else is written by hand.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/worker-protocol.md"
CONTRACT = ROOT / "runner/contract"
PLAIN_TYPES = {"int": "integer", "int64_t": "integer", "uint64_t": "integer, not negative", "double": "number", "bool": "true or false",
               "std::string": "text",
               "std::chrono::milliseconds": "integer, milliseconds", "std::map<std::string, double>": "object of numbers",
               "std::map<std::string, std::string>": "object of texts", "std::vector<std::string>": "list of texts"}
# Constant, its file, and what it is for. Times.
DEADLINES = (
    ("kAliveInterval", "runner/link/agent_session.h", "a rank writes `alive_ns` at least this often, from a thread of its own"),
    ("kHeartbeatTimeout", "runner/contract/coordination.h",
     "a rank whose `alive_ns` is older is killed (`--heartbeat_timeout_seconds`)"),
    ("kFormingTimeout", "runner/contract/coordination.h", "a rank gives up forming a group this long after all ranks have met"),
    ("kCutGrace", "runner/recovery/node_machine.h", "a rank that has not said `left` this long after its `cut` is killed"),
    ("kMetricsInterval", "runner/contract/messages.h", "`metrics` come about this often"),
    ("kStackTime", "runner/agent/node_workers.h", "a `lockstep-worker` that hangs has this long to print its stack"),
    ("kProgramCutGrace", "runner/agent/program_ranks.h",
     "a rank of a program that has not said `outlives` gets SIGTERM when its group ends, and SIGKILL this much later"),
)


def text_of(path):
    return (path if path.is_absolute() else ROOT / path).read_text(encoding="utf-8")


def cell(text):
    return " ".join(text.split()).replace("|", "\\|")


def sentence(text):
    """`text` as a sentence of its own; empty stays empty."""
    text = cell(text)
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith((".", ":")) else ".")


def table(*rows):
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def comment(lines):
    return " ".join(line.strip().removeprefix("//").strip() for line in lines)


class Struct:
    """`about`: the comment above it. `fields`: name → (type, comment)."""

    def __init__(self, about, body):
        self.about = about
        self.fields = {}
        before, newest = [], None
        for line in body.split("\n"):
            if re.match(r"  //", line):
                before.append(line)
            elif re.match(r" {3,}//", line):  # goes on with the comment of the line before
                kind, words = self.fields[newest]
                self.fields[newest] = (kind, f"{words} {comment([line])}")
            elif found := re.match(r"  (.*?) (\w+)(?:\{.*\}| = [^;]*)?;(?:\s*(//.*))?$", line):
                kind, newest, words = found.groups()
                self.fields[newest] = (kind, comment([*before, words or ""]).strip())
                before = []
            elif line.strip():
                raise SystemExit(f"a line that is neither a field nor a comment: {line!r}")


def structs_of(text):
    """name → Struct. The comment may have constants below it."""
    found = {}
    for match in re.finditer(r"^struct (\w+) \{(?:\n(.*?)\n)?\};", text, re.M | re.S):
        above = text[:match.start()].rstrip("\n").split("\n")
        if text[:match.start()].endswith("\n\n"):
            above = []
        while above and above[-1].startswith("inline constexpr"):
            above.pop()
        about = []
        while above and above[-1].startswith("//"):
            about.insert(0, above.pop())
        found[match.group(1)] = Struct(comment(about), match.group(2) or "")
    return found


def enumerators(text, name):
    """[(enumerator, comment)]"""
    body = re.search(rf"^enum class {name}(?: : \w+)? \{{(.*?)\}};", text, re.M | re.S).group(1)
    return re.findall(r"(k\w+)(?: = \d+)?,?[ \t]*(?://[ \t]*(.*))?", body)


def words_of(text, before):
    """The texts of the array that follows."""
    return re.findall(r'"([^"]*)"', re.search(rf"{re.escape(before)}.*?\{{(.*?)\}}", text, re.S).group(1))


def part_of(kind):
    """The struct that a field of this type holds one or several of."""
    return re.fullmatch(r"(?:std::(?:vector|optional)<)?([\w:]+).*", kind).group(1)


class Messages:
    def __init__(self):
        header, source, codec = (text_of(CONTRACT / name) for name in ("messages.h", "messages.cc", "message_codec.h"))
        self.structs = structs_of(header)
        self.codec = source + codec
        self.of = {}  # side → [(word, struct)]
        for side in ("WorkerMessage", "AgentMessage"):
            names = re.findall(r"\w+", re.search(rf"using {side} = std::variant<(.*?)>;", header, re.S).group(1))
            self.of[side] = list(zip(words_of(source, f"kTypeNames<{side}>"), names, strict=True))
        self.enums = {name: words_of(self.codec, f"kEnumNames<{name}>") for name in ("StoreOp", "StoreStatus", "MetricType")}

    def lines(self, struct):
        """[(word on the line, how: "", "optional", "hex" or "text", type, comment)], in order."""
        body = re.search(rf"Ref<{struct}> ?m?\) \{{(.*?)\}}", self.codec, re.S).group(1)
        found = []
        for how, word, member in re.findall(r'v(?:\.(\w+))?\("(\w+)", m\.(\w+)\)', body):
            kind, words = self.structs[struct].fields[member]
            found.append((word, how, kind, words))
        return found

    def type_word(self, kind, how):
        if how == "hex":
            return "list of bytes, each in hex"
        if kind in PLAIN_TYPES:
            return PLAIN_TYPES[kind]
        if kind in self.enums:
            return "one of " + ", ".join(f"`{word}`" for word in self.enums[kind])
        if found := re.fullmatch(r"std::vector<(\w+)>", kind):
            return f"list of {found.group(1)}"
        return f"object, {part_of(kind)}"

    def fields_table(self, struct):
        rows = [[f"`{word}`", self.type_word(kind, how) + (", optional" if how == "optional" else ""), sentence(words)]
                for word, how, kind, words in self.lines(struct)]
        return table(["field", "what it is", ""], *rows) if rows else "No fields.\n"

    def section(self, side):
        parts, seen = [], []
        for word, struct in self.of[side]:
            parts.append(f"### {word}\n\n{sentence(self.structs[struct].about)}\n\n{self.fields_table(struct)}")
            inner = [struct]
            while inner:
                for _, _, kind, _ in self.lines(inner.pop()):
                    part = part_of(kind)
                    if part in self.structs and part not in seen:
                        seen.append(part)
                        inner.append(part)
                        about = self.structs[part].about
                        parts.append(f"{part}: {about[0].lower()}{sentence(about)[1:]}\n\n{self.fields_table(part)}")
        return "\n".join(parts)


def numbers():
    messages, page = text_of(CONTRACT / "messages.h"), text_of(CONTRACT / "beat_page.h")
    magic = int(re.search(r"kBeatPageMagic = (0x[\da-f']+)", page).group(1).replace("'", ""), 16)
    return table(["number", "value"],
                 ["protocol", re.search(r"kWorkerProtocol = (\d+)", messages).group(1)],
                 ["magic of the beat page", f"`0x{magic:08x}`, the bytes `{magic.to_bytes(4, 'little').decode()}`"],
                 ["version of the beat page", re.search(r"kBeatPageVersion = (\d+)", page).group(1)],
                 ["offset of the rank's memory behind the page", re.search(r"kRankMemoryOffset = (\d+)", page).group(1)],
                 ["bytes of that memory", str(size_of(re.search(r"kRankMemoryBytes = (.*?);", page).group(1)))],
                 ["bytes of a value of the store, at most", str(size_of(re.search(r"kStoreValueBytesMax = (.*?);", messages).group(1)))])


def size_of(expression):
    """`size_t{128} << 10`"""
    number, shift = re.fullmatch(r"size_t\{(\d+)\} << (\d+)", expression).groups()
    return int(number) << int(shift)


def variables():
    text = text_of(CONTRACT / "env_names.h")
    rows = []
    for name in ("kAgentFd", "kBeatFd"):
        about, word = re.search(rf'((?://.*\n)+)inline constexpr std::string_view {name} = "(\w+)"', text).groups()
        rows.append([f"`{word}`", sentence(comment(about.rstrip().split(chr(10))))])
    rows.append(["`LOCAL_RANK`", "The rank's number on its node, from 0. It chooses its device by it before it has a place in a group."])
    return table(["variable", ""], *rows)


def beat_page():
    text = text_of(CONTRACT / "beat_page.h")
    offsets = {name: int(at) for name, at in re.findall(r"offsetof\(BeatPage, (\w+)\) == (\d+)", text)}
    fields = structs_of(text)["BeatPage"].fields
    if list(fields) != list(offsets):
        raise SystemExit(f"beat_page.h: the asserted offsets are those of {list(offsets)}, the fields are {list(fields)}")
    kinds = {"uint32_t": "u32", "std::atomic<uint64_t>": "u64", "std::atomic<int64_t>": "i64", "std::atomic<Activity>": "i32",
             "std::atomic<Phase>": "i32"}
    phases = len(enumerators(text_of(CONTRACT / "phase.h"), "Phase"))
    rows = [[str(offsets[name]), kinds.get(kind, f"{phases} × i64"), f"`{name}`", sentence(words)] for name, (kind, words) in fields.items()]
    return table(["offset", "type", "field", ""], *rows)


def numbered(name):
    text = text_of(CONTRACT / "phase.h")
    words = words_of(text[text.index(f"to_string({name}"):], "kNames")
    found = enumerators(text, name)
    return table(["number", name.lower(), ""], *([str(number), f"`{word}`", sentence(about)]
                                                  for number, (word, (_, about)) in enumerate(zip(words, found, strict=True))))


def exit_codes():
    text = text_of(CONTRACT / "exit_code.h")
    rows = re.findall(r"^  k(\w+) = (\d+),(?:\s*// (.*))?", text, re.M)
    return table(["exit code", "name", ""], *([number, name, sentence(about)] for name, number, about in rows))


def milliseconds(expression, file):
    """`{5000}`, `kFormingTimeout + std::chrono::seconds{2}`"""
    total = 0
    for term in expression.split(" + "):
        if found := re.fullmatch(r"(?:std::chrono::(seconds|milliseconds))?\{(\d+)\}", term):
            total += int(found.group(2)) * (1000 if found.group(1) == "seconds" else 1)
        else:
            total += deadline(term, "runner/contract/coordination.h" if term == "kFormingTimeout" else file)
    return total


def deadline(name, file):
    kind, expression = re.search(rf"std::chrono::(seconds|milliseconds) {name}(.*?);", text_of(pathlib.Path(file))).groups()
    expression = expression.removeprefix(" = ")
    if expression.startswith("{"):
        expression = f"std::chrono::{kind}{expression}"
    return milliseconds(expression, file)


def deadlines():
    return table(["time", "what for"], *([f"{deadline(name, file) / 1000:g} s", sentence(words)] for name, file, words in DEADLINES))


def tables():
    """name → (what it is made from, text)"""
    messages = Messages()
    return {"numbers": ("messages.h, beat_page.h", numbers()),
            "variables": ("env_names.h", variables()),
            "from-the-rank": ("messages.h", messages.section("WorkerMessage")),
            "from-the-agent": ("messages.h", messages.section("AgentMessage")),
            "beat-page": ("beat_page.h", beat_page()),
            "activities": ("phase.h", numbered("Activity")),
            "phases": ("phase.h", numbered("Phase")),
            "deadlines": ("the headers of link, contract, recovery and agent", deadlines()),
            "exit-codes": ("exit_code.h", exit_codes())}


def main():
    before = after = PAGE.read_text(encoding="utf-8")
    for name, (source, text) in tables().items():
        pattern = re.compile(rf"<!-- {name}:.*?-->\n.*?<!-- /{name} -->", re.S)
        if not pattern.search(after):
            raise SystemExit(f"docs/worker-protocol.md has no <!-- {name}: … --> … <!-- /{name} -->")
        after = pattern.sub(lambda _: f"<!-- {name}: made from {source} -->\n\n{text}\n<!-- /{name} -->", after)
    if sys.argv[1:] == ["--check"]:
        if before != after:
            sys.exit("docs/worker-protocol.md is not what the headers say: run scripts/worker_protocol.py")
        return
    PAGE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
