"""Lists every softmax that is multiplied with something, and its outcome, so that all possible attention is reported.

A softmax is listed when its result is multiplied with activations. Its outcome is one of four: it has a record
(`seen`), it was refused with a reason (`refused`), it was not understood (`missed`), or it is known to be something
else (`not attention`). A softmax that is not multiplied, such as a classifier's, is not listed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from headwise.records import CallSite

_HERE = Path(__file__).parent
_NOT_THE_MODEL = (str(Path(torch.__file__).parent), str(_HERE), str(_HERE.parent / "edits"), contextlib.__file__)
PART = "it is a part of an attention, another part of which was refused: a record would be of some rows alone"
_SOFTMAX = re.compile(r"softmax|attention")


class Softmax:
    """One softmax that the model called. All tensors that come from its weights refer to this one object."""

    def __init__(self) -> None:
        self.seen = ""  # the path of the module whose attention it is, if it is any; "edited" if an edit replaced it
        self.withdraw: list[Callable[[], None]] = []  # each function takes back a record that was made of this softmax
        self.again: list[Callable[[Any], None]] = []  # called when other parts of its weights multiply values
        self.used: Callable[[], Any] | None = None  # returns the weights that were first multiplied with values
        self.cells: Any = None  # its scores, where they may have to be read cell by cell (pieces.Cells)


class Ledger:
    """The lines of the coverage table of one `watch`, and the number of computations that each line stands for."""

    def __init__(self) -> None:
        self._lines: Counter[CallSite] = Counter()  # each with 0 calls
        self._names: weakref.WeakKeyDictionary[Softmax, str] = weakref.WeakKeyDictionary()  # its first name
        self._said: weakref.WeakKeyDictionary[Softmax, CallSite] = weakref.WeakKeyDictionary()

    def enter(self, line: CallSite, softmax: Softmax | None = None) -> None:
        """Count a computation under its outcome `line`; a later outcome of the same softmax replaces an earlier one."""
        if softmax is not None:
            self.strike(softmax)
            self._said[softmax] = line
            self._names[softmax] = line.name
        self._lines[line] += 1

    def strike(self, softmax: Softmax, name: str = "") -> None:
        """Take back the outcome of a softmax. `name`: the name of the record that replaces it; "" = none."""
        line = self._said.pop(softmax, None)
        if line is not None:
            self._lines[line] -= 1
            self._lines += Counter()  # drops a line without computations
        if name:
            self._names[softmax] = name

    def find_name(self, softmax: Softmax | None) -> str | None:
        """Return the name under which a softmax is listed in the coverage; None if it has no outcome."""
        return None if softmax is None else self._names.get(softmax)

    def sites(self) -> list[CallSite]:
        """Return the coverage's lines as call sites (places in the model's code), each with its number of calls."""
        return [dataclasses.replace(line, calls=n) for line, n in self._lines.items()]


def where() -> str:
    """Return the file and line in the model's code that called the current torch function: "x/modeling_x.py:120"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_MODEL):
        frame = frame.f_back
    return "" if frame is None else f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"


@functools.lru_cache(maxsize=256)
def _short(path: str) -> str:
    """Return a file's path relative to the folder from which it is imported."""
    roots = [root.rstrip("/") + "/" for root in sys.path if root]
    return path[max((len(root) for root in roots if path.startswith(root)), default=0) :]


def closed(names: dict[str, nn.Module]) -> Iterator[CallSite]:
    """Yield a call site for each module that may run attention in TorchScript code: nothing can be seen inside."""
    inside: list[str] = []
    of_class: dict[type, list[tuple[str, Any]]] = {}  # many modules are of few classes
    for name, module in names.items():
        if any(name.startswith(f"{outer}.") for outer in inside):
            continue
        if isinstance(module, torch.jit.ScriptModule):
            inside.append(name)
            if _SOFTMAX.search(_graph(module)):
                yield CallSite(name, "missed", 0, "a ScriptModule with a softmax: nothing can be seen inside")
            continue
        kind = type(module)
        if kind not in of_class:
            of_class[kind] = list(_scripted(vars(kind).values()))
        for called, function in (*of_class[kind], *_scripted(list(vars(module).values()))):
            if _SOFTMAX.search(_graph(function)):
                reason = f"it may call `{called}`, a scripted function with a softmax: nothing can be seen inside"
                yield CallSite(name, "missed", 0, reason)


def _graph(scripted: Any) -> str:
    try:
        return str(scripted.inlined_graph)
    except (AttributeError, RuntimeError):  # it has no forward
        return ""


def _scripted(functions: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the TorchScript functions among `functions` (attributes of a module), and functions that these call."""
    for function in functions:
        if isinstance(function, torch.jit.ScriptFunction):
            yield str(function.name), function
        elif hasattr(function, "__code__"):
            code, given = function.__code__, getattr(function, "__globals__", {})
            cells = zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False)
            with contextlib.suppress(ValueError):  # a variable that has no value yet
                given = {**given, **{name: cell.cell_contents for name, cell in cells}}
            for name in (*code.co_names, *code.co_freevars):
                if isinstance(given.get(name), torch.jit.ScriptFunction):
                    yield name, given[name]
