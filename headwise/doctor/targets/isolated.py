"""The server of `headwise.doctor.targets.isolate`. A fork of it sets its own limits, then imports, builds, diagnoses.

It writes to files its current step, its result, and, if it hangs or crashes, its current line.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn

import headwise.doctor.diagnosis  # noqa: F401 (what takes long to import, before any clock starts)
from headwise.doctor.targets.examine import examine, parse_spec
from headwise.doctor.targets.guessing import guessing
from headwise.doctor.targets.isolate import FORKS, Files, Request
from headwise.doctor.targets.load import parse
from headwise.errors import HeadwiseError
from headwise.language import packed, printable, sentence_of


def serve() -> None:
    """Run the request in each folder that standard input names; write two numbers for each, its process and exit code.

    Each runs in a fork of this process. Where there is no fork, this process runs the first one itself.
    """
    requests, reports = os.fdopen(os.dup(0), "rb", buffering=0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for line in iter(requests.readline, b""):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that have threads, none of which runs here
            pid = os.fork() if FORKS else 0
        if not pid:
            requests.close()
            os.close(reports)
            run(Path(os.fsdecode(line.rstrip(b"\n"))))
        os.write(reports, b"%d\n" % pid)
        os.write(reports, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def run(folder: Path) -> NoReturn:
    """Run the request in this folder, write the result there, and end the process."""
    files = Files(folder)
    try:
        if FORKS:
            os.setsid()
        with files.output.open("ab") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        written = json.loads(files.request.read_text(encoding="utf-8"))
        request = Request(**{**written, "settings": tuple(written["settings"]), "spec": tuple(written["spec"])})
        with files.stack.open("w", encoding="utf-8") as stack:
            faulthandler.enable(stack)
            faulthandler.dump_traceback_later(request.timeout + 0.5, file=stack)
            if hasattr(faulthandler, "register"):
                faulthandler.register(signal.SIGUSR1, stack)
            _limit_memory(request.memory)
            result = _result(request, files)
            faulthandler.cancel_dump_traceback_later()
        part = files.result.with_suffix(".part")
        part.write_text(json.dumps(result), encoding="utf-8")
        os.replace(part, files.result)
        code = 0
    except BaseException:
        sys.stderr.write(printable(traceback.format_exc()))
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # do not wait for threads that the module left behind


def _result(request: Request, files: Files) -> dict[str, Any]:
    def say(doing: str) -> None:
        files.doing.write_text(doing, encoding="utf-8")

    try:
        target = parse(request.target, request.settings)
        target = guessing(target) if request.guess else target
        found = examine(target, spec=parse_spec(request.spec), timeout=request.timeout, memory=request.memory, say=say)
    except HeadwiseError as error:
        return {"error": packed(sentence_of(error))}
    return {"diagnosis": packed(found.to_dict())}


def _limit_memory(memory: float) -> None:
    """Set the limit above the current usage, so that the memory of torch itself does not count."""
    try:
        import resource
    except ImportError:  # Windows
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + int(memory)
        with contextlib.suppress(ValueError, OSError):  # a lower limit, if there is one, stays
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
