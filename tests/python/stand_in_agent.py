"""The agents and the coordinator of a run, as far as its ranks see them: for tests of workers of any kind. What is a message and where the
beat page has its fields is read from docs/worker-protocol.md, as whoever writes a worker would."""
import contextlib
import json
import mmap
import os
import re
import socket
import struct
import subprocess
import threading
import time

from programs import ROOT, clean_environment

PAGE = (ROOT / "docs/worker-protocol.md").read_text(encoding="utf-8")
SECONDS_MAX = 120  # far more than anything takes


def table_under(name):
    """The rows of a table that is made from a header."""
    text = re.search(rf"<!-- {name}:.*?-->\n(.*?)<!-- /{name} -->", PAGE, re.S).group(1)
    return rows_of(text)


def rows_of(text):
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return rows[2:]


def number(name):
    """One of the page's numbers."""
    return next(value for what, value in table_under("numbers") if what == name)


PROTOCOL = int(number("protocol"))
MAGIC = int(re.match(r"`(0x\w+)`", number("magic of the beat page")).group(1), 16)
VERSION = int(number("version of the beat page"))
PAGE_BYTES = int(number("offset of the rank's memory behind the page")) + int(number("bytes of that memory"))
FIELDS = {name.strip("`"): (int(offset), {"u32": "<I", "u64": "<Q", "i32": "<i", "i64": "<q"}[kind])
          for offset, kind, name, _ in table_under("beat-page") if "×" not in kind}
ACTIVITIES = [name.strip("`") for _, name, _ in table_under("activities")]
CHECKS = (  # what begins a field's description, and whether a value is of that kind
    ("integer, not negative", lambda value: type(value) is int and value >= 0),
    ("integer", lambda value: type(value) is int),
    ("true or false", lambda value: type(value) is bool),
    ("number", lambda value: type(value) in (int, float) or value in ("NaN", "+Inf", "-Inf")),
    ("text", lambda value: type(value) is str),
    ("list of bytes", lambda value: all(re.fullmatch("([0-9a-f]{2})*", one) for one in value)),
    ("list", lambda value: type(value) is list),
    ("object", lambda value: type(value) is dict))


def messages_under(name):
    """type → {field: what it is}"""
    text = re.search(rf"<!-- {name}:.*?-->\n(.*?)<!-- /{name} -->", PAGE, re.S).group(1)
    found = {}
    for part in text.split("\n### ")[1:]:
        own = re.split(r"\n\w+: a part of ", part)[0]
        found[own.split("\n", 1)[0]] = {field.strip("`"): what for field, what, _ in rows_of(own)}
    return found


OF_A_RANK, OF_AN_AGENT = messages_under("from-the-rank"), messages_under("from-the-agent")


def problem(said):
    """Why this message of a rank is not what the page says; empty: it is."""
    fields = OF_A_RANK.get(said.get("type"))
    if fields is None:
        return "its type is not on the page"
    if odd := sorted(said.keys() - fields.keys() - {"type"}):
        return f"{odd} are not on the page"
    for name, what in fields.items():
        if name not in said:
            if "optional" not in what:
                return f"{name} is missing"
        elif what.startswith("one of"):
            if f"`{said[name]}`" not in what:
                return f"{name} is none of those on the page"
        elif not next(is_such for kind, is_such in CHECKS if what.startswith(kind))(said[name]):
            return f"{name} is no {what}"
    return ""


def plans_of(claims):
    """For ranks of which all or none of those with a state have the same commit, or can go on to it with the results that others keep:
    what these tests lead to. (The coordinator's own rules: runner/recovery/state_source.h.)"""
    holders = [rank for rank, claim in enumerate(claims) if claim and claim["has_state"]]
    if not holders:
        return []
    source = max(holders, key=lambda rank: claims[rank]["step"])
    complete = max(claims[rank]["complete"] for rank in holders)
    keeper = next(rank for rank in holders if claims[rank]["complete"] == complete)
    has = {rank: claims[rank if rank in holders else source]["complete" if rank in holders else "at_commit"] for rank in range(len(claims))}
    gets_state = [source, *(rank for rank in has if rank not in holders)]
    gets_results = [keeper, *(rank for rank in has if has[rank] < complete)]

    def handover(members, rank):
        is_needed = len(members) > 1
        return {"rank": members.index(rank) if is_needed and rank in members else -1, "size": len(members) if is_needed else 0}
    return [{"source": source, "state": handover(gets_state, rank), "results": handover(gets_results, rank),
             "first_result": min(has.values()), "complete": complete, "behind": -1, "is_lost": False} for rank in has]


