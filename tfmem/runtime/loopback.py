"""Keeps a TCP port that TensorFlow listens on to the loopback interface.

TensorFlow's gRPC server listens on every interface (``grpc_server_lib.cc`` adds the listening port
``0.0.0.0:port``, whatever host name the cluster names), asks for no password, and runs any graph it
is sent. What it opened can still be narrowed afterwards: a listening socket that is bound to the
interface ``lo`` gets no packet that arrives on another (``ss -ltn`` then shows ``*%lo:port``). Any
process may do so since Linux 5.7. Other users of the same machine can still connect.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing

from tfmem.errors import Error

_LISTEN = "0A"  # of /proc/net/tcp
_SO_BINDTODEVICE = 25  # of asm-generic/socket.h; not in Python's socket module everywhere


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on at this moment."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def restrict(port: int) -> None:
    """Binds every socket of this process that listens on `port` to the loopback interface.

    Raises:
      tfmem.Error: no such socket is found, or the system offers no way to restrict it.
    """
    descriptors = list(_listening(port))
    if not descriptors:
        raise Error(
            f"cannot keep TCP port {port} to the loopback interface: this process has no listening "
            "socket there (host_process needs Linux with /proc mounted)"
        )
    for descriptor in descriptors:
        with closing(socket.socket(fileno=os.dup(descriptor))) as listener:
            _bind_to_loopback(listener, port)


def _bind_to_loopback(listener: socket.socket, port: int) -> None:
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, b"lo\0")
    except OSError as error:
        raise Error(
            f"cannot keep TCP port {port} to the loopback interface ({error}), so TensorFlow's "
            "server would be open to the network; use Linux 5.7 or newer, or name as the host a "
            "device of a cluster of your own (tf.config.experimental_connect_to_host)"
        ) from error


def _listening(port: int) -> Iterator[int]:
    """Descriptors of this process's TCP sockets that listen on `port`."""
    wanted = set(_inodes(port))
    try:
        names = sorted(os.listdir("/proc/self/fd"), key=int)
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in wanted:
            yield int(name)


def _inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{table}", encoding="ascii") as lines:
                next(lines)
                fields = [line.split() for line in lines]
        except OSError:
            continue
        for row in fields:
            if row[3] == _LISTEN and int(row[1].rsplit(":", 1)[1], 16) == port:
                yield row[9]
