"""The other process of `headwise.doctor.targets.isolate`: sets its own limits, then imports, builds and diagnoses.

It writes to files its current step, its result, and, if it hangs or crashes, its current line.
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

from headwise.doctor.targets.arguments import parse_setting  # noqa: F401 (the same)
from headwise.doctor.targets.examine import examine, parse_spec
from headwise.doctor.targets.guessing import guessing
from headwise.doctor.targets.isolate import Request, _Files
from headwise.doctor.targets.load import parse
from headwise.errors import HeadwiseError


def main(folder: str) -> None:
    """Run the request in this folder, and write the result there."""
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
    os._exit(0)  # do not wait for threads that the module left behind


def _result(request: Request, files: _Files) -> dict[str, Any]:
    def say(doing: str) -> None:
        files.doing.write_text(doing, encoding="utf-8")

    try:
        target = parse(request.target, request.settings)
        target = guessing(target) if request.guess else target
        found = examine(target, spec=parse_spec(request.spec), timeout=request.timeout, memory=request.memory, say=say)
    except HeadwiseError as error:
        return {"error": str(error)}
    return {"diagnosis": found.to_dict()}


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