class Rank:
    """A process, the other end of its link, and its beat page. `heard`: what it has said; `conversation`: ("→" or "←", message)."""

    def __init__(self, agent, command, local_rank, folder, page, environment):
        self.agent, self.local_rank = agent, local_rank
        self.heard, self.conversation, self.problems, self.is_gone = [], [], [], False
        self.link, its_end = socket.socketpair()
        page_fd = os.memfd_create("lockstep-beats")
        os.ftruncate(page_fd, PAGE_BYTES)
        self.page = mmap.mmap(page_fd, PAGE_BYTES)
        for name, value in {"magic": MAGIC, "version": VERSION, **page}.items():
            offset, kind = FIELDS[name]
            struct.pack_into(kind, self.page, offset, value)
        self.output_path = folder / f"output-{len(agent.ranks)}"
        with open(self.output_path, "wb") as output:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output,
                                            stderr=subprocess.STDOUT, cwd=folder, pass_fds=[its_end.fileno(), page_fd],
                                            env=clean_environment(LOCAL_RANK=str(local_rank), LOCKSTEP_AGENT_FD=str(its_end.fileno()),
                                                                  LOCKSTEP_BEAT_FD=str(page_fd), **environment))
        its_end.close()
        os.close(page_fd)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with self.link.makefile("rb") as lines:
            try:
                for line in lines:
                    with self.agent.changed:
                        self._hear(json.loads(line))
                        self.agent.changed.notify_all()
            except OSError:
                pass  # it was killed
        with self.agent.changed:
            self.is_gone = True
            self.agent.changed.notify_all()

    def _hear(self, said):
        if why := problem(said):
            self.problems.append(f"{said}: {why}")
        self.heard.append(said)
        self.conversation.append(("→", said))
        if said["type"] == "store":
            self.agent.store.ask(self, said)

    def say(self, kind, **fields):
        message = {"type": kind, **fields}
        self.conversation.append(("←", message))
        with contextlib.suppress(OSError):  # it is gone
            self.link.sendall((json.dumps(message) + "\n").encode())

    def said(self, kind, **fields):
        """All messages of this type with these fields."""
        return [one for one in self.heard if one["type"] == kind and fields.items() <= one.items()]

    def claim(self):
        """What it said that it holds when it left its last group; None: nothing."""
        return next((one.get("claim") for one in reversed(self.heard) if one["type"] == "left"), None)

    def on_page(self, name):
        offset, kind = FIELDS[name]
        return struct.unpack_from(kind, self.page, offset)[0]

    def activity(self):
        return ACTIVITIES[self.on_page("activity")]

    def output(self):
        return self.output_path.read_text(errors="replace")


class Store:
    """That of the newest generation."""

    def __init__(self):
        self.generation, self.values, self.waiting, self.more = 0, {}, [], {}

    def begin(self, generation):
        waiting, self.waiting = self.waiting, []
        self.generation, self.values = generation, {}
        for rank, request in waiting:
            self.answer(rank, request)

    def ask(self, rank, request):
        """Answers it, and others that have waited for what it sets."""
        if not self.answer(rank, request):
            self.waiting.append((rank, request))
        self.waiting = [one for one in self.waiting if not self.answer(*one)]

    def answer(self, rank, request):
        """False: it must wait."""
        if rank.is_gone:
            return True
        reply = {"status": "ok", "values": [], "number": 0, "message": ""}
        if request["generation"] != self.generation:
            reply.update(status="stale", message="the generation has ended")
        elif not self.carry_out(request, reply):
            return False
        rank.say("store_reply", id=request["id"], **reply, **self.more)
        return True

    def carry_out(self, request, reply):
        op, keys, values = request["op"], request["keys"], request["values"]
        if op in ("get", "wait") and not all(key in self.values for key in keys):
            return False
        if op == "set":
            self.values.update(zip(keys, values, strict=True))
        elif op == "get":
            reply["values"] = [self.values[key] for key in keys]
        elif op == "add":
            reply["number"] = int(bytes.fromhex(self.values.get(keys[0], "30"))) + request["amount"]
            self.values[keys[0]] = str(reply["number"]).encode().hex()
        elif op == "append":
            self.values[keys[0]] = self.values.get(keys[0], "") + values[0]
            reply["number"] = len(self.values[keys[0]]) // 2
        elif op == "compare_set":
            expected, desired = values
            if self.values.get(keys[0], "") == expected:
                self.values[keys[0]] = desired
            reply["values"] = [self.values.get(keys[0], expected)]
        elif op == "delete":
            reply["number"] = int(self.values.pop(keys[0], None) is not None)
        elif op == "check":
            reply["number"] = int(all(key in self.values for key in keys))
        elif op == "num_keys":
            reply["number"] = len(self.values)
        return True


class StandInAgent:
    """A context: what it has started ends with it."""

    def __init__(self, folder):
        self.folder, self.ranks, self.store, self.changed = folder, [], Store(), threading.Condition()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.process.kill()
            rank.process.wait()

    def start(self, command, local_rank, page=(), **environment):
        """`page`: other values of its fields than an agent of this version writes."""
        self.ranks.append(Rank(self, command, local_rank, self.folder, dict(page), environment))
        return self.ranks[-1]

    def wait_for(self, condition, what):
        deadline = time.monotonic() + SECONDS_MAX
        with self.changed:
            while not condition():
                self.changed.wait(0.02)  # the beat page tells nobody that it has changed
                if time.monotonic() > deadline or any(rank.problems for rank in self.ranks):
                    raise AssertionError(f"no {what}: " + "\n".join(
                        f"rank {rank.local_rank} ({rank.process.poll()}) {rank.problems} {rank.heard[-3:]}\n{rank.output()[-3000:]}"
                        for rank in self.ranks))

    def assign(self, generation, ranks, left_out=(), **more):
        """These ranks, in order, are the next group. `left_out`: fields that are not said; `more`: others, not on the page."""
        with self.changed:
            self.store.begin(generation)
            plans = plans_of([rank.claim() for rank in ranks])
            for number, rank in enumerate(ranks):
                place = {"generation": generation, "rank": number, "local_rank": rank.local_rank, "world_size": len(ranks),
                         "local_world_size": len(ranks), "nnodes": 1, "declared_world_size": len(ranks), "node_cores": 0, "address": "",
                         "plans": plans[number:number + 1], **more}
                if not plans:
                    del place["plans"]
                rank.say("assignment", **{name: value for name, value in place.items() if name not in left_out})
