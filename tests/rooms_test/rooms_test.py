#!/usr/bin/env python3
"""Reads the include lines of runner/, operator/ and tests/, and the imports of Python files, and fails on one that goes the wrong way.

What it holds the code to (docs/decisions.md says why):
  - a room includes only the rooms that ROOMS allows it, tests may include any;
  - rooms without torch never include torch, c10, ATen or gloo;
  - the two halves leave each other alone, but for runner/{base,contract,recovery}, which the operator may use, and the
    rooms of the operator from which the command line reads TrainJobs;
  - cpprestsdk is included by one file;
  - the environment is read in base/environment.cc alone; everybody else takes it as an argument;
  - mutexes are those of base/mutex.h, which clang's -Wthread-safety can follow (make lint);
  - what every model stands on names none: runner/{loop,worker,config,cli,agent} have no word that is the name of a model
    or of a variant;
  - the Python package (python/lockstep) imports torch, the standard library and its own modules, numpy where the program may have
    imported it, and the module that also comes alone (_report.py) the standard library; nothing that is shipped imports the package, but
    for what --recover does in a rank;
  - every header starts its code with #pragma once;
  - no test sleeps.
`rooms_test.py ROOT` checks a tree. Its rules are first tried on small wrong trees made for the purpose: a rule that
lets one pass fails the test.
"""
import ast
import functools
import pathlib
import re
import sys
import tempfile

# Room -> rooms it may include, besides itself.
BELOW_TORCH = ["base", "contract", "launch", "config"]
WITH_TENSORS = BELOW_TORCH + ["tensor"]
ROOMS = {
    "base": [],
    "contract": ["base"],
    # Which launchers' variables say who a process is among its peers.
    "launch": ["base", "contract"],
    "config": ["base", "contract", "launch"],
    "recovery": ["base", "contract"],
    "agent": BELOW_TORCH + ["recovery"],
    # The worker's end of the link to its agent, for a worker of any kind.
    "link": ["base", "contract"],
    "tensor": ["base"],
    "data": BELOW_TORCH + ["formats"],
    "formats": BELOW_TORCH,
    "telemetry": BELOW_TORCH,
    "dist": WITH_TENSORS + ["recovery", "link"],
    "kernels": WITH_TENSORS,
    # What the models of several workloads are made of.
    "layers": WITH_TENSORS + ["kernels"],
    "optim": WITH_TENSORS + ["kernels"],
    "checkpoint": WITH_TENSORS + ["formats"],
    # runner/models/*/data/: the data of one model alone.
    "model_data": BELOW_TORCH + ["formats", "data"],
    # runner/models/**/*_flags.{h,cc}: what the command line knows of the models.
    "model_flags": BELOW_TORCH + ["data", "model_data"],
    "models": WITH_TENSORS + ["data", "formats", "checkpoint", "kernels", "layers", "model_data", "model_flags"],
    # A model of a user's own: its loading, and what it is held to.
    "plugin": WITH_TENSORS + ["dist", "model_flags", "models"],
    "loop": WITH_TENSORS + ["link", "dist", "recovery", "data", "optim", "formats", "checkpoint", "telemetry", "kernels", "model_flags",
                            "models"],
    # A worker's process: the order of its life.
    "worker": WITH_TENSORS + ["link", "dist", "checkpoint", "telemetry", "model_flags", "models", "plugin", "loop"],
    "doctor": ["base", "contract", "agent"],
    "cli": BELOW_TORCH + ["recovery", "agent", "formats", "doctor", "model_flags"],
}
OPERATOR_ROOMS = {
    "api": [],
    "kube": ["api"],
    "control": ["api", "kube"],
    "train": ["api", "kube", "control"],
    "manifest": ["api", "train"],
    "diagnose": ["api", "train"],
}
OPERATOR_MAY_USE_OF_THE_RUNNER = {"base", "contract", "recovery"}
# The command line reads TrainJobs: by what is pure of the operator, and links no cpprestsdk.
CLI_MAY_USE_OF_THE_OPERATOR = {"api", "train", "manifest"}
NO_TORCH = {"base", "contract", "launch", "config", "recovery", "agent", "link", "data", "formats", "telemetry", "model_data",
            "model_flags", "doctor", "cli"}
