"""HTTP as bytes, also such as no client would send; and what it costs the server."""
import contextlib
import pathlib
import re
import socket


def ask(port, request, timeout=60):
    """The answer to these bytes; as much of it as came when the server resets the connection."""
    answer = b""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=timeout)) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(65536):
                answer += chunk
    return answer


def get(port, path, timeout=60):
    return ask(port, f"GET {path} HTTP/1.1\r\nHost: agent\r\n\r\n".encode(), timeout)


def code_of(answer):
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    return int(found.group(1)) if found else None


def resident_bytes(pid):
    return int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) * 1024
