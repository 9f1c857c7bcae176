"""Logs: one JSON line per request and per error.

No line contains what a client sent: no text, no path, no query. Error messages may quote a row, so an unexpected error
is logged only with its class and the lines of code that it came through.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import datetime, timezone
from typing import Any, TextIO

from headwise.language import printable

logger = logging.getLogger("headwise.server")
NAMES = (logger.name, "uvicorn", "grpc", "asyncio", "kserve", "fastapi")  #: loggers that write here


def set_up(stream: TextIO | None = None, *, debug: bool = False) -> None:
    """Send the log lines of the server, and the warnings of its packages, to `stream` (default: standard error).

    With `debug`, errors are logged with messages and full tracebacks, which may quote what clients sent.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Lines(debug))
    for name in NAMES:
        other = logging.getLogger(name)
        other.handlers, other.propagate = [handler], False
        other.setLevel(logging.INFO if other is logger else logging.WARNING)


def told(level: int, event: str, error: BaseException | None = None, **fields: Any) -> None:
    """Write a log line about this event. `fields` that are None are left out."""
    if logger.isEnabledFor(level):
        logger.log(level, event, exc_info=error, extra={"fields": fields})


def raised_at(error: BaseException) -> list[str]:
    """Return the last lines of code (up to 6) on the way of an error: "file:line function".

    The log may contain only these lines and the class of the error, not its message.
    """
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


class _Lines(logging.Formatter):
    def __init__(self, debug: bool) -> None:
        super().__init__()
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": time.replace("+00:00", "Z"), "level": record.levelname.lower()}
        if record.name == logger.name:
            line["event"] = record.getMessage()
        else:  # asyncio's messages about tasks continue with their arguments
            line |= {"event": record.name, "says": record.getMessage().partition("\n")[0]}
        line |= {name: value for name, value in getattr(record, "fields", {}).items() if value is not None}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line |= {"error": type(error).__name__, "at": raised_at(error)}
            if self._debug:
                line["traceback"] = "".join(traceback.format_exception(error))
        return printable(json.dumps(line, ensure_ascii=False))
