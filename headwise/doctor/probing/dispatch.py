"""A mode that sees torch's operations without torch's compiler, whose import takes seconds."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Dispatching(TorchDispatchMode):
    """A TorchDispatchMode whose `__torch_dispatch__` stays as it is written.

    torch wraps that of a subclass so that it is not compiled, and imports the compiler for it at the first operation.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        written = cls.__dict__.get("__torch_dispatch__")
        super().__init_subclass__(**kwargs)
        if written is not None:
            cls.__torch_dispatch__ = written  # type: ignore[method-assign]
