"""A parked Python that has imported what the ranks will import, and forks one rank per request of the agent.

Started by agent/zygote.cc as `python [the user's options] -c THIS_FILE DESCRIPTOR SETTINGS`. DESCRIPTOR is a SOCK_SEQPACKET
socket; SETTINGS is a JSON object: `agent` (its pid), `preload` (modules), `leave_out` (modules that must not be imported here),
`remember` (a file; what a program had imported at its first step is written there for the next start).

A request is one packet with descriptors: a memfd that holds the JSON object {"cwd", "argv", "ranks": [environment, ...]}, and for
each rank its stdout, stderr and beat page. The answer is {"pids": [...]}. Ranks are forked by a process in between that ends
at once, so that they become children of the agent (PR_SET_CHILD_SUBREAPER), which waits for them.
"""
import ctypes
import gc
import importlib
import importlib.util
import io
import json
import mmap
import os
import signal
import socket
import sys
import time
import types

PR_SET_PDEATHSIG = 1
THIS_FILE = "<string>"  # what a traceback calls the source of -c
STACK_SIGNAL = signal.SIGRTMIN + 10  # as in agent/program_ranks.cc
#Fields of the beat page(contract / beat_page.h), as numbers of eight bytes.
STEP, COMMITTED_NS, CHANGED_NS = 1, 2, 4
PAGE_BYTES = 64


def count_threads():
    return len(os.listdir("/proc/self/task"))


def why_no_fork():
    """A reason why a process that is forked now would not work; empty when there is none."""
    if count_threads() != 1:
        return f"an import has started {count_threads() - 1} threads, which a fork does not copy"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "an import has initialised CUDA, which does not survive a fork"
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                return "an import has opened a GPU, which does not survive a fork"
        except OSError:
            pass
    return ""


def preload(settings):
    """Imports the modules. One that makes forking impossible is left out by starting this process again without it."""
    for name in [*settings["preload"], *remembered(settings["remember"])]:
        if name in settings["leave_out"] or name in sys.modules or name.split(".")[0] == "lockstep":
            continue
        try:
            if importlib.util.find_spec(name) is not None:
                importlib.import_module(name)
        except BaseException:  # the program meets the same error where it imports the module
            continue
        if why_no_fork():
            settings["leave_out"].append(name)
            again = list(sys.orig_argv)
            again[-1] = json.dumps(settings)
            os.execv(sys.executable, [sys.executable, *again[1:]])


def remembered(path):
    """What the program had imported at its first step the last time; nothing where that is not known."""
    try:
        with open(path, encoding="utf-8") as file:
            return [name for name in json.load(file) if isinstance(name, str)]
    except (OSError, ValueError, TypeError):
        return []


def serve(sock):
    """Answers requests for ever. Returns only in a forked rank, with the request, its environment and descriptors."""
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 4096, 253)
        if not data:
            os._exit(0)
        with open(fds[0], "rb") as file:
            request = json.load(file)
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            os.close(reader)
            for number, environment in enumerate(request["ranks"]):
                pid = os.fork()
                if pid == 0:
                    os.close(writer)
                    sock.close()
                    return request, environment, fds[1 + 3 * number:4 + 3 * number], fds[1:]
                os.write(writer, f"{pid}\n".encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as file:
            pids = [int(line) for line in file]
        os.waitpid(between, 0)
        for fd in fds[1:]:
            os.close(fd)
        sock.send(json.dumps({"pids": pids}).encode())


def end_with_the_agent(agent):
    deadline = time.monotonic() + 10
    while os.getppid() != agent:  # the process in between has not ended yet
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.0005)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(1)


def show_error(kind, value, traceback):
    """As Python's own, without the frames of this file."""
    while traceback and traceback.tb_frame.f_code.co_filename == THIS_FILE:
        traceback = traceback.tb_next
    sys.__excepthook__(kind, value.with_traceback(traceback), traceback)


def open_streams():
    """As Python opens them at its start: sys.stdin, sys.stdout and sys.stderr of this process."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED")) or "-u" in sys.orig_argv[:sys.orig_argv.index("-c")]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        is_line_wise = name == "stderr" or os.isatty(number)
        mode = "r" if name == "stdin" else "w"
        errors = "backslashreplace" if name == "stderr" else None
        if unbuffered and mode == "w":
            stream = io.TextIOWrapper(open(number, "wb", 0, closefd=False), errors=errors, line_buffering=True, write_through=True)
        else:
            stream = open(number, mode, closefd=False, buffering=1 if is_line_wise and mode == "w" else -1, errors=errors)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def count_steps(page_fd, remember):
    """The agent sees steps on the beat page: those of the optimizer that is stepped most rarely, counted from the step that its
    state says at the first one."""
    if "torch" not in sys.modules:
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook
    page = memoryview(mmap.mmap(page_fd, PAGE_BYTES)).cast("q")
    now = time.monotonic_ns
    steps = {}

    def first_step(optimizer):
        said = [state["step"] for state in optimizer.state.values() if isinstance(state, dict) and "step" in state]
        if not steps and remember and os.environ.get("LOCAL_RANK") == "0":
            remember_imports(remember)
        return max([int(step) for step in said], default=1)

    def after_step(optimizer, args, kwargs):
        key = id(optimizer)
        steps[key] = steps[key] + 1 if key in steps else first_step(optimizer)
        page[STEP] = steps[key] if len(steps) == 1 else min(steps.values())
        page[COMMITTED_NS] = page[CHANGED_NS] = now()
    register_optimizer_step_post_hook(after_step)


def remember_imports(path):
    """Writes the names of all modules of packages and of the standard library that the program has imported."""
    roots = {os.path.dirname(os.__file__)} | {root for root in sys.path if root.endswith(("site-packages", "dist-packages"))}
    names = [name for name, module in list(sys.modules.items())
             if name != "__main__" and (getattr(module, "__file__", None) or "").startswith(tuple(root + os.sep for root in roots))]
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            json.dump(names, file)
        os.replace(f"{path}.{os.getpid()}", path)
    except OSError:
        pass  # the next start is slower, and nothing else


def become(request, environment, fds, all_fds, settings):
    """In a rank: makes this process what Python would be that had just started the user's program."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    page_fd = os.dup(fds[2])
    for fd in {null, *all_fds}:
        if fd > 2:
            os.close(fd)
    end_with_the_agent(settings["agent"])
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["cwd"])
    time.tzset()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    open_streams()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # its generator was seeded when numpy was imported, the same for all ranks
    import faulthandler
    faulthandler.register(STACK_SIGNAL, all_threads=True, chain=False)
    sys.excepthook = show_error
    count_steps(page_fd, settings["remember"])
    gc.unfreeze()
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    argv = request["argv"]
    if argv[0] == "-m":
        import runpy
        sys.argv = argv[1:]
        sys.path[0] = os.getcwd()
        runpy._run_module_as_main(argv[1], alter_argv=True)
        return
    script = argv[0]
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    main.__file__, main.__spec__, main.__cached__ = script, None, None
    from importlib.machinery import SourceFileLoader
    main.__loader__ = SourceFileLoader("__main__", script)
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    exec(code, main.__dict__)


if __name__ == "__main__":
    SETTINGS = json.loads(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the agent's affair
    preload(SETTINGS)
    SOCKET = socket.socket(fileno=int(sys.argv[1]))
    gc.collect()
    gc.freeze()
    SOCKET.send(json.dumps({"ready": True, "why_no_fork": why_no_fork()}).encode())
    become(*serve(SOCKET), SETTINGS)
