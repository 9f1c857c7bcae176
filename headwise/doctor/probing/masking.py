"""Masks that hide some keys, for `Interface.run` and for one argument of a module; and parts that no mask stops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling import names
from headwise.doctor.calling.mask_input import Form, MaskInput, encode

if TYPE_CHECKING:
    from headwise.doctor.calling.interface import Inputs, Interface

FORMS: tuple[tuple[Form, torch.dtype], ...] = (
    *(("allowed", torch.bool), ("forbidden", torch.bool)),
    *(("allowed", torch.float32), ("forbidden", torch.float32), ("additive", torch.float32)),
)


def each(masks: Iterable[MaskInput]) -> list[MaskInput]:
    """The best form of every argument."""
    best: dict[str, MaskInput] = {}
    for mask in sorted(masks, key=lambda x: not x.works):
        best.setdefault(mask.parameter, mask)
    return list(best.values())


def hide(inputs: Inputs, *keys: int, example: int | None = None, own: bool = False) -> Tensor:
    """[B, Q, K], True = may attend: all but these keys, in one example or in all. `own`: of the queries."""
    batch, queries = inputs.query.shape[:2]
    allowed = torch.ones(batch, queries, queries if own else inputs.key_length, dtype=torch.bool)
    examples = slice(None) if example is None else slice(example, example + 1)
    for key in keys:
        allowed[examples, :, key] = False
    return allowed


def about_memory(interface: Interface, name: str) -> bool | None:
    """Whether a mask is, by its name, for the memory (True), for the queries' own tokens (False), or neither: by the
    name of the input that it begins with, or else by its words.
    """
    for role, slot in interface.way.slots:
        if name == f"{slot}_mask" or (len(slot) > 1 and name.startswith(f"{slot}_")):
            return role != "query" if interface.takes != "self" else None
    words = names.simple(name).split("_")
    if {"q", "query", "queries"} & {*words}:
        return False
    if words in (["value", "mask"], ["values", "mask"]):  # Keras's name
        return True
    return names.about_memory(name)


def left_padding(inputs: Inputs) -> Tensor:
    """[B, K], True = a real token: the first two tokens of example 1 are padding."""
    real = hide(inputs)[:, 0].clone()
    real[1, :2] = False
    return real


def hiding(inputs: Inputs, *keys: int, example: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of `Probe.run` that hide these keys from every query: as a mask of cells, and as padding."""
    allowed = hide(inputs, *keys, example=example)
    return {"allowed": allowed}, {"padding": allowed[:, 0]}


def given(interface: Interface, mask: MaskInput, inputs: Inputs, *keys: int) -> dict[str, Any]:
    """The arguments of forward with which this one mask hides these keys. DoctorError if it cannot express that."""
    allowed = hide(inputs, *keys, own=mask.own)
    laid = allowed[:, 0] if mask.what == "keys" else allowed
    return {mask.parameter: mask.value(laid, interface.heads or 1, inputs.query.dtype)}


def every_form(inputs: Inputs, forms: Iterable[tuple[Form, torch.dtype]] = FORMS) -> Iterator[Tensor]:
    """A mask that hides key 1, in each of these forms, and in every usual shape."""
    cells = hide(inputs, 1)
    keys = cells[:, 0]
    for form, dtype in forms:
        for allowed in (keys, keys[:, None, None], cells[0], cells, cells[:, None]):
            yield encode(allowed, form, dtype)


def convolving(module: nn.Module) -> list[nn.Module]:
    """The parts that bring the numbers of one token to another, and are no attention."""
    kinds = (nn.RNNBase, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return [x for x in module.modules() if isinstance(x, kinds) and set(getattr(x, "kernel_size", (0,))) != {1}]
