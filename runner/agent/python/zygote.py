"""A parked Python that has imported what the ranks will import, and forks ranks on request of the agent.

Started by agent/zygote.cc as `python [the user's options] -c SOURCE DESCRIPTOR SETTINGS`, where SOURCE is rank_start.py and this
file. DESCRIPTOR is a SOCK_SEQPACKET socket; SETTINGS is a JSON object: `agent` (its pid), `preload` (modules), `program` (its
words), `memory` (a file in which this file keeps what it learns of the program, see Memory), `package_folder` (of the package lockstep),
`start_folder` (of sitecustomize.py, for a rank that must be started from the beginning), `spares` (processes that are
forked ahead), `left_out` (modules that must not be imported here, with the reason). With `describe` it prints what it would
do as JSON and ends.

A request is one packet with descriptors: a memfd that holds the JSON object {"cwd", "argv", "ranks": [environment, ...]}, and for
each rank its stdout, stderr, beat page and link (FDS_PER_RANK). The answer is {"pids": [...]}. Ranks are forked by a process in between that ends
at once, so that they become children of the agent (PR_SET_CHILD_SUBREAPER), which waits for them.
"""
import atexit
import ctypes
import gc
import hashlib
import importlib
import importlib.util
import io
import json
import signal
import socket
import types

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
THIS_FILE = "<string>"  # what a traceback calls the source of -c
ALONE = ("torch",)  # a program of PyTorch cannot do without: where it cannot be forked, nothing is
ENVIRONMENT_SECONDS = 60  # so long after its start a program may set what its packages read
FDS_PER_RANK = 4
TRIES_MAX = 4  # processes that this one may start in its own place, one for each module that prevents a fork
# Variables that libraries written in C read when they are loaded; those that Python code reads are seen (EnvironmentReads).
READ_BY_LIBRARIES = {"OMP_": ("torch", "numpy"), "GOMP_": ("torch",), "KMP_": ("torch",), "MKL_": ("torch", "numpy"),
                     "OPENBLAS_": ("numpy",), "GOTO_": ("numpy",), "TORCH_": ("torch",), "PYTORCH_": ("torch",)}
READ_WHEN_NEEDED = ("TORCH_NCCL_", "PYTORCH_NVML_BASED_CUDA_CHECK")  # the last one is set by Lightning


def package_of(name):
    return name.partition(".")[0]


def package_roots():
    """The folders of packages on sys.path. What lies elsewhere is the user's own, or the standard library."""
    return [root for root in sys.path if root.endswith(("site-packages", "dist-packages"))]


class Memory:
    """What is known of a program from earlier starts: a JSON object {"key", "imports": [what it had imported at its first step],
    "left_out": {package: reason}, "exec": [script's identity, reason]}. Another interpreter, and packages that were installed
    or removed since, make another key: nothing is known then. So does a file that is damaged."""

    def __init__(self, path, program):
        self.path = path
        self.script = program[0] if program and program[0] != "-m" else ""
        self.key = self.key_of_packages()

    @staticmethod
    def key_of_packages():
        found = [sys.executable, sys.version]
        for root in package_roots():
            try:
                with os.scandir(root) as entries:
                    found += sorted(f"{root}/{entry.name} {entry.stat().st_mtime_ns}" for entry in entries
                                    if entry.name.endswith((".dist-info", ".egg-info")))
            except OSError:
                pass
        return hashlib.sha256("\n".join(found).encode("utf-8", "surrogateescape")).hexdigest()

    def read(self):
        try:
            with open(self.path, encoding="utf-8") as file:
                known = json.load(file)
            if not isinstance(known, dict) or known.get("key") != self.key:
                return {}
            imports, left_out, executed = known.get("imports", []), known.get("left_out", {}), known.get("exec", ["", ""])
            fits = (isinstance(imports, list) and all(isinstance(name, str) for name in imports)
                    and isinstance(left_out, dict) and all(isinstance(why, str) for why in left_out.values())
                    and isinstance(executed, list) and len(executed) == 2 and all(isinstance(part, str) for part in executed))
            return known if fits else {}
        except (OSError, ValueError, RecursionError):
            return {}

    def write(self, **changes):
        temporary = f"{self.path}.{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({**self.read(), **changes, "key": self.key}, file)
            os.replace(temporary, self.path)
        except OSError:
            pass  # the next start is slower, and nothing else

    def script_identity(self):
        try:
            status = os.stat(self.script)
            return f"{status.st_mtime_ns} {status.st_size}"
        except OSError:
            return ""

    def why_exec(self):
        """Why this program is not forked any more; empty: it is. An edited script is tried again."""
        identity, why = self.read().get("exec", ["", ""])
        return why if identity == self.script_identity() else ""


