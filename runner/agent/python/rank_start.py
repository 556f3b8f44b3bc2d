"""What every rank of the user's program has that is Python, whether a zygote forked it (zygote.py) or it was started from the
beginning (sitecustomize_end.py); CMake puts this file in front of either. The program itself is not changed by it:
steps are counted, the last error is kept where torchrun's ranks keep it, and a signal prints the stacks of all threads.
"""
import os
import sys
import time

STEP, COMMITTED_NS, CHANGED_NS = 2, 3, 5  # fields of the beat page (contract/beat_page.h), as numbers of eight bytes
PAGE_BYTES = 64
OPTIMIZER = "torch.optim.optimizer"


def offer_link(link_fd, page_fd):
    """Where the package `lockstep` finds this rank's link to its agent and its beat page, which it takes and writes itself from then
    on (`counts` is false then). Not in the environment, which is the program's and goes to processes that it starts."""
    import types
    sys._lockstep_rank = types.SimpleNamespace(pid=os.getpid(), link_fd=link_fd, page_fd=page_fd, counts=True)
    return sys._lockstep_rank


def step_counter(rank, page, on_first_step):
    """The hook that runs after each step of each optimizer. The agent sees on the beat page how often the optimizer has
    stepped that is stepped most rarely, counted from the step that its state says at its first one here."""
    now = time.monotonic_ns
    steps = {}

    def first_step(optimizer):
        if not steps:
            on_first_step()
        said = [state["step"] for state in optimizer.state.values() if isinstance(state, dict) and "step" in state]
        return max([int(step) for step in said], default=1)

    def after_step(optimizer, args, kwargs):
        key = id(optimizer)
        steps[key] = step = steps[key] + 1 if key in steps else first_step(optimizer)
        if not rank.counts:
            return
        page[STEP] = step if len(steps) == 1 else min(steps.values())
        page[COMMITTED_NS] = page[CHANGED_NS] = now()
    return after_step


def after_import(wanted, act):
    """Calls act(module) when the module of this name has been imported, or now if it is there."""
    if wanted in sys.modules:
        return act(sys.modules[wanted])

    class Finder:
        """Sees the import."""

        @staticmethod
        def find_spec(name, path, target=None):
            if name != wanted:
                return None
            sys.meta_path.remove(Finder)
            from importlib.machinery import PathFinder
            spec = PathFinder.find_spec(name, path, target)
            if spec is None or not hasattr(spec.loader, "exec_module"):
                return spec
            execute = spec.loader.exec_module

            def execute_and_act(module):
                execute(module)
                act(module)
            spec.loader.exec_module = execute_and_act
            return spec
    sys.meta_path.insert(0, Finder)


def count_steps(rank, on_first_step=lambda: None):
    """From now on if torch is there, else from when the program imports it. `rank`: see offer_link."""
    import mmap
    page = memoryview(mmap.mmap(rank.page_fd, PAGE_BYTES)).cast("q")
    after_import(OPTIMIZER, lambda module: module.register_optimizer_step_post_hook(step_counter(rank, page, on_first_step)))


def recover():
    """`lockstep launch --recover`: what the package has for torch's process group and for the frameworks' loops takes their place, when the
    program imports them."""
    if os.environ.get("LOCKSTEP_RECOVER") != "1":
        return
    if sys.version_info < (3, 10):
        print("lockstep: --recover has no effect: the package lockstep needs Python 3.10 or later, and this is %s" % sys.version.split()[0],
              file=sys.stderr)
        return

    def group(module):
        from lockstep import _recover
        _recover.replace_init_process_group(is_asked_for=False)

    def trainer(module):
        from lockstep import hf
        hf.recover(module.Trainer)

    def lightning(module):
        from lockstep import lightning
        lightning.recover(module.__name__[:-len(".trainer.trainer")])

    def where_it_can(act):
        def try_it(module):
            try:
                act(module)
            except Exception as error:  # without it the program runs as it would without --recover
                print(f"lockstep: --recover has no effect on {module.__name__}: {error}", file=sys.stderr)
        return try_it
    after_import("torch.distributed.distributed_c10d", where_it_can(group))
    after_import("transformers.trainer", where_it_can(trainer))
    for name in ("lightning.pytorch", "pytorch_lightning"):
        after_import(name + ".trainer.trainer", where_it_can(lightning))


def to_own_line(trace):
    """A traceback that ends at the last line of the program's own, where the package `lockstep` has raised an error or Ctrl-C came: what is
    below that line, of packages and of Python, says nothing of the cause."""
    import sysconfig
    import types
    package = sys.modules.get("lockstep")
    others = [path for path in (sysconfig.get_paths().get(name) for name in ("stdlib", "purelib", "platlib")) if path]
    others += [os.path.dirname(package.__file__)] if getattr(package, "__file__", None) else []
    entries, own = [], 0
    while trace is not None:
        entries.append(trace)
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith("<") and not any(path.startswith(other + os.sep) for other in others):
            own = len(entries)
        trace = trace.tb_next
    shown = None
    for entry in reversed(entries[:own or len(entries)]):
        shown = types.TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


def keep_errors(without_ours=lambda trace: trace):
    """The error that ends this process goes into TORCHELASTIC_ERROR_FILE, in the form of torch's @record, unless that was
    faster. It is printed as before, but that `without_ours` takes frames of ours from its traceback."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    show = sys.excepthook

    def write(value, trace):
        if not path or value is None or not isinstance(value, Exception) or os.path.exists(path):
            return
        import json
        import traceback
        text = "".join(traceback.format_exception(type(value), value, trace))
        said = {"message": f"{type(value).__name__}: {value}",
                "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))}}
        try:
            with open(path, "x", encoding="utf-8") as file:
                json.dump({"message": said}, file)
        except OSError:
            pass  # what it has printed remains

    def hook(kind, value, trace):
        trace = without_ours(trace)
        if issubclass(kind, KeyboardInterrupt) or kind.__module__ == "lockstep._errors":
            trace = to_own_line(trace)
        write(value, trace)
        show(kind, value.with_traceback(trace), trace)
    sys.excepthook = hook
    import atexit  # for programs that set an excepthook of their own
    atexit.register(lambda: write(getattr(sys, "last_value", None), without_ours(getattr(sys, "last_traceback", None))))


def print_stacks():
    """At a crash, and when the agent asks for it."""
    import faulthandler
    import signal
    try:
        # As in agent/program_ranks.cc. SIGUSR1 is Slurm's and Lightning's.
        if not faulthandler.is_enabled():
            faulthandler.enable()
        faulthandler.register(signal.SIGRTMIN + 10, all_threads=True, chain=False)
    except (RuntimeError, ValueError, OSError):
        pass  # without a stderr


def offer_package(folder):
    """`import lockstep` works, and an installed package of this name wins."""
    from importlib.util import find_spec
    try:
        found = find_spec("lockstep")
        if folder and (found is None or found.origin is None):  # a folder without __init__.py has no origin
            sys.path.append(folder)
    except (ImportError, ValueError, AttributeError):
        pass
