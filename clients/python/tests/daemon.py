"""A daemon for tests: the program that `$ATTAR` names, with a tiny random model."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import attar_client
from attar_client._daemon import connect_socket

ATTAR = os.environ.get("ATTAR") or shutil.which("attar")
MODEL = Path(__file__).parents[3] / "fixtures" / "model" / "tiny-qwen2.gguf"

#: More tokens than the context has, which is where text of the tiny model ends.
ENDLESS = 1_000_000
#: With this its text is more than blanks, which are held back until something follows.
LIVELY: attar_client.types.Sampling = {"temperature": 0.7, "seed": 1}


def user(text: str) -> attar_client.Message:
    return {"role": "user", "content": text}


class Home:
    """A folder in which daemons live, one after another."""

    def __init__(self) -> None:
        if ATTAR is None:
            raise unittest.SkipTest("name the program to test against: ATTAR=path/to/attar")
        self.attar = os.path.abspath(ATTAR)
        # A socket's path must be short, which $TMPDIR need not be.
        self._folder = tempfile.TemporaryDirectory(prefix="attar-", dir="/tmp")
        self.socket = Path(self._folder.name) / "attar.sock"
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        """The command of a daemon here, less its socket."""
        data = os.path.join(self._folder.name, "data")
        model = os.fspath(MODEL)
        return [self.attar, "serve", "--data-dir", data, "--model", model, "--threads", "1"]

    def start(self) -> None:
        command = [*self.command, "--socket", os.fspath(self.socket)]
        self._daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while True:
            try:
                connect_socket(self.socket).close()
                return
            except attar_client.errors.NotRunning:
                if self._daemon.poll() is not None:
                    raise RuntimeError("the daemon ended at once") from None
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._daemon is not None:
            self._daemon.send_signal(how)
            self._daemon.wait()
            self._daemon = None

    @staticmethod
    def has_ended(pid: int) -> bool:
        """Whether a daemon that was told to shut down is gone."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    def remove(self) -> None:
        self.stop(signal.SIGKILL)
        self._folder.cleanup()