class EnvironmentReads:
    """Sees which packages read which variables while they are imported."""

    def __init__(self):
        self.readers = {}  # variable → packages

    def __enter__(self):
        kind = type(os.environ)
        self.original = original = kind.__getitem__

        def read(environment, name):
            self.see(name, sys._getframe(1))
            return original(environment, name)
        kind.__getitem__ = read
        return self

    def __exit__(self, *error):
        type(os.environ).__getitem__ = self.original

    def see(self, name, frame):
        reader = ""
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module in ("os", "collections.abc", "_collections_abc") and frame.f_code.co_name in ("copy", "__iter__"):
                return  # of the whole environment
            if module not in ("os", "collections.abc", "_collections_abc", "importlib._bootstrap", "__main__"):
                reader = package_of(module)
                if reader not in sys.stdlib_module_names:
                    break  # else the package that calls the standard library
            frame = frame.f_back
        if reader and isinstance(name, str):
            self.readers.setdefault(name, set()).add(reader)

    def of(self, name):
        found = set(self.readers.get(name, ()))
        for prefix, packages in READ_BY_LIBRARIES.items():
            if name.startswith(prefix) and not name.startswith(READ_WHEN_NEEDED):
                found.update(packages)
        return {package for package in found if package in sys.modules}


def count_threads():
    return len(os.listdir("/proc/self/task"))


def why_no_fork():
    """A reason why a process that is forked now would not work; empty when there is none."""
    if count_threads() != 1:
        return f"it starts {count_threads() - 1} threads when it is imported, which a fork does not copy"
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return "it initialises CUDA when it is imported, which does not survive a fork"
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                return "it opens a GPU when it is imported, which does not survive a fork"
        except OSError:
            pass
    return ""


def preload(settings, memory):
    """Imports the modules. A package that makes forking impossible is left out by starting this process again without it,
    and from then on. Returns why nothing can be forked; empty when it can."""
    known = memory.read()
    left_out = {**known.get("left_out", {}), **settings["left_out"]}
    if why := why_no_fork():
        return f"Python itself, or a sitecustomize: {why}"
    for name in [*settings["preload"], *known.get("imports", [])]:
        package = package_of(name)
        if package in left_out or name in sys.modules or package == "lockstep" or len(left_out) > TRIES_MAX:
            continue
        try:
            if importlib.util.find_spec(name) is not None:
                importlib.import_module(name)
        except BaseException:  # the program meets the same error where it imports the module
            continue
        if why := why_no_fork():
            if package in ALONE:
                return f"{package}: {why}"
            left_out[package] = why
            memory.write(left_out=left_out)
            again = list(sys.orig_argv)
            again[-1] = json.dumps({**settings, "left_out": left_out})
            os.execv(sys.executable, [sys.executable, *again[1:]])
    settings["left_out"] = left_out
    return ""


class Spare:
    """A process that was forked ahead and waits for its rank, on a socket."""

    def __init__(self, pid, sock):
        self.pid = pid
        self.sock = sock


