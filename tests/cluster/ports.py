"""TCP ports that are reserved for a test."""
import socket


class ReservedPorts:
    """Ports of 127.0.0.1 that no other program gets until close(), although our own servers may start and stop on them.

    Each is held by a socket that is bound and does not listen. It allows the reuse of its address only after it was
    bound: so the kernel first gives a port that is quite free, and then lets a program bind it that asks for
    SO_REUSEADDR, as servers do, while it gives it to no outgoing connection and to no other bind of port 0.
    """

    def __init__(self):
        self.sockets = []

    def take(self, address="127.0.0.1"):
        held = socket.socket()
        held.bind((address, 0))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sockets.append(held)
        return held.getsockname()[1]

    def close(self):
        for held in self.sockets:
            held.close()
        self.sockets.clear()
