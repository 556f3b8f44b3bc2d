"""The package's own exceptions."""


class LockstepError(RuntimeError):
    """The program uses the package in a way that cannot be recovered, or its ranks disagree. The message says what was found, what
    was expected and what to do."""


class GroupBroken(Exception):
    """The ranks' group has ended: a peer died, or the agent has cut it. Never seen by the program: whoever runs a collective catches it,
    forms the next group and runs the collective again."""