# Rooms that name no model. A model's name is that of its folder, a variant's that of its file *_workload.h.
NAMES_NO_MODEL = {"loop", "worker", "config", "cli", "agent"}
# Programs stand on top of all rooms; `lockstep` links no torch, `lockstep-worker` does.
TORCH_HEADER = re.compile(r"^(torch|ATen|c10|caffe2|gloo)/")
CPPREST_HEADER = re.compile(r"^(cpprest|pplx)/")
CPPREST_USERS = {"operator/kube/cpprest_transport.cc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
ENVIRONMENT_READERS = {"runner/base/environment.cc"}
ENVIRONMENT = re.compile(r"\b(secure_getenv|getenv|environ)\b")
MUTEX_HEADER = "runner/base/mutex.h"
PLAIN_MUTEX = re.compile(r"\bstd::((recursive_|shared_)?(timed_)?mutex|condition_variable(_any)?)\b")
SLEEP = re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\(")
SLEEP_PYTHON = re.compile(r"\btime\.sleep\s*\(|\bfrom time import .*\bsleep\b")
TOPS = ("runner", "operator", "tests")
PACKAGE = "python/lockstep"
# A module of the package, and what a program has that imports it.
OF_A_FRAMEWORK = {"hf.py": ("transformers", "accelerate"), "lightning.py": ("torchmetrics",)}
BRINGS_THE_PACKAGE = "rank_start.py"  # into the user's program, when `lockstep launch --recover` asks for it
# Folders of Python files that are shipped, or run without the package's libraries.
WITHOUT_THE_PACKAGE = ("runner", "operator", "scripts", "manifests", "charts", "dashboards")
CODE = {".h", ".cc", ".cu", ".cuh"}


# What is no code, in one pass, so that a quote in a comment or a comment in a string opens nothing.
NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|R"([^(\s"]*)\(.*?\)\1"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])'", re.S)


def without_comments_and_strings(text):
    """The lines of the code alone, numbered as before; include lines keep what they include."""
    def blank(match):
        line_start = text.rfind("\n", 0, match.start()) + 1
        if match.group(0).startswith('"') and INCLUDE.match(text[line_start:match.end()]):
            return match.group(0)
        return re.sub(r"[^\n]", " ", match.group(0))
    return NO_CODE.sub(blank, text).split("\n")


def room_of(parts):
    """The room of a file or of a header: its folder, but for what links no torch in the models' folders."""
    if parts[1] == "models" and parts[-1].split(".")[0].endswith("_flags"):
        return "model_flags"
    if parts[1] == "models" and "data" in parts[3:-1]:
        return "model_data"
    return parts[1]


@functools.cache
def models_of(root):
    models = root / "runner/models"
    return sorted({path.name for path in models.glob("*") if path.is_dir()}
                  | {path.stem.removesuffix("_workload") for path in models.glob("*/*_workload.h")})


def named_model(root, text):
    """The first model that a text names, in its code, comments or strings."""
    return next((name for name in models_of(root) if re.search(rf"{name}(?![a-zA-Z])", text, re.I)), None)


