"""Servers as children: unprivileged, and gone when their parent is, whatever ended it."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

# Runs as our child, first as root: gives up its privileges, asks for a signal at our death, becomes the program. Done
# here and not in `preexec_fn`, which is unsafe with threads. ctypes is loaded before the privileges go, because an
# unprivileged user may not be able to read this Python.
_BECOME = """
import ctypes, os, signal, sys
parent, number, uid, gid, folder, *argv = sys.argv[1:]
libc = ctypes.CDLL(None) if sys.platform == "linux" else None
if int(uid) >= 0:
    os.setgroups([int(gid)]); os.setgid(int(gid)); os.setuid(int(uid))
if libc is not None:
    libc.prctl(1, int(number), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the parent is gone already")
os.chdir(folder)
os.execv(argv[0], argv)
"""


def becoming(
    argv: Sequence[str], account: pwd.struct_passwd | None, folder: Path, at_our_death: signal.Signals
) -> list[str]:
    """
    Give the command that becomes a program.

    Args:
        account: Whom it runs as; None: as we do.
        folder: Where it runs.
        at_our_death: What the kernel sends it when the thread that started it ends.
    """
    uid, gid = (-1, -1) if account is None else (account.pw_uid, account.pw_gid)
    numbers = [str(os.getpid()), str(int(at_our_death)), str(uid), str(gid)]
    return [sys.executable, "-I", "-S", "-c", _BECOME, *numbers, str(folder), *argv]


def unprivileged() -> pwd.struct_passwd | None:
    """Name the user that servers run as when we are root; None when we are not."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("servers do not run as root, and there is neither a user postgres nor a user nobody")


def free_port() -> int:
    """Choose a port on which nobody listens now; somebody may take it before its user does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
