"""Where the daemon listens, whether it may be trusted, and how to start one."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from .errors import NotRunning, Untrusted

SocketPath: TypeAlias = str | os.PathLike[str]

#: Whether to start a daemon where none runs: True runs `attar serve`, a sequence is the command
#: to run in its place.
Start: TypeAlias = bool | Sequence[str]

_SERVE = ("attar", "serve")
_LOOK_EVERY = 0.05


def default_socket() -> Path:
    """Where a daemon listens unless told otherwise: `$ATTAR_SOCKET`, else
    `$XDG_RUNTIME_DIR/attar/attar.sock`, else `attar-<uid>/attar.sock` in the temporary folder."""
    if named := os.environ.get("ATTAR_SOCKET"):
        return Path(named)
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if runtime.is_absolute() and runtime.is_dir():
        return runtime / "attar" / "attar.sock"
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")
    return temporary / f"attar-{os.geteuid()}" / "attar.sock"


def connect_socket(path: Path) -> socket.socket:
    """A connection to the daemon on `path`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(os.fspath(path))
        owner = _owner(sock, path)
        if owner not in (os.geteuid(), 0):
            raise Untrusted(f"{path} belongs to user {owner}, who could read all that is sent")
    except (FileNotFoundError, ConnectionRefusedError) as fault:
        sock.close()
        raise NotRunning(f"no daemon listens at {path}; start one with `attar serve`") from fault
    except BaseException:
        sock.close()
        raise
    return sock


def _owner(sock: socket.socket, path: Path) -> int:
    if hasattr(socket, "SO_PEERCRED"):
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        return int(uid)
    found = os.stat(path)
    if not stat.S_ISSOCK(found.st_mode):
        raise Untrusted(f"{path} is no socket any more")
    return found.st_uid


def ensure_running(path: Path, start: Start, timeout: float) -> None:
    """Starts a daemon on `path` unless one listens there; it outlives this process."""
    try:
        connect_socket(path).close()
        return
    except NotRunning:
        if not start:
            raise
    command = [*(_SERVE if start is True else start), "--socket", os.fspath(path)]
    with tempfile.TemporaryFile() as log:
        try:
            # Not in our process group: Ctrl-C here ends an answer, not the daemon.
            daemon = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        except OSError as fault:
            raise NotRunning(f"cannot run {command[0]!r}: {fault}") from fault
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                connect_socket(path).close()
            except NotRunning:
                if (status := daemon.poll()) is not None:
                    log.seek(0)
                    said = log.read().decode(errors="replace").strip() or "it said nothing"
                    raise NotRunning(f"the daemon ended at once ({status}): {said}") from None
                time.sleep(_LOOK_EVERY)
            else:
                # Whenever it ends, no zombie of it is left.
                threading.Thread(target=daemon.wait, daemon=True).start()
                return
    daemon.terminate()
    daemon.wait()
    raise NotRunning(f"the daemon did not listen at {path} within {timeout:g} s")
