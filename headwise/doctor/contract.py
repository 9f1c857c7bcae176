"""The contract: what a module says of which query may see which key.

A spec counts most, then the given call, then code (options, constructor, names, what a plain call draws). Docstrings
and comments are no source. The laws compare the contract with what is observed.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling import claims
from headwise.doctor.calling.names import DOCUMENTS, STARTS, simple
from headwise.doctor.calling.signature import signature

if TYPE_CHECKING:
    from headwise.doctor.subject import Subject

WINDOW = re.compile(r"(^|_)(window|sliding|radius|look_?back|lookback|band|neighbou?rs?)(_|$)|window_?size|^left$")


@dataclasses.dataclass(frozen=True)
class Causal:
    """Whether it should be causal, and what says so, such as "class CausalSelfAttention"."""

    so: bool
    words: str


@dataclasses.dataclass(frozen=True)
class Window:
    """A window of so many keys. Whether the query itself counts is a convention, and no statement."""

    size: int
    name: str  # the attribute
    own: bool  # whether the module itself has it, not a part that it keeps
    switch: bool | None = None  # the value of an option that switches it, if there is one


@dataclasses.dataclass(frozen=True)
class Contract:
    """What a module says of itself. A field is None, or empty, where it says nothing."""

    causal: Causal | None
    window: Window | None
    documents: tuple[str, ...]  # arguments that tell which tokens of a row are one document


def read_contract(subject: Subject) -> Contract:
    """Read what a module says of itself."""
    return Contract(_causal(subject), _window(subject), _documents(subject))


def _causal(subject: Subject) -> Causal | None:
    face, spec = subject.interface, subject.spec
    if spec.causal is not None:
        return Causal(spec.causal, "stated")
    words = face.causal_claim or face.drawn
    if words:
        return Causal(True, words)
    switch = claims.causal_option(subject.module, face.flags)
    return Causal(False, f"{switch[0]} is False") if switch is not None and not switch[1] else None


def _window(subject: Subject) -> Window | None:
    """The attribute of the module, of its config or of a part that states the width of a window."""
    if subject.spec.window is not None:
        return Window(subject.spec.window, "left", True)
    held = list(attributes(subject.module))
    switches = [value for name, value, _ in held if isinstance(value, bool) and WINDOW.search(name)]
    switch = None if not switches else all(switches)
    for own in (True, False):
        for name, value, owner in held:
            mine = owner is subject.module or owner is getattr(subject.module, "config", None)
            if type(value) is int and value > 0 and mine == own and WINDOW.search(name) and "layer" not in name:
                return Window(value, name.lstrip("_"), own, switch)
    return None


def attributes(module: nn.Module) -> Iterator[tuple[str, Any, object]]:
    """The attributes of a module, its config, its parts, and the plain objects that they hold: name, value, owner."""
    for part in module.modules():
        if type(part).__module__.startswith("torch."):
            continue
        held = (
            x for x in vars(part).values() if hasattr(x, "__dict__") and not isinstance(x, (nn.Module, type, Tensor))
        )
        for owner in itertools.chain([part], (x for x in held if not callable(x))):
            yield from ((name, value, owner) for name, value in vars(owner).items())


def _documents(subject: Subject) -> tuple[str, ...]:
    """Arguments with the ids of documents, or where they begin; or positions that begin again in the given call."""
    face = subject.interface
    slots = {name for _, name in face.way.slots}
    args, kwargs = subject.example or ((), {})
    given = {**dict(zip(signature(subject.module).parameters, args, strict=False)), **kwargs}
    names = [name for name in dict.fromkeys((*face.roles, *given)) if name not in slots]
    found = tuple(name for name in names if DOCUMENTS.search(simple(name)) or STARTS.match(name.lower()))
    return found or tuple(name for name in names if "pos" in name.lower() and _begins_again(given.get(name)))


def _begins_again(x: object) -> bool:
    if not isinstance(x, Tensor) or x.is_floating_point() or x.dtype == torch.bool or x.ndim > 2 or x.numel() < 2:
        return False
    row = x.reshape(-1, x.shape[-1])[0]
    return bool((row[1:] == 0).any()) and bool((row[1:] > row[:-1]).any())