def check_file(root, path):
    name = path.relative_to(root).as_posix()
    parts = name.split("/")
    lines = without_comments_and_strings(path.read_text(encoding="utf-8"))
    half = parts[0]
    rooms = OPERATOR_ROOMS if half == "operator" else ROOMS
    room = room_of(parts) if half in ("runner", "operator") and len(parts) > 2 else None
    problems = []
    if half == "runner" and room in NAMES_NO_MODEL:
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if model := named_model(root, line):
                problems.append(f"{name}:{number}: names the model {model}; room '{room}' serves every model: what is "
                                "one model's stands in its folder of runner/models")
    if room is not None and room not in rooms:
        problems.append(f"{name}:1: room '{room}' is not in ROOMS of tests/rooms_test/rooms_test.py")
        room = None
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        include = INCLUDE.match(line)
        if include and room:
            check = check_operator_include if half == "operator" else check_include
            problems += check(where, room, include.group(2))
        if include and CPPREST_HEADER.match(include.group(2)) and name not in CPPREST_USERS:
            problems.append(f"{where}: only {', '.join(CPPREST_USERS)} includes cpprestsdk")
        if half in ("runner", "operator") and ENVIRONMENT.search(line) and name not in ENVIRONMENT_READERS:
            problems.append(f"{where}: reads the environment; only {', '.join(ENVIRONMENT_READERS)} may: "
                            "take a lockstep::Environment as an argument")
        if half in ("runner", "operator") and (plain := PLAIN_MUTEX.search(line)) and name != MUTEX_HEADER:
            problems.append(f"{where}: {plain.group(0)} is not seen by -Wthread-safety; use what {MUTEX_HEADER} has")
        # A plugin is no test: what it trains takes its time.
        if parts[0] == "tests" and "plugins" not in parts and SLEEP.search(line):
            problems.append(f"{where}: a test sleeps; make time an argument, or wait for the event itself")
    if path.suffix == ".h":
        code = [line.strip() for line in lines if line.strip()]
        if not code or code[0] != "#pragma once":
            problems.append(f"{name}:1: a header's first line of code must be #pragma once")
    return problems


def check_include(where, room, header):
    problems = []
    if room in NO_TORCH and TORCH_HEADER.match(header):
        problems.append(f"{where}: room '{room}' has no torch, but includes {header}")
    parts = header.split("/")
    if parts[0] == "operator" and not (room == "cli" and parts[1] in CLI_MAY_USE_OF_THE_OPERATOR):
        problems.append(f"{where}: the runner knows nothing of the operator, but includes {header}")
    if parts[0] == "runner" and len(parts) > 2 and room_of(parts) != room and room_of(parts) not in ROOMS[room]:
        problems.append(f"{where}: room '{room}' may not include room '{room_of(parts)}' ({header}); "
                        f"it may include: {', '.join(ROOMS[room]) or 'none'}")
    return problems


def check_operator_include(where, room, header):
    parts = header.split("/")
    if TORCH_HEADER.match(header):
        return [f"{where}: the operator has no torch, but includes {header}"]
    if parts[0] == "runner" and (len(parts) < 3 or parts[1] not in OPERATOR_MAY_USE_OF_THE_RUNNER):
        return [f"{where}: of the runner, the operator may use base and contract, but includes {header}"]
    if parts[0] == "operator" and len(parts) > 2 and parts[1] != room and parts[1] not in OPERATOR_ROOMS[room]:
        return [f"{where}: room '{room}' may not include room '{parts[1]}' ({header}); "
                f"it may include: {', '.join(OPERATOR_ROOMS[room]) or 'none'}"]
    return []


def check_python_test(root, path):
    name = path.relative_to(root).as_posix()
    return [f"{name}:{number}: a test sleeps; wait for the event itself"
            for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
            if SLEEP_PYTHON.search(line.split("#")[0])]


