"""Which level a program reaches under `lockstep launch`, from its source: nothing of it is run. CMake puts this file in front of
zygote.py for `lockstep doctor`.

Level 1: a lost rank costs one new rank, and the others keep their state. That needs the package `lockstep`: init_process_group (from then
on torch's DistributedDataParallel is the package's, too), restore, and the steps or epochs of the run. Level 0: a lost rank costs a start of
all ranks.
"""
import ast

FILES_MAX = 200  # of the program's own that are looked at
WRAPPERS = ("lockstep.DistributedDataParallel", "torch.nn.parallel.DistributedDataParallel",
            "torch.nn.parallel.distributed.DistributedDataParallel")
STARTS = ("torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group")
FRAMEWORKS = {"accelerate": "Accelerate", "deepspeed": "DeepSpeed", "lightning": "Lightning Fabric", "pytorch_lightning": "Lightning Fabric"}
# Packages whose Trainer, or one that derives from it, --recover knows.
TRAINERS = {"transformers": "transformers' Trainer", "trl": "transformers' Trainer",
            "lightning": "Lightning's Trainer", "pytorch_lightning": "Lightning's Trainer"}
OF_THE_PACKAGE = {"lockstep.hf": "the Trainer of lockstep.hf", "lockstep.lightning": "the Strategy of lockstep.lightning"}
REFUSED = {"torch.distributed.new_group": "a group of the program's own", "torch.nn.SyncBatchNorm.convert_sync_batchnorm": "SyncBatchNorm",
           "torch.distributed.fsdp.FullyShardedDataParallel": "FSDP", "torch.distributed.fsdp.fully_shard": "FSDP"}


