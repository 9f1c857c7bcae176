"""Every error headwise raises on purpose.

    HeadwiseError
    ├── ArgumentError   (ValueError)        an argument's value makes no sense
    │   ├── ShapeError                      its shape does not fit the others
    │   └── MaskError                       a mask that cannot be made, or cannot meet these lengths
    ├── DtypeError      (TypeError)         an argument of the wrong kind: dtype, device or class
    ├── KernelRefused   (RuntimeError)      the kernel asked for cannot run this call
    ├── CacheError      (ValueError)        a cache of another module or batch, or one that is full
    ├── RecordError     (ValueError)        a record cannot represent or answer this
    ├── CheckpointError (ValueError)        a checkpoint is missing, damaged or of another architecture
    ├── TrainingError   (RuntimeError)      a training cannot go on
    │   └── TrainingInterrupted             it was told to stop, and is saved
    ├── DoctorError     (RuntimeError)      the doctor cannot find out how to call a module
    ├── WorksheetError  (ValueError)        a computation that a worksheet cannot show
    ├── ExportError     (RuntimeError)      an export that cannot be made, or that computes something else
    ├── RequestRefused  (RuntimeError)      a request that the server does not answer; `kind` says why
    └── FileError       (OSError)           a file cannot be read or written

Each is also the built-in error a caller would expect, so `except ValueError` keeps working. A message says what
happened, what was expected, what was received, and what to do.
"""

from __future__ import annotations

from typing import Any, Literal


class HeadwiseError(Exception):
    """The root: everything headwise raises on purpose."""


class ArgumentError(HeadwiseError, ValueError):
    """An argument's value makes no sense."""


class ShapeError(ArgumentError):
    """An argument's shape does not fit the others."""


class MaskError(ArgumentError):
    """A mask that cannot be made, or that cannot meet the lengths of a call."""


class DtypeError(HeadwiseError, TypeError):
    """An argument of the wrong kind: dtype, device or class."""


class KernelRefused(HeadwiseError, RuntimeError):  # noqa: N818 (a refusal, not a failure)
    """The kernel that was asked for cannot run this call; the message says why."""


class CacheError(HeadwiseError, ValueError):
    """A cache that belongs to another module or batch, or that has no room left."""


class RecordError(HeadwiseError, ValueError):
    """A record cannot represent this call, or cannot answer this question."""


class CheckpointError(HeadwiseError, ValueError):
    """A checkpoint is missing, damaged, or of an architecture that was not expected."""


class TrainingError(HeadwiseError, RuntimeError):
    """A training that cannot go on: its loss is not finite, or it was interrupted."""


class TrainingInterrupted(TrainingError):  # noqa: N818 (told to stop, not a failure)
    """A training that was told to stop, by Ctrl-C; the message says how to go on with it."""


class DoctorError(HeadwiseError, RuntimeError):
    """A module cannot be loaded, called or understood; the message says what was tried."""


class WorksheetError(HeadwiseError, ValueError):
    """A computation that a worksheet cannot show: too large to read, or of a kind that it does not know."""


class ExportError(HeadwiseError, RuntimeError):
    """A model that cannot be exported so, or an export that does not compute what the model does."""


RefusalKind = Literal["bad_input", "unauthorized", "not_found", "too_large", "busy", "unavailable", "timeout", "failed"]


class RequestRefused(HeadwiseError, RuntimeError):  # noqa: N818 (a refusal, not a failure)
    """A request that the server does not answer. Each protocol has a code of its own for each kind.

    Args:
        kind: "bad_input"; "unauthorized"; "not_found", no such model or version; "too_large"; "busy", the queue is
            full; "unavailable", still starting, already stopping, or its worker died; "timeout"; "failed", the
            server's own fault.
        message: a sentence for the client.
        retry_after: seconds after which to try again, where that makes sense.
    """

    def __init__(self, kind: RefusalKind, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(kind, message, retry_after)  # so that it survives pickling
        self.kind, self.message, self.retry_after = kind, message, retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return _refused, (self.kind, self.message, self.retry_after)

    def __str__(self) -> str:
        return self.message


def _refused(kind: RefusalKind, message: str, retry_after: float | None) -> RequestRefused:
    return RequestRefused(kind, message, retry_after=retry_after)


class FileError(HeadwiseError, OSError):
    """A file cannot be read or written."""
