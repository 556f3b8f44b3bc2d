

def start():
    """Runs before the program does. The agent has put the folder of this file first on PYTHONPATH; from here on neither this
    process nor those that it starts know of it, and a sitecustomize of the user's own runs as it would have."""
    folder = os.path.dirname(os.path.abspath(__file__))
    rest = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [entry for entry in rest if os.path.abspath(entry or ".") != folder]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)
    page_fd, link_fd = os.environ.pop("LOCKSTEP_BEAT_FD", ""), os.environ.pop("LOCKSTEP_AGENT_FD", "")
    if not page_fd.isdigit() or not os.readlink(f"/proc/self/fd/{page_fd}").startswith("/memfd:lockstep-beats"):
        return
    keep_errors()
    print_stacks()
    offer_package(os.path.join(os.path.dirname(folder), "last"))
    for fd in (page_fd, link_fd):
        os.set_inheritable(int(fd), False)
    count_steps(offer_link(int(link_fd), int(page_fd)))
    recover()


try:
    start()
except OSError:
    pass  # the program runs all the same
