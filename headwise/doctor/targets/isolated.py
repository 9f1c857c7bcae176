"""The other process of `headwise.doctor.targets.isolate`: sets its own limits, then imports, builds and diagnoses.

It says in files what it is doing, what came of it, and, where it is stuck or dies, the line it was at.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 (what takes long to import, before the clock starts)

from headwise.doctor.targets.arguments import parse_setting  # noqa: F401 (the same)
from headwise.doctor.targets.examine import examine, parse_spec
from headwise.doctor.targets.isolate import Request, _Files
from headwise.doctor.targets.load import parse
from headwise.errors import HeadwiseError


def main(folder: str) -> None:
    """Do what the request in this folder says, and leave the result there."""
    files = _Files(Path(folder))
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
    sys.stdout.flush()
    os._exit(0)  # threads that the module left behind are not waited for


def _result(request: Request, files: _Files) -> dict[str, Any]:
    def say(doing: str) -> None:
        files.doing.write_text(doing, encoding="utf-8")

    try:
        target = parse(request.target, request.settings)
        found = examine(target, spec=parse_spec(request.spec), timeout=request.timeout, memory=request.memory, say=say)
    except HeadwiseError as error:
        return {"error": str(error)}
    return {"diagnosis": found.to_dict()}


def _limit_memory(memory: float) -> None:
    """Over what the process has by now, so that what torch itself takes does not count."""
    try:
        import resource
    except ImportError:  # Windows
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + int(memory)
        with contextlib.suppress(ValueError, OSError):  # a limit that is lower already stays
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
