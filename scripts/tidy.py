#!/usr/bin/env python3
"""clang-tidy over our sources: tidy.py BUILD_FOLDER

Reads BUILD_FOLDER/compile_commands.json. Each source is compiled alone and without a precompiled header, so that what it
uses and does not include is an error. A header is the first that its own source includes; one without such a source is
looked at like a source. Sources with torch take half a minute each; they and the tests are left out, unless ALL=1 is in
the environment. But of those with torch that have mutexes, the use of these is looked at. A source that passed is not looked at again until it, a header of ours that it includes, or .clang-tidy
changes; what passed is remembered under LOCKSTEP_CACHE.

In the environment: TIDY_CHANGED=1 leaves out the sources that are as they were a day before the newest commit and in
origin/HEAD. TIDY_SECONDS: after so long no other source is begun. Those that differ from origin/HEAD come first, the
others in a random order. How many were not begun is said here and in the JUnit file that TIDY_REPORT names
(scripts/run_tests shows it).
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
from xml.sax.saxutils import quoteattr

INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.M)
FIRST_INCLUDE = re.compile(rb'^\s*#\s*include\s*(?:"([^"]+)"|<)', re.M)
# Sources name what they use: none needs what is precompiled, which clang would take for its own besides.
PRECOMPILED = re.compile(r"-Winvalid-pch -include \S+/cmake_pch\.hxx")
WITH_TORCH = "lockstep_torch_pch_"  # its target
MUTEX = b'"runner/base/mutex.h"'
# A warning of clang alone is no check, without which clang-tidy does nothing.
MUTEXES = "--checks=-*,clang-diagnostic-thread-safety-*,modernize-deprecated-headers"


def closure(root, source):
    """The source and the headers of ours that it includes, directly or not."""
    seen, todo = {}, [source]
    while todo:
        path = todo.pop()
        if path in seen or not path.is_file():
            continue
        seen[path] = path.read_bytes()
        todo += [root / name.decode() for name in INCLUDE.findall(seen[path])]
    return seen


def digest(root, files, command):
    sum_ = hashlib.sha256((root / ".clang-tidy").read_bytes())
    sum_.update(re.sub(r"\S*/", "", command).encode())  # flags count, where the folders lie does not
    for path in sorted(files):
        sum_.update(str(path.relative_to(root)).encode() + b"\0" + files[path])
    return sum_.hexdigest()


def git(root, *words):
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False).stdout.split()


def changed_since(root, commit):
    names = [*git(root, "diff", "--name-only", commit), *git(root, "ls-files", "--others", "--exclude-standard")]
    return {root / name for name in names}


def changed(root):
    """The paths that are not as they were a day before the newest commit; None where git does not know that day."""
    newest = git(root, "log", "-1", "--format=%ct")
    before = newest and git(root, "rev-list", "-1", f"--before={int(newest[0]) - 24 * 3600}", "HEAD")
    return changed_since(root, *before) if before else None


def changed_since_origin(root):
    """The paths that are not as they were where this branch left origin/HEAD; none without an origin."""
    base = git(root, "merge-base", "HEAD", "origin/HEAD")
    return changed_since(root, *base) if base else set()


def has_mutexes(root, source):
    """Does the source, or the header that it includes first (its own), include base/mutex.h?"""
    text = source.read_bytes()
    own = FIRST_INCLUDE.search(text)
    header = root / own[1].decode() if own and own[1] else source
    return MUTEX in text or (header.is_file() and MUTEX in header.read_bytes())


def headers_without_source(root, commands):
    """Commands for the headers that none of these sources includes first: each with the flags of one that includes it."""
    includes, first = {}, set()
    for entry in sorted(commands, key=lambda entry: entry["file"]):
        source = pathlib.Path(entry["file"])
        for path in closure(root, source):
            includes.setdefault(path, entry)
        named = FIRST_INCLUDE.search(source.read_bytes())
        if named and named[1]:
            first.add(root / named[1].decode())
    return [{**entry, "file": str(path),
             "command": entry["command"].replace(f"-c {entry['file']}", f"-Wno-pragma-once-outside-header -x c++ -c {path}")}
            for path, entry in includes.items() if path.suffix == ".h" and path not in first]


def tidy(commands_folder, source, *checks):
    command = ["clang-tidy-14", "--quiet", f"-p={commands_folder}", "--extra-arg=-Wno-unknown-warning-option",
               "--extra-arg=-Wno-ignored-optimization-argument", "--extra-arg=-fno-openmp", "--extra-arg=-Wthread-safety", *checks, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + (done.stderr if done.returncode and not done.stdout else "")


def report(names, reason):
    """Skipped test cases, where TIDY_REPORT says."""
    path = os.environ.get("TIDY_REPORT")
    if path and names:
        cases = f'<testcase name={quoteattr(names)}><skipped message={quoteattr(reason)}/></testcase>'
        pathlib.Path(path).write_text(f"<testsuite>{cases}</testsuite>")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    build = pathlib.Path(sys.argv[1]).resolve()
    cache = pathlib.Path(os.environ.get("LOCKSTEP_CACHE", pathlib.Path.home() / ".cache/lockstep")) / "tidy"
    cache.mkdir(parents=True, exist_ok=True)
    first = changed_since_origin(root)
    wanted = changed(root) if os.environ.get("TIDY_CHANGED") == "1" else None
    if wanted is not None:
        wanted |= first
    commands, left_out, of_mutexes = [], 0, {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["directory"], entry["file"]).resolve()
        is_test = root / "tests" in source.parents
        is_ours = any(root / top in source.parents for top in ("runner", "operator", "tests"))
        if not is_ours or source.suffix != ".cc":
            continue
        command = {**entry, "file": str(source), "command": PRECOMPILED.sub("", entry["command"])}
        if (is_test or WITH_TORCH in entry["command"]) and os.environ.get("ALL") != "1":
            if not is_test and has_mutexes(root, source):
                of_mutexes[source] = command
            else:
                left_out += 1
            continue
        commands.append(command)
    commands += headers_without_source(root, commands)
    commands += of_mutexes.values()
    todo, passed, older = {}, 0, 0
    for entry in commands:
        source = pathlib.Path(entry["file"])
        if wanted is not None and source not in wanted:
            older += 1
            continue
        stamp = cache / digest(root, closure(root, source), entry["command"] + (MUTEXES if source in of_mutexes else ""))
        if stamp.exists():
            passed += 1
        else:
            todo[source] = stamp
    seconds = float(os.environ.get("TIDY_SECONDS", "inf"))
    until = time.monotonic() + seconds
    if seconds < float("inf"):
        todo = dict(sorted(random.sample(list(todo.items()), len(todo)), key=lambda item: item[0] not in first))
    failed = not_begun = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        pathlib.Path(folder, "compile_commands.json").write_text(json.dumps(commands))
        for (source, stamp), (code, text) in zip(todo.items(), pool.map(
                lambda s: tidy(folder, s, *[MUTEXES] * (s in of_mutexes)) if time.monotonic() < until else (None, ""), todo)):
            if code is None:
                not_begun += 1
            elif code == 0:
                stamp.touch()
            else:
                failed += 1
                print(f"== {source.relative_to(root)}\n{text}", flush=True)
    if not_begun:
        report(f"{not_begun} of {len(todo) + passed} sources", f"no time for them within {seconds:.0f} s; make lint has")
    print(f"tidy: {len(todo) - not_begun} looked at, {failed} failed, {passed} unchanged since they passed, "
          f"{older} not changed, {not_begun} not begun for want of time, {left_out} left out (torch, tests: ALL=1)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
