"""Every error that headwise raises on purpose.

    HeadwiseError
    ├── ArgumentError   (ValueError)        an argument has an invalid value
    │   ├── ShapeError                      its shape does not fit the other arguments
    │   └── MaskError                       a mask is invalid, or does not fit the lengths of a call
    ├── DtypeError      (TypeError)         an argument has the wrong dtype, device or class
    ├── ProjectionError (RuntimeError)      weights of an attention cannot be found in its model
    ├── KernelRefused   (RuntimeError)      the requested kernel does not support this call
    ├── ChangedError    (RuntimeError)      an argument was changed in place before backward, which reads it again
    ├── EditRefused     (RuntimeError)      an attention that an edit means cannot be edited
    ├── CacheError      (ValueError)        a cache is full, or belongs to another module or batch
    ├── RecordError     (ValueError)        a record cannot represent this call or answer this question
    ├── CheckpointError (ValueError)        a checkpoint is missing, damaged or of another architecture
    ├── TrainingError   (RuntimeError)      a training cannot continue
    │   └── TrainingInterrupted             a training was stopped, and its state is saved
    ├── ParallelError   (RuntimeError)      processes that share a sequence do not agree, or one of them is gone
    ├── DoctorError     (RuntimeError)      the doctor cannot find out how to call a module
    ├── WorksheetError  (ValueError)        a worksheet cannot show this computation
    ├── ExportError     (RuntimeError)      an export failed, or its outputs differ from those of the model
    ├── RequestRefused  (RuntimeError)      the server does not answer a request; `kind` says why
    └── FileError       (OSError)           a file cannot be read or written

Each error is also the built-in error that a caller would expect, so `except ValueError` keeps working. Every message
has one form: what happened, what was expected, `Received: name=value`, and what to do.
"""

from __future__ import annotations

from typing import Any, Literal

from headwise.language import Told


def brief(value: object, longest: int = 80) -> str:
    """Return the repr of a value, for a message; a long repr is cut, and ends in "…"."""
    return shortened(repr(value), longest)


def shortened(text: str, longest: int) -> str:
    """Cut a text to at most `longest` characters; a cut text ends in "…"."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


class HeadwiseError(Told):
    """The base class of every error that headwise raises on purpose."""


class ArgumentError(HeadwiseError, ValueError):
    """An argument has an invalid value."""


class ShapeError(ArgumentError):
    """The shape of an argument does not fit the other arguments."""


class MaskError(ArgumentError):
    """A mask is invalid, or does not fit the lengths of a call."""


class DtypeError(HeadwiseError, TypeError):
    """An argument has the wrong dtype, device or class."""


class EditRefused(HeadwiseError, RuntimeError):  # noqa: N818 (a refusal, not a failure)
    """An attention that an edit selects cannot be edited; the message says which and why."""


class ProjectionError(HeadwiseError, RuntimeError):
    """The weights that an experiment needs cannot be found in the model; the message says which."""


class KernelRefused(HeadwiseError, RuntimeError):  # noqa: N818 (a refusal, not a failure)
    """The requested kernel does not support this call; the message says why."""


class ChangedError(HeadwiseError, RuntimeError):
    """An argument was changed in place after forward, but backward reads it again; the message names the argument."""


class CacheError(HeadwiseError, ValueError):
    """A cache is full, or belongs to another module or batch."""


class RecordError(HeadwiseError, ValueError):
    """A record of a call cannot represent this call or answer this question."""


class CheckpointError(HeadwiseError, ValueError):
    """A checkpoint is missing, damaged, or of another architecture than expected."""


class TrainingError(HeadwiseError, RuntimeError):
    """A training cannot continue: its loss is not finite, or it was interrupted."""


class TrainingInterrupted(TrainingError):  # noqa: N818 (told to stop, not a failure)
    """A training was stopped with Ctrl-C or a signal; the message says how to resume it."""


class ParallelError(HeadwiseError, RuntimeError):
    """Processes that share a sequence do not agree, or one of them is gone."""


class DoctorError(HeadwiseError, RuntimeError):
    """The doctor cannot load or call a module; the message says what was tried."""


class WorksheetError(HeadwiseError, ValueError):
    """A worksheet cannot show this computation: it is too large, or its kind is not supported."""


class ExportError(HeadwiseError, RuntimeError):
    """A model cannot be exported in this way, or the export computes something else than the model."""


RefusalKind = Literal["bad_input", "unauthorized", "not_found", "too_large", "busy", "unavailable", "timeout", "failed"]


class RequestRefused(HeadwiseError, RuntimeError):  # noqa: N818 (a refusal, not a failure)
    """The server does not answer a request. Each protocol maps each kind to its own status code.

    Args:
        kind: "bad_input"; "unauthorized"; "not_found": no such model or version; "too_large"; "busy": the queue is
            full; "unavailable": the server is starting or stopping, or its worker died; "timeout"; "failed": an
            internal error of the server.
        message: a sentence for the client.
        retry_after: seconds after which the client may try again; None if a retry does not help.
    """

    def __init__(self, kind: RefusalKind, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(kind, message, retry_after)  # needed for pickling
        self.kind, self.message, self.retry_after = kind, message, retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return _refused, (self.kind, self.message, self.retry_after)

    def __str__(self) -> str:
        return self.message


def _refused(kind: RefusalKind, message: str, retry_after: float | None) -> RequestRefused:
    return RequestRefused(kind, message, retry_after=retry_after)


class FileError(HeadwiseError, OSError):
    """A file cannot be read or written."""


__all__ = sorted(name for name, x in list(globals().items()) if isinstance(x, type) and issubclass(x, HeadwiseError))


def __dir__() -> list[str]:
    return __all__