def leave_main_out(tree):
    """Takes `if __name__ == "__main__":` out, and the functions that it calls."""
    mains = [node for node in tree.body if isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))]
    called = {node.func.id for main in mains for node in ast.walk(main) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    tree.body = [node for node in tree.body
                 if node not in mains and not (isinstance(node, ast.FunctionDef) and node.name in called)]


class Source:
    """A file's calls, by their whole names: [(name, line)], and what it imports. Where it is imported itself, without what it does as a
    program."""

    def __init__(self, path, is_imported):
        self.path = path
        self.calls, self.methods, self.imports, names = [], [], [], {}
        self.loops = []       # those around a backward(), from the outermost one in: [[line, …], …]
        self.enumerated = []  # lines of enumerate(run.batches(…))
        with open(path, "rb") as file:
            tree = ast.parse(file.read(), path)
        if is_imported:
            leave_main_out(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.imports.append((0, alias.name))
                    names[alias.asname or alias.name.partition(".")[0]] = alias.name if alias.asname else alias.name.partition(".")[0]
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                self.imports.append((node.level, module))
                for alias in node.names:
                    inner = module + ("." if module else "") + alias.name
                    self.imports.append((node.level, inner))
                    names[alias.asname or alias.name] = inner
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name, parts = node.func, []
                while isinstance(name, ast.Attribute):
                    parts.insert(0, name.attr)
                    name = name.value
                if isinstance(name, ast.Name):
                    self.calls.append((".".join([names.get(name.id, name.id)] + parts), node.lineno))
                if parts:
                    self.methods.append(parts[-1])
                first = node.args[0] if node.args else None
                if name is node.func and getattr(name, "id", "") == "enumerate" and called_method(first) == "batches":
                    self.enumerated.append(node.lineno)
        self.find_loops(tree, [])

    def find_loops(self, node, around):
        """`around`: the lines of the loops that hold this node."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            around = []
        elif isinstance(node, (ast.For, ast.While)):
            around = around + [node.lineno]
        elif around and called_method(node) == "backward" and around not in self.loops:
            self.loops.append(around)
        for part in ast.iter_child_nodes(node):
            self.find_loops(part, around)


def called_method(node):
    """"steps" of `run.steps(…)`; "" where it is no such call."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def loop_to_change(sources):
    """What to write in place of the loops that train."""
    for source in sources:
        for lines in source.loops:
            name = os.path.basename(source.path)
            if len(lines) == 1:
                return "the loop at %s:%d: write for step in run.steps(total)" % (name, lines[0])
            return ("the loops at %s:%d and %d: write for epoch in run.epochs(n) and for batch in run.batches(loader)" %
                    (name, lines[-2], lines[-1]))
    return ("the loop is no run.steps or run.epochs: write for step in run.steps(total); over a DataLoader, for epoch in run.epochs(n) and for "
            "batch in run.batches(loader)")


def script_of(program):
    """The program's first file, and the folders in which its own modules lie."""
    if program[0] != "-m":
        folder = os.path.dirname(os.path.abspath(program[0]))
        return program[0], [folder]
    place = os.path.join(*program[1].split("."))
    for folder in [os.getcwd()] + [entry for entry in sys.path if entry]:
        for path in (place + ".py", os.path.join(place, "__main__.py")):
            if os.path.isfile(os.path.join(folder, path)):
                return os.path.join(folder, path), [folder]
    return program[1], []


def sources_of(script, folders):
    """The first file, and those that it imports and are the program's own."""
    found, waiting = {}, [script]
    while waiting and len(found) < FILES_MAX:
        path = waiting.pop(0)
        if os.path.realpath(path) in found:
            continue
        try:
            source = found[os.path.realpath(path)] = Source(path, is_imported=path != script)
        except (OSError, SyntaxError, ValueError):
            if path == script:
                raise
            continue
        for level, module in source.imports:
            starts = folders
            if level:
                starts = [os.path.abspath(os.path.join(os.path.dirname(path), *[os.pardir] * (level - 1)))]
            for folder in starts:
                place = os.path.join(folder, *module.split("."))
                waiting += [one for one in (place + ".py", os.path.join(place, "__init__.py")) if os.path.isfile(one)]
    return list(found.values())


def level_of_program(program):
    """{"level", "why_level", "to_change": [what to do at which line]}, or {"unreadable": why}"""
    script, folders = script_of(program)
    try:
        sources = sources_of(script, folders)
    except (OSError, SyntaxError, ValueError) as error:
        return {"unreadable": "%s cannot be read: %s" % (script, error)}
    places = {}
    for source in sources:
        for name, line in source.calls:
            places.setdefault(name, "%s:%d" % (os.path.basename(source.path), line))
    imports = {module for source in sources for level, module in source.imports if not level}
    modules = {module.partition(".")[0] for module in imports}
    frameworks = [words for name, words in FRAMEWORKS.items() if name in modules]
    for module, words in OF_THE_PACKAGE.items():
        if module in imports:
            return {"level": 1, "why_level": "it uses " + words, "to_change": []}
    has_loop = any(source.loops for source in sources)
    named = [module.partition(".")[0] for module in imports if module.endswith("Trainer")]
    trainers = [TRAINERS[name] for name in (*named, *(() if has_loop else modules)) if name in TRAINERS]
    if trainers and "lockstep.restore" not in places:
        return {"level": 0, "why_level": min(trainers) + " is recovered by lockstep launch --recover", "to_change":
                ["write --recover before the program's name, and it reaches level 1"]}
    if frameworks and "lockstep.restore" not in places:
        return {"level": 0, "why_level": frameworks[0] + " has a loop and a wrapper of its own, which the package lockstep does not know yet",
                "to_change": []}
    refused = [(name, what) for name, what in REFUSED.items() if name in places]
    if refused:
        return {"level": 0, "why_level": "%s has %s, which cannot be recovered when a rank is lost" % (places[refused[0][0]], refused[0][1]),
                "to_change": []}
    begin = "lockstep.init_process_group"
    to_change = ["%s has %s: write %s" % (places[name], name, begin) for name in STARTS if name in places]
    if begin not in places and not to_change:
        to_change.append("nothing calls %s" % begin)
    if not any(name in places for name in WRAPPERS):
        to_change.append("nothing wraps a model: write model = lockstep.DistributedDataParallel(model)")
    if "lockstep.restore" not in places:
        to_change.append("nothing calls lockstep.restore: write run = lockstep.restore(model=model, optimizer=optimizer) before the loop")
    if not any(method in ("steps", "epochs") for source in sources for method in source.methods):
        to_change.append(loop_to_change(sources))
    to_change += ["%s:%d has enumerate(run.batches(…)), which counts from 0 in a new rank: write for batch in run.batches(loader), with run.batch "
                  "as its number" % (os.path.basename(source.path), line) for source in sources for line in source.enumerated
                  if any("epochs" in one.methods for one in sources)]
    if not to_change:
        return {"level": 1, "why_level": "%s calls lockstep.restore" % places["lockstep.restore"], "to_change": []}
    uses = any(name.startswith("lockstep.") and name != "lockstep.report" for name in places)
    return {"level": 0, "why_level": "it uses the package lockstep in part" if uses else "it does not use the package lockstep",
            "to_change": to_change}
