"""The package's own exceptions."""


class LockstepError(RuntimeError):
    """The program uses the package in a way that cannot be recovered, or its ranks disagree. The message says what was found, what
    was expected and what to do."""


class GroupBroken(Exception):
    """The ranks' group has ended: a peer died, or the agent has cut it. Never seen by the program: whoever runs a collective catches it,
    forms the next group and runs the collective again."""


class Interrupted(BaseException):
    """Ends the block of `with run.step()` in a rank that is a step behind the others, and goes no further than that block. No Exception, so
    that a program's `except Exception` does not hold it up."""
