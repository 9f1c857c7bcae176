"""Runs a program for a limited time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Literal

Outcome = Literal["done", "failed", "out of time"]


def run_limited(
    command: Sequence[str], limit: float, *, said: IO[bytes] | None = None, at: Path | None = None
) -> Outcome:
    """Run a command in the folder `at` for at most `limit` seconds; what it says goes into a file, if one is given.

    What the command started ends with it.
    """
    process = subprocess.Popen(command, stdout=said, stderr=said, cwd=at, start_new_session=True)
    try:
        return "failed" if process.wait(max(0.0, limit)) else "done"
    except subprocess.TimeoutExpired:
        return "out of time"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
