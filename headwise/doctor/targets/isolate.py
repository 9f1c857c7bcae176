"""The diagnosis of code that may hang or crash: in a separate process with a time limit and a memory limit.

A module that hangs, crashes or exhausts memory is then reported as a finding. This protects from accidents only; it is
not a sandbox: the process can read and write files and use the network like its user.

Importing torch and the doctor takes seconds, so that one process, the server, does it once, and forks for each request.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.doctor.finding import Where
from headwise.doctor.limits import GIGABYTE, alone, crashes, hangs, too_large
from headwise.doctor.lines import users_line
from headwise.doctor.result import Diagnosis
from headwise.errors import DoctorError
from headwise.language import Sentence, unpacked

MEMORY = 8 * GIGABYTE  # in addition to what Python and torch need
TIMEOUT = 60.0
FORKS = sys.platform == "linux"  # elsewhere each request has a server of its own, which runs it itself
_START = 120.0  # seconds that Python and torch may take to start
_GRACE = 5.0  # seconds that the process has, after the time limit, to report by itself
_LOOK = 0.05  # seconds between two checks of the process
_COUNT = 0.5  # seconds between two searches for the processes that it started
_MARK = "HEADWISE_ISOLATED"  # in the environment of all that it starts


@dataclasses.dataclass(frozen=True)
class Request:
    """The job of the other process."""

    target: str  # file.py:Class
    settings: tuple[str, ...] = ()  # name=value, as they are typed
    spec: tuple[str, ...] = ()
    timeout: float = TIMEOUT  # seconds, from the import of the file on
    memory: float = MEMORY  # bytes
    guess: bool = False  # the arguments of the constructor that are missing


class Isolation:
    """Where modules are imported, built and diagnosed: a separate process for each.

    with Isolation() as isolation:
        isolation.diagnose(Request("my_model.py:MyAttention"))
    """

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Isolation:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def diagnose(self, request: Request) -> Diagnosis:
        """Raises DoctorError where `headwise.doctor.targets.load` or `diagnose` would."""
        with tempfile.TemporaryDirectory(prefix="headwise-") as folder:
            files = Files(Path(folder))
            files.request.write_text(json.dumps(dataclasses.asdict(request)), encoding="utf-8")
            server = self._server_for(files)
            pid = self._line(server, _START) if FORKS else server.pid
            if pid is None:
                return _diagnosis(request, files, server.poll() or "start")
            ended: int | str | None = None
            try:
                ended = self._watched(server, pid, files, request)
            finally:
                self._end(pid)
                # A server that forks says how each process ended; the next request needs one that is in step.
                if not FORKS or (not isinstance(ended, int) and self._line(server, _START) is None):
                    self._close()
            return _diagnosis(request, files, ended)

    def _server_for(self, files: Files) -> subprocess.Popen[bytes]:
        if self._server is None or self._server.poll() is not None:
            self._close()
            # Modules are found as in this process, not, as with `python -m`, first in the working directory.
            begin = (
                "import sys; sys.path[:] = sys.argv[1:]; from headwise.doctor.targets.isolated import serve; serve()"
            )
            with files.output.open("wb") as output:
                self._server = subprocess.Popen(
                    [sys.executable, "-c", begin, *sys.path],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    start_new_session=True,  # so that processes that it starts can be killed with it
                    env={**os.environ, _MARK: self._mark},  # and those that leave its session are found
                )
        assert self._server.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._server.stdin.write(os.fsencode(files.folder) + b"\n")
        return self._server

    def _line(self, server: subprocess.Popen[bytes], seconds: float) -> int | None:
        """The next number that the server writes; None if it does not come, or the server ended."""
        assert server.stdout is not None
        readable, _, _ = select.select([server.stdout], [], [], seconds)
        line = server.stdout.readline() if readable else b""
        return int(line) if line else None

    def _watched(self, server: subprocess.Popen[bytes], pid: int, files: Files, request: Request) -> int | str:
        """Wait until a process ends or reaches a limit. Returns its exit code, "time", "memory" or "start"."""
        begun, ready, counted = time.monotonic(), 0.0, 0.0
        base = 0.0  # bytes that it used before it ran the user's code
        others: set[int] = set()  # the processes that it started, in whatever session
        while True:
            code = self._line(server, _LOOK) if FORKS else server.poll()
            code = server.poll() if code is None else code  # the code may have ended the server
            if code is not None:
                return code
            now = time.monotonic()
            if not ready and files.doing.exists():
                ready, base = now, _memory(pid)
            if not ready:
                if now - begun > _START:
                    return "start"
            elif now - ready > request.timeout + _GRACE:
                return self._asked(pid, "time")
            else:
                if now - counted > _COUNT:
                    counted, others = now, _marked(self._mark) - {pid, server.pid}
                if sum(map(_memory, (pid, *others))) - base > request.memory:
                    return self._asked(pid, "memory")
            if not FORKS:
                time.sleep(_LOOK)

    def _asked(self, pid: int, why: str) -> str:
        """Ask a process for its current line: faulthandler writes the stack, even of a busy process."""
        if hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
                time.sleep(0.3)
        return why

    def _end(self, pid: int) -> None:
        """Kill a process and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(pid, signal.SIGKILL)  # its group: also the processes that it started
            else:
                os.kill(pid, signal.SIGTERM)
        for _ in range(10):  # one may start another meanwhile
            others = _marked(self._mark) - {self._server.pid if FORKS and self._server else 0}
            if not others:
                break
            for each in others:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(each, signal.SIGKILL)
            time.sleep(_LOOK)

    def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.kill()
            with server:  # closes its pipes, and waits
                self._end(server.pid)


