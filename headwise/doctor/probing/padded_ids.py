"""Token ids of which some are padding, for modules that make their masks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headwise.doctor.calling.copying import at_rest
from headwise.doctor.calling.token_ids import is_on_embeddings
from headwise.doctor.calling.way import tensors_in
from headwise.doctor.probing.probe import quiet

if TYPE_CHECKING:
    from headwise.doctor.patient import Patient


def pads(module: nn.Module) -> dict[tuple[str, str], int]:
    """The ids of padding that the module and its parts hold: (path, attribute) -> id."""
    return {
        (path, name): value
        for path, part in module.named_modules()
        if not type(part).__module__.startswith("torch.")
        for name, value in vars(part).items()
        if type(value) is int and value >= 0 and _is_pad(name)
    }


def _is_pad(name: str) -> bool:
    """Whether an attribute is called `pad_idx`, `src_pad_token_id` or the like."""
    name = name.lower().replace("_", "").replace("token", "").replace("padding", "pad")
    return name.endswith(("padid", "padidx", "padindex"))


def real_ids(module: nn.Module, pads: set[int], length: int) -> Tensor:
    """[2, N]: ids that are no padding; 0, and the last of the smallest table, are used only if there are no others."""
    below = min(part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding))
    usual = [i for i in range(1, below - 1) if i not in pads] or [i for i in range(below) if i not in pads] or [0]
    return torch.tensor([[usual[(5 * b + 3 * i + 1) % len(usual)] for i in range(length)] for b in range(2)])


def pad_of(module: nn.Module) -> int:
    """The id of padding: one that the module holds, or that of its table, or 0."""
    held = [*pads(module).values(), *(x for x in (getattr(module, "pad", None),) if type(x) is int and x >= 0)]
    tables = [x.padding_idx for x in module.modules() if isinstance(x, nn.Embedding) and x.padding_idx is not None]
    return next(iter([*held, *tables]), 0)


def padded_from(patient: Patient, place: slice, length: int) -> tuple[Tensor, Tensor, int] | None:
    """Ids [2, N] without padding, the same with padding in this place of the first row, and the id of padding; None if
    the module takes no ids.
    """
    if not is_on_embeddings(patient.module):
        return None
    pad = pad_of(patient.original)
    ids = real_ids(patient.original, {pad}, patient.interface.length or length)
    padded = ids.clone()
    padded[0, place] = pad
    return ids, padded, pad


def answers(patient: Patient, *calls: Tensor) -> list[Tensor] | None:
    """What a copy of the module as it was given returns for ids, one call after the other; None if it takes no ids, or
    if a call raises, such as one that needs another argument.
    """
    if not is_on_embeddings(patient.module):
        return None
    module = at_rest(patient.original).cpu()
    names = [name for _, name in patient.interface.way.slots if not name[0].isdigit() and "." not in name]
    try:
        with quiet(), torch.no_grad():
            return [next(x for _, x in tensors_in(module(**dict.fromkeys(names, ids)))) for ids in calls]
    except Exception:
        return None
