"""The diagnosis of code that may hang or crash: in a separate process with a time limit and a memory limit.

A module that hangs, crashes or exhausts memory is then reported as a finding. This protects from accidents only; it is
not a sandbox: the process can read and write files and use the network like its user.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.doctor.finding import Finding, Where
from headwise.doctor.limits import GIGABYTE, alone, crashes, hangs, too_large
from headwise.doctor.lines import is_users, line_of
from headwise.doctor.result import Diagnosis
from headwise.errors import DoctorError

MEMORY = 8 * GIGABYTE  # in addition to what Python and torch need
TIMEOUT = 60.0
_START = 120.0  # seconds that Python and torch may take to start
_GRACE = 5.0  # seconds that the process has, after the time limit, to report by itself
_LOOK = 0.05  # seconds between two checks of the process
_COUNT = 0.5  # seconds between two searches for the processes that it started
_MARK = "HEADWISE_ISOLATED"  # in the environment of all that it starts
_ON_POSIX = os.name == "posix"


@dataclasses.dataclass(frozen=True)
class Request:
    """The job of the other process."""

    target: str  # file.py:Class
    settings: tuple[str, ...] = ()  # name=value, as they are typed
    spec: tuple[str, ...] = ()
    timeout: float = TIMEOUT  # seconds, from the import of the file on
    memory: float = MEMORY  # bytes
    guess: bool = False  # the arguments of the constructor that are missing


def diagnose_isolated(request: Request) -> Diagnosis:
    """Import, build and diagnose a module in a separate process.

    Raises DoctorError where `headwise.doctor.targets.load` or `diagnose` would.
    """
    with tempfile.TemporaryDirectory(prefix="headwise-") as folder:
        child = _Child(Path(folder), request)
        with child:
            ended = child.wait()
        return child.diagnosis(ended)


class _Child:
    """The process, and the files through which it reports its result, its current step and its current line."""

    def __init__(self, folder: Path, request: Request) -> None:
        self._request = request
        self._files = _Files(folder)
        self._base = 0.0  # bytes that it used before it ran the user's code
        self._mark = secrets.token_hex(16)
        self._counted = 0.0  # when its processes were searched for
        self._others: list[int] = []  # those that it started, in whatever session
        self._files.request.write_text(json.dumps(dataclasses.asdict(request)), encoding="utf-8")

    def __enter__(self) -> _Child:
        # Modules are found as in this process, not, as with `python -m`, first in the working directory.
        begin = (
            "import sys; sys.path[:] = sys.argv[2:]; from headwise.doctor.targets.isolated import main; "
            "main(sys.argv[1])"
        )
        with self._files.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", begin, str(self._files.folder), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that processes that it starts can be killed with it
                env={**os.environ, _MARK: self._mark},  # and those that leave its session are found
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def wait(self) -> str:
        """Wait until it ends or reaches a limit. Returns "ended", "time", "memory" or "start"."""
        begun = time.monotonic()
        ready: float | None = None
        while self._process.poll() is None:
            now = time.monotonic()
            if ready is None and self._files.doing.exists():
                ready = now
                self._base = _memory(self._process.pid) or 0.0
            if ready is None and now - begun > _START:
                return self._stop("start")
            if ready is not None and now - ready > self._request.timeout + _GRACE:
                return self._stop("time")
            if ready is not None and now - self._counted > _COUNT:
                self._counted, self._others = now, _started(self._mark, self._process.pid)
            taken = sum(_memory(pid) or 0.0 for pid in (self._process.pid, *self._others))
            if ready is not None and taken - self._base > self._request.memory:
                return self._stop("memory")
            time.sleep(_LOOK)
        return "ended"

    def diagnosis(self, ended: str) -> Diagnosis:
        if ended == "start":
            raise DoctorError(f"the process for --isolate did not start within {_START:g} seconds{self._last_words()}")
        if ended == "ended" and (result := self._files.read_result()) is not None:
            if "error" in result:
                raise DoctorError(str(result["error"]))
            try:
                return Diagnosis.from_dict(result["diagnosis"])
            except (KeyError, TypeError, AttributeError):  # not written by the doctor
                return alone(self._request.target, self._crash("it overwrote the doctor's result"))
        if ended == "ended" and not self._files.doing.exists():
            raise DoctorError(f"the process for --isolate could not start{self._last_words()}")
        return alone(self._request.target, {"time": self._hang, "memory": self._memory, "ended": self._crash}[ended]())

    @property
    def _doing(self) -> str:
        return self._files.read(self._files.doing).strip() or "the process"

    def _hang(self) -> Finding:
        return hangs(self._request.timeout, self._files.where(), self._doing)

    def _memory(self) -> Finding:
        return too_large(self._request.memory, self._files.where(), self._doing)

    def _crash(self, how: str = "") -> Finding:
        code = self._process.returncode
        if not how and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            how = f"it ended the process with {name}"
            if name == "SIGKILL":
                how += ", which usually means that the machine ran out of memory"
        how = how or f"it ended the process with exit code {code}"
        return crashes(how + self._last_words(), self._files.where(), self._doing)

    def _last_words(self) -> str:
        lines = [x.strip() for x in self._files.read(self._files.output, 4000, end=True).splitlines() if x.strip()]
        return f" (its last line: {lines[-1][:200]!r})" if lines else ""

    def _stop(self, why: str) -> str:
        """Ask for its current line, then kill it."""
        if hasattr(signal, "SIGUSR1") and self._files.doing.exists():
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGUSR1)  # faulthandler writes the stack, even of a busy process
                time.sleep(0.3)
        self._end()
        return why

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if _ON_POSIX:
                os.killpg(self._process.pid, signal.SIGKILL)  # its group: also the processes that it started
            else:
                self._process.kill()
        self._process.wait()
        for _ in range(10):  # one may start another meanwhile
            others = _started(self._mark, self._process.pid)
            if not others:
                break
            for pid in others:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK)


class _Files:
    """The files that parent and child share. What the child writes is not trusted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.request = folder / "request.json"
        self.result = folder / "result.json"
        self.doing = folder / "doing.txt"
        self.stack = folder / "stack.txt"
        self.output = folder / "output.txt"

    def read(self, path: Path, limit: int = 200_000, *, end: bool = False) -> str:
        with contextlib.suppress(OSError), path.open("rb") as file:
            if end:
                file.seek(max(path.stat().st_size - limit, 0))
            return file.read(limit).decode("utf-8", "replace")
        return ""

    def read_result(self) -> Mapping[str, Any] | None:
        try:
            result = json.loads(self.read(self.result, 50_000_000))
        except ValueError:
            return None
        return result if isinstance(result, dict) and result.keys() & {"error", "diagnosis"} else None

    def where(self) -> Where | None:
        """The innermost line of the user's code in the last stack that faulthandler wrote."""
        stacks = re.split(r"^(?=(?:Fatal|Timeout|Current thread|Thread) )", self.read(self.stack), flags=re.MULTILINE)
        for stack in reversed(stacks):  # the main thread's is the last one of a dump
            for file, line in re.findall(r'^  File "(.+)", line (\d+) in ', stack, re.MULTILINE):
                if is_users(file):
                    return line_of(file, int(line))
        return None


def _started(mark: str, besides: int) -> list[int]:
    """The running processes whose environment has this mark: all that a process started, in any session. Linux only."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ") if sys.platform == "linux" else ():
        pid = int(path.parent.name)
        with contextlib.suppress(OSError):
            if pid != besides and mark.encode() in path.read_bytes():
                found.append(pid)
    return found


def _memory(pid: int) -> float | None:
    """The memory that a process uses, in bytes; None if that cannot be found out."""
    try:
        if sys.platform == "linux":
            fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
            return float(fields[1]) * os.sysconf("SC_PAGE_SIZE")
        if sys.platform == "darwin":
            shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
            return float(shown.stdout) * 1024
    except (OSError, ValueError, IndexError, subprocess.CalledProcessError):
        pass
    return None