def _diagnosis(request: Request, files: Files, ended: int | str | None) -> Diagnosis:
    """What the process reported, or a finding about how it ended: its exit code, or the limit that it reached."""
    words = [x.strip() for x in files.read(files.output, 4000, end=True).splitlines() if x.strip()]
    last = Sentence(" (its last line: {line!r})").format(line=words[-1][:200]) if words else ""
    if ended == "start":
        told = Sentence("the process for --isolate did not start within {seconds:g} seconds{last}")
        raise DoctorError(told.format(seconds=_START, last=last))
    doing, how = _read_doing(files), Sentence("")
    if isinstance(ended, int):
        if (result := files.read_result()) is not None:
            try:
                if "error" in result:
                    raise DoctorError(unpacked(result["error"]))
                return Diagnosis.from_dict(unpacked(result["diagnosis"]))
            except (KeyError, TypeError, AttributeError):  # not written by the doctor
                how = Sentence("it overwrote the doctor's result")
        if not doing:
            raise DoctorError("the process for --isolate could not start{last}", last=last)
        how = how or _how(ended)
        return alone(request.target, crashes(Sentence("{how}{last}").format(how=how, last=last), files.where(), doing))
    finding = hangs(request.timeout, files.where(), doing)
    return alone(request.target, too_large(request.memory, files.where(), doing) if ended == "memory" else finding)


def _read_doing(files: Files) -> str:
    """What the process did last, as `examine` said it."""
    text = files.read(files.doing).strip()
    what, _, name = text.partition(" of ")
    known = what in ("the import", "the constructor")
    return Sentence(f"{what} of {{name}}").format(name=name) if known else text


def _how(code: int) -> Sentence:
    if code >= 0:
        return Sentence("it ended the process with exit code {code}").format(code=code)
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    killed = ", which usually means that the machine ran out of memory" if name == "SIGKILL" else ""
    return Sentence("it ended the process with {name}{killed}").format(name=name, killed=killed)


class Files:
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
        stacks: list[list[tuple[str, int]]] = []
        for line in self.read(self.stack).splitlines():
            if line.startswith('  File "') and stacks:
                file, _, rest = line.removeprefix('  File "').rpartition('", line ')
                number = rest.partition(" ")[0]
                stacks[-1] += [(file, int(number))] if number.isdigit() else []
            elif not line.startswith(" "):
                stacks.append([])
        # The main thread's is the last one of a dump.
        return next(filter(None, map(users_line, reversed(stacks))), None)


def _marked(mark: str) -> set[int]:
    """The running processes whose environment has this mark: all that a process started, in any session. Linux only."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.add(int(path.parent.name))
    return found


def _memory(pid: int) -> float:
    """The memory that a process has for itself, in bytes; 0 if that cannot be found out."""
    try:
        if sys.platform == "linux":
            fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
            return float(int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
        if sys.platform == "darwin":
            shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
            return float(shown.stdout) * 1024
    except (OSError, ValueError, IndexError, subprocess.CalledProcessError):
        pass
    return 0.0