def imports_of(path):
    """[(line, module's first name, whether it is within a function)], without relative imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    inner = {id(node) for function in ast.walk(tree) if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
             for node in ast.walk(function)}
    found = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        found += [(node.lineno, name.partition(".")[0], id(node) in inner) for name in names]
    return found


def check_package(root):
    problems = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for line, module, is_inner in imports_of(path):
            may = module in sys.stdlib_module_names
            if path.name != "_report.py":
                may = may or module == "torch" or (module == "numpy" and is_inner) or module in OF_A_FRAMEWORK.get(path.name, ())
            if not may:
                problems.append(f"{name}:{line}: imports {module}; the package may import torch, the standard library, its own modules "
                                "(relatively) and, within a function, numpy; _report.py the standard library alone, hf.py transformers, and lightning.py what Lightning brings")
    for top in WITHOUT_THE_PACKAGE:
        for path in sorted((root / top).rglob("*.py")):
            problems += [f"{path.relative_to(root).as_posix()}:{line}: imports the Python package, which belongs to users' programs"
                         for line, module, is_inner in imports_of(path)
                         if module == "lockstep" and not (is_inner and path.name == BRINGS_THE_PACKAGE)]
    return problems


def check_tree(root):
    problems = check_package(root)
    for top in TOPS:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in CODE:
                problems += check_file(root, path)
            elif top == "tests" and path.name.startswith("test_") and path.suffix == ".py":
                problems += check_python_test(root, path)
    return problems


# File, its text, and what the complaint must say (None: it must pass).
TRIALS = [
    ("runner/base/a.h", '#pragma once\n#include "runner/contract/b.h"\n', "may not include room 'contract'"),
    ("runner/dist/a.cc", '#include "runner/data/b.h"\n', "may not include room 'data'"),
    ("runner/models/a.cc", '#include "runner/data/b.h"\n', None),
    ("runner/loop/h.cc", "// as SASRec does\n", "names the model sasrec"),
    ("runner/cli/h.cc", 'const char* name = "sasrec_x";\n', "names the model sasrec"),
    ("runner/config/i.h", '#pragma once\n// "--variant tisasrec"\n', "names the model sasrec"),
    ("runner/config/j.h", '#pragma once\n// {"mask_ratio", "mdm"}\n', "names the model mdm"),
    ("runner/config/h.cc", "int sasreckon = 0;\n", None),
    ("runner/data/h.cc", "// as SASRec does\n", None),
    ("runner/models/sasrec/a_flags.cc", '#include "runner/models/workload_flags.h"\n', None),
    ("runner/models/sasrec/b_flags.cc", "#include <torch/torch.h>\n", "room 'model_flags' has no torch"),
    ("runner/models/sasrec/c_flags.cc", '#include "runner/models/workload.h"\n', "may not include room 'models'"),
    ("runner/models/sasrec/data/a.cc", "#include <torch/torch.h>\n", "room 'model_data' has no torch"),
    ("runner/models/sasrec/d_flags.cc", '#include "runner/models/sasrec/data/a.h"\n', None),
    ("runner/models/sasrec/data/b.cc", '#include "runner/models/sasrec/b_flags.h"\n', "may not include room 'model_flags'"),
    ("runner/cli/f.cc", '#include "runner/models/workload_flags.h"\n', None),
    ("runner/cli/g.cc", '#include "runner/models/registry.h"\n', "may not include room 'models'"),
    ("runner/data/a.cc", '#include "runner/models/b.h"\n', "may not include room 'models'"),
    ("runner/agent/a.cc", "#include <torch/torch.h>\n", "has no torch"),
    ("runner/formats/a.cc", "#  include <ATen/ATen.h>\n", "has no torch"),
    ("runner/dist/b.cc", "#include <torch/torch.h>\n", None),
    ("runner/agent/b.cc", "// #include <torch/torch.h>\n", None),
    ("runner/link/a.cc", '#include "runner/dist/b.h"\n', "may not include room 'dist'"),
    ("runner/link/b.cc", "#include <torch/torch.h>\n", "room 'link' has no torch"),
    ("runner/base/c.cc", '#include "operator/api/b.h"\n', "knows nothing of the operator"),
    ("runner/cli/a.cc", '#include "operator/manifest/b.h"\n', None),
    ("runner/cli/b.cc", '#include "operator/kube/b.h"\n', "knows nothing of the operator"),
    ("runner/agent/e.cc", '#include "operator/manifest/b.h"\n', "knows nothing of the operator"),
    ("operator/manifest/a.cc", '#include "operator/kube/b.h"\n', "may not include room 'kube'"),
    ("runner/common/a.h", "#pragma once\n", "is not in ROOMS"),
    ("runner/agent/c.cc", 'int x = getenv("A") != nullptr;\n', "reads the environment"),
    ("runner/agent/d.cc", 'const char* text = "getenv is not called here";  // getenv\n', None),
    ("runner/base/environment.cc", "extern char** environ;\n", None),
    ("runner/dist/c.cc", "std::timed_mutex mutex;\n", "std::timed_mutex is not seen by -Wthread-safety"),
    ("operator/kube/b.cc", "std::condition_variable_any changed;\n", "use what runner/base/mutex.h has"),
    ("operator/kube/c.cc", "const MutexLock lock(mutex);  // not std::mutex\n", None),
    ("runner/base/mutex.h", "#pragma once\nstd::mutex mutex_;\n", None),
    ("tests/runner/base/b_test.cc", "std::mutex mutex;\n", None),
    ("runner/base/d.h", "// role\nint x;\n", "must be #pragma once"),
    ("runner/base/f.h", "// all of runner/*\n#pragma once\nchar c = '\"'; int y; /* \" */\n", None),
    ("runner/base/e.h", "// role\n\n#pragma once\n", None),
    ("operator/api/a.cc", '#include "operator/kube/b.h"\n', "may not include room 'kube'"),
    ("operator/train/a.cc", '#include "operator/kube/b.h"\n', None),
    ("operator/control/a.cc", '#include "operator/train/b.h"\n', "may not include room 'train'"),
    ("operator/train/b.cc", '#include "runner/contract/b.h"\n', None),
    ("operator/train/c.cc", '#include "runner/agent/b.h"\n', "may use base and contract"),
    ("operator/common/a.h", "#pragma once\n", "is not in ROOMS"),
    ("operator/kube/client.cc", "#include <cpprest/http_client.h>\n", "includes cpprestsdk"),
    ("operator/kube/cpprest_transport.cc", "#include <cpprest/http_client.h>\n", None),
    ("operator/kube/a.cc", 'int x = getenv("A") != nullptr;\n', "reads the environment"),
    ("tests/runner/base/a_test.cc", "std::this_thread::sleep_for(x);\n", "a test sleeps"),
    ("tests/python/plugins/a.cc", "std::this_thread::sleep_for(x);\n", None),
    ("tests/python/test_a.py", "time.sleep(1)\n", "a test sleeps"),
    ("tests/python/helper.py", "time.sleep(1)\n", None),
    ("python/lockstep/_a.py", "import torch.distributed as dist\nfrom . import _b\nimport os.path\n", None),
    ("python/lockstep/_b.py", "def f():\n    import numpy\n", None),
    ("python/lockstep/_c.py", "from numpy import array\n", "imports numpy"),
    ("python/lockstep/_d.py", "def f():\n    import requests.sessions\n", "imports requests"),
    ("python/lockstep/_e.py", "from lockstep import _f\n", "imports lockstep"),
    ("python/lockstep/_report.py", "import torch\n", "imports torch"),
    ("python/lockstep/hf.py", "import transformers\nfrom accelerate.utils import a\n", None),
    ("python/lockstep/lightning.py", "from torchmetrics import Metric\n", None),
    ("python/lockstep/_g.py", "import transformers\n", "imports transformers"),
    ("runner/agent/python/rank_start.py", "def f():\n    from lockstep import hf\n", None),
    ("runner/agent/python/rank_start.py", "import lockstep\n", "imports the Python package"),
    ("runner/agent/python/a.py", "def f():\n    import lockstep\n", "imports the Python package"),
    ("tests/python/test_b.py", "import lockstep\n", None),
]


def failed_trials():
    wrong = []
    for name, text, expected in TRIALS:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "runner/models/sasrec").mkdir(parents=True)
            (root / "runner/models/protein").mkdir()
            (root / "runner/models/protein/mdm_workload.h").write_text("#pragma once\n", encoding="utf-8")
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
            found = check_tree(root)
            if expected is None and found:
                wrong.append(f"{name} with {text!r} should pass, but: {found[0]}")
            if expected is not None and not any(expected in problem for problem in found):
                wrong.append(f"{name} with {text!r} should fail with '{expected}', but: {found or 'it passed'}")
    return wrong


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    problems = failed_trials() + check_tree(root)
    for problem in problems:
        print(problem)
    files = sum(1 for top in TOPS for path in (root / top).rglob("*") if path.suffix in CODE)
    if files == 0:
        problems.append("no code found")
        print(f"no code found under {root}")
    print(f"rooms: {files} files, {len(TRIALS)} trials, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
