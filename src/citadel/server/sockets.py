"""Listening sockets, with errors that say what to change."""

from __future__ import annotations

import errno
import socket

from citadel.errors import UsageError


def listen(host: str, port: int, shared: bool = False) -> socket.socket:
    """Bind a socket; port 0 takes a free one. A shared port is balanced by the kernel."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except socket.gaierror:
        listener.close()
        raise UsageError(f"{host}: no such address: use one of this machine") from None
    except OSError as error:
        listener.close()
        raise UsageError(f"{host}:{port}: {_bind_problem(error)}") from None
    return listener


def _bind_problem(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens on this port; stop it, or choose another --port"
    if error.errno == errno.EACCES:
        return "ports below 1024 are for the administrator; choose another --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address; choose another --host"
    return f"cannot listen ({error.strerror}); choose another --host or --port"
