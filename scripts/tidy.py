#!/usr/bin/env python3
"""clang-tidy over our sources: tidy.py BUILD_FOLDER

Reads BUILD_FOLDER/compile_commands.json. Sources that include torch take half a minute each and are left out, unless
ALL=1 is in the environment. A source that passed is not looked at again until it, a header of ours that it includes,
or .clang-tidy changes; what passed is remembered under LOCKSTEP_CACHE.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.M)
TORCH = re.compile(rb"^\s*#\s*include\s*<(torch|ATen|c10)/", re.M)


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


def tidy(build, source):
    command = ["clang-tidy-14", "--quiet", f"-p={build}", "--extra-arg=-Wno-unknown-warning-option",
               "--extra-arg=-Wno-ignored-optimization-argument", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + (done.stderr if done.returncode and not done.stdout else "")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    build = pathlib.Path(sys.argv[1]).resolve()
    cache = pathlib.Path(os.environ.get("LOCKSTEP_CACHE", pathlib.Path.home() / ".cache/lockstep")) / "tidy"
    cache.mkdir(parents=True, exist_ok=True)
    todo, passed, left_out = {}, 0, 0
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if root not in source.parents or build in source.parents or source.suffix != ".cc":
            continue
        files = closure(root, source)
        if any(TORCH.search(text) for text in files.values()) and os.environ.get("ALL") != "1":
            left_out += 1
            continue
        stamp = cache / digest(root, files, entry["command"])
        if stamp.exists():
            passed += 1
        else:
            todo[source] = stamp
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (source, stamp), (code, text) in zip(todo.items(), pool.map(lambda s: tidy(build, s), todo)):
            if code == 0:
                stamp.touch()
            else:
                failed += 1
                print(f"== {source.relative_to(root)}\n{text}", flush=True)
    print(f"tidy: {len(todo)} looked at, {failed} failed, {passed} unchanged since they passed, "
          f"{left_out} with torch left out")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