def fork_child_of_agent(others):
    """(pid, None), and in the child (0, None), by way of a process that ends at once."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(reader)
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            for sock in others:
                sock.close()
            return 0
        os.write(writer, str(pid).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(between, 0)
    if not text:
        raise OSError("no process")
    return int(text)


def make_spare(sock, spares):
    """A new spare; in the spare itself what serve() returns."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid = fork_child_of_agent([sock, ours, *[spare.sock for spare in spares]])
    except OSError:
        ours.close()
        its.close()
        return None
    if pid != 0:
        its.close()
        spares.append(Spare(pid, ours))
        return None
    set_name("lockstep-spare")
    data, fds, _, _ = socket.recv_fds(its, 4096, 8)
    if not data:
        os._exit(0)
    its.close()
    with open(fds[0], "rb") as file:
        request = json.load(file)
    return request, request["ranks"][int(data)], fds[1:], fds[1:]


def fds_of_rank(fds, number):
    return fds[1 + FDS_PER_RANK * number:1 + FDS_PER_RANK * (number + 1)]


def serve(sock, memory, spares_wanted):
    """Answers requests for ever. Returns only in a rank, with the request, its environment and descriptors."""
    spares = []
    while True:
        while len(spares) < spares_wanted:
            before = len(spares)
            if rank := make_spare(sock, spares):
                return rank
            if len(spares) == before:
                break  # no memory: ranks are forked when they are needed
        data, fds, _, _ = socket.recv_fds(sock, 4096, 253)
        if not data:
            os._exit(0)
        if why := memory.why_exec():
            sock.send(json.dumps({"ready": True, "why_no_fork": why}).encode())
            os._exit(0)
        with open(fds[0], "rb", closefd=False) as file:
            request = json.load(file)
        pids = []
        while spares and len(pids) < len(request["ranks"]):
            spare = spares.pop(0)
            number = len(pids)
            os.lseek(fds[0], 0, os.SEEK_SET)
            again = os.open(f"/proc/self/fd/{fds[0]}", os.O_RDONLY)  # with a position of its own
            try:
                socket.send_fds(spare.sock, [str(number).encode()], [again, *fds_of_rank(fds, number)])
                pids.append(spare.pid)
            except OSError:
                pass  # it was killed
            os.close(again)
            spare.sock.close()
        reader, writer = os.pipe()
        try:
            between = os.fork()
        except OSError:
            between = None  # no memory, or too many processes: the agent starts the ranks whose pids are missing
        if between == 0:
            os.close(reader)
            for number in range(len(pids), len(request["ranks"])):
                try:
                    pid = os.fork()
                except OSError:
                    break  # the agent sees that a pid is missing
                if pid == 0:
                    os.close(writer)
                    for other in [sock, *[spare.sock for spare in spares]]:
                        other.close()
                    return request, request["ranks"][number], fds_of_rank(fds, number), fds
                os.write(writer, f"{pid}\n".encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as file:
            pids += [int(line) for line in file]
        if between is not None:
            os.waitpid(between, 0)
        for fd in fds:
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


def set_name(text):
    """For ps and top, of which /proc/PID/comm shows fifteen letters."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, ctypes.c_char_p(text.encode()), 0, 0, 0)


def without_ours(trace):
    while trace and trace.tb_frame.f_code.co_filename == THIS_FILE:
        trace = trace.tb_next
    return trace


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


def names_to_remember():
    """All modules of packages and of the standard library that the program has imported, never its own files."""
    roots = tuple(root + os.sep for root in [os.path.dirname(os.__file__), *package_roots()])
    return [name for name, module in list(sys.modules.items())
            if name != "__main__" and (getattr(module, "__file__", None) or "").startswith(roots)]


def set_blas_threads(wanted):
    """numpy's OpenBLAS was loaded with one thread, because a fork copies no other."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = {line.split(None, 5)[5].rstrip("\n") for line in file if "openblas" in line}
    for path in paths:
        library = ctypes.CDLL(path)
        for prefix in ("scipy_openblas", "openblas"):
            for suffix in ("64_", ""):
                if function := getattr(library, f"{prefix}_set_num_threads{suffix}", None):
                    function(ctypes.c_int(wanted))
                    break


def has_nanobind():
    """Libraries made with nanobind (as triton from PyTorch 2.15) complain at the end of a process of whatever is not freed. To free all
    that was imported takes most of a second, so it is left to the kernel where nobody complains."""
    modules = [vars(module) for module in list(sys.modules.values()) if issubclass(type(module), types.ModuleType)]
    return any(type(value).__module__ == "nanobind" for names in modules if str(names.get("__file__")).endswith(".so")
               for value in list(names.values()))


def threads_of_openblas():
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").partition(",")[0].strip()
        if text.isdigit() and int(text) > 0:
            return int(text)
    return len(os.sched_getaffinity(0))


def packages_of_the_program(preloaded):
    """The packages that the program's own modules refer to, and those that these refer to."""
    seen, found, next_modules = set(), set(), [module for name, module in list(sys.modules.items())
                                               if name == "__main__" or name not in preloaded]
    while next_modules:
        packages = set()
        for module in next_modules:
            for value in list(getattr(module, "__dict__", {}).values()):
                kind = type(value)  # and no isinstance: some values warn when they are asked anything
                name = value.__name__ if issubclass(kind, types.ModuleType) else getattr(kind, "__module__", None)
                own = getattr(value, "__module__", None) if issubclass(kind, (type, types.FunctionType)) else None
                packages.update(package_of(text) for text in (name, own) if type(text) is str)
        found |= packages
        # Not through the standard library, where packages leave functions of theirs behind.
        new = packages - seen - sys.stdlib_module_names
        seen |= new
        next_modules = [module for name, module in list(sys.modules.items()) if package_of(name) in new]
    return found


def watch_environment(reads, memory, start_again):
    """A variable that a package has read in the zygote, and that the program sets before it imports this package, would have
    no effect in a forked rank. The rank starts again from the beginning then. Ends at the first step; os.putenv is
    replaced instead of listening to its audit event, because an audit hook stays, and costs a little everywhere."""
    preloaded = set(sys.modules) - {"__main__"}
    put, unset = os.putenv, os.unsetenv
    threads, latest = count_threads(), time.monotonic() + ENVIRONMENT_SECONDS

    def look(name, value):
        name = os.fsdecode(name)
        readers = reads.of(name)
        # A program that has begun its work must not be started again.
        if not readers or os.environ.get(name) == value or count_threads() != threads or time.monotonic() > latest:
            return
        late = readers - packages_of_the_program(preloaded)
        if not late:
            return
        why = f"it sets {name} before it imports {min(late, key=lambda package: (package not in ALONE, package))}, which reads it then"
        if os.environ.get("LOCAL_RANK", "0") == "0":
            memory.write(exec=[memory.script_identity(), why])
        start_again(why)

    def putenv(name, value):
        look(name, os.fsdecode(value))
        put(name, value)

    def unsetenv(name):
        look(name, None)
        unset(name)
    os.putenv, os.unsetenv = putenv, unsetenv

    def end():
        os.putenv, os.unsetenv = put, unset
    return end


def become(request, environment, fds, all_fds, settings, reads, memory):
    """In a rank: makes this process what Python would be that had just started the user's program."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    page_fd, link_fd = os.dup(fds[2]), os.dup(fds[3])
    for fd in {null, *all_fds}:
        if fd > 2:
            os.close(fd)
    end_with_the_agent(settings["agent"])
    set_oom_score(settings["oom_score_adj"])
    set_name(f"rank {environment.get('RANK', '')}")
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
        if (threads := threads_of_openblas()) > 1:
            set_blas_threads(threads)
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None
    if settings["frees_at_end"]:
        atexit.register(gc.unfreeze)
    print_stacks()
    keep_errors(without_ours)
    offer_package(settings["package_folder"])
    argv = request["argv"]

    def start_again(why):
        print(f"lockstep: this rank starts again from the beginning, not forked: {why}", file=sys.stderr, flush=True)
        again = dict(environment)
        for name, fd in (("LOCKSTEP_BEAT_FD", page_fd), ("LOCKSTEP_AGENT_FD", link_fd)):
            os.set_inheritable(fd, True)
            again[name] = str(fd)
        if settings["start_folder"]:
            before = again.get("PYTHONPATH")
            again["PYTHONPATH"] = settings["start_folder"] + (os.pathsep + before if before else "")
        options = sys.orig_argv[1:sys.orig_argv.index("-c")]
        os.execve(sys.executable, [sys.orig_argv[0], *options, *argv], again)

    end_watch = watch_environment(reads, memory, start_again)

    def on_first_step():
        end_watch()
        if os.environ.get("LOCAL_RANK") == "0":
            memory.write(imports=names_to_remember())
    count_steps(offer_link(link_fd, page_fd), on_first_step)
    recover()
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    is_safe_path = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    if argv[0] == "-m":
        import runpy
        sys.argv = argv[1:]
        if not is_safe_path:
            sys.path[0] = os.getcwd()
        runpy._run_module_as_main(argv[1], alter_argv=True)
        return
    script = argv[0]
    sys.argv = argv
    if not is_safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    main.__file__, main.__spec__, main.__cached__ = script, None, None
    from importlib.machinery import SourceFileLoader
    main.__loader__ = SourceFileLoader("__main__", script)
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def oom_score():
    try:
        with open("/proc/self/oom_score_adj", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def set_oom_score(text):
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        pass


def describe(settings, level, why, seconds):
    standard = getattr(sys, "stdlib_module_names", ())
    torch = sys.modules.get("torch")
    if sys.version_info < (3, 10):
        level = {"level": 0, "why_level": "the package lockstep needs Python 3.10 or later", "to_change": []}
    print(json.dumps({
        "python": sys.version.split()[0], "executable": sys.executable, "prefix": sys.prefix,
        "torch": getattr(torch, "__version__", None), "cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "modules": len(sys.modules), "packages": sorted({package_of(name) for name in names_to_remember()
                                                          if package_of(name) not in standard}),
        "left_out": settings["left_out"], "why_no_fork": why, "seconds": seconds, **level}))


def park():
    settings = json.loads(sys.argv[2])
    if settings.get("describe"):
        level = level_of_program(settings["program"])  # of program_level.py, which is there then
        if "unreadable" in level:
            return print(json.dumps({"python": sys.version.split()[0], **level}))
    if sys.version_info < (3, 10):
        why = f"this is Python {sys.version.split()[0]}, and only 3.10 and later are forked"
        if settings.get("describe"):
            return describe(settings, level, why, 0.0)
        os.write(int(sys.argv[1]), json.dumps({"ready": True, "why_no_fork": why}).encode())
        return None
    began = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the agent's affair
    settings.setdefault("oom_score_adj", oom_score())
    set_name("lockstep-zygote")
    set_oom_score("1000")  # when memory is short, this process goes first: ranks need it only at their start
    memory = Memory(settings["memory"], settings["program"])
    thresholds = gc.get_threshold()
    gc.set_threshold(0)  # what imports make stays: to look for garbage in it takes a fifth of their time
    with EnvironmentReads() as reads:
        why = memory.why_exec() or preload(settings, memory)
    if gc.get_threshold()[0] == 0:
        gc.set_threshold(*thresholds)
    if settings.get("describe"):
        return describe(settings, level, why, time.monotonic() - began)
    sock = socket.socket(fileno=int(sys.argv[1]))
    settings["frees_at_end"] = has_nanobind()
    gc.freeze()  # until the end: a collection in a rank would write into all these objects, and their pages would be shared no more
    sock.send(json.dumps({"ready": True, "why_no_fork": why}).encode())
    if why:
        while sock.recv(1):  # a request that waits is not served; an end before the agent's would take the answer back
            pass
        return None
    become(*serve(sock, memory, settings["spares"]), settings, reads, memory)


if __name__ == "__main__":
    park()
