"""Keeps a TCP port that TensorFlow listens on to the loopback interface.

TensorFlow's gRPC server listens on every interface (``grpc_server_lib.cc`` adds the listening port
``0.0.0.0:port``, whatever host name the cluster names), asks for no password, and runs any graph it
is sent. What it opened can still be narrowed afterwards: a listening socket that is bound to the
interface ``lo`` gets no packet that arrives on another, and so do the connections it accepts
(``ss -ltn`` then shows ``*%lo:port``). Unprivileged processes may do so since Linux 5.7; on older
kernels a socket filter on the interface's index does the same without showing in ``ss``.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing

from tfmem.errors import Error

_LISTEN = "0A"  # of /proc/net/tcp
_SO_BINDTODEVICE = 25
_SO_ATTACH_FILTER = 26
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # classic BPF
_INTERFACE_INDEX = 0xFFFFF000 + 8  # SKF_AD_OFF + SKF_AD_IFINDEX


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
    except OSError:
        try:
            _filter_interface(listener, socket.if_nametoindex("lo"))
        except OSError as error:
            raise Error(
                f"cannot keep TCP port {port} to the loopback interface ({error}); TensorFlow's "
                "server would be open to the network: use Linux, or a host in a cluster of your "
                "own making (tf.config.experimental_connect_to_host)"
            ) from error


def _filter_interface(listener: socket.socket, index: int) -> None:
    """Drops what arrives on another interface than `index`."""
    instructions = (
        (_LOAD_WORD, 0, 0, _INTERFACE_INDEX),
        (_JUMP_IF_EQUAL, 0, 1, index),
        (_RETURN, 0, 0, 0xFFFFFFFF),
        (_RETURN, 0, 0, 0),
    )
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(instructions), ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


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
