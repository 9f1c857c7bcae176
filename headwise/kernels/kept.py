"""Checks that backward reads the same numbers as forward; the error names the argument that was changed in between.

Kernels keep the tables that they make of a mask, so that a change of the mask does not matter. Other tensors are saved
by autograd, which counts changes of a tensor, but its error gives only the shape of a changed tensor. When
torch.utils.checkpoint computes a call again, autograd notices no change at all.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.errors import ChangedError
from headwise.masks.memo import read_contents

Option = TypeVar("Option", Tensor, Tensor | None)

COPIED = 2**14  # an option tensor of at most so many numbers is copied: quicker than detecting its change


def savable(call: AttentionCall) -> AttentionCall:
    """Return the call with copies of its inference tensors, which autograd cannot save; itself if it has none."""
    copies = inference_copies({"q": call.q, "k": call.k, "v": call.v, **call.option_tensors()})
    return dataclasses.replace(call, **copies) if copies else call


def inference_copies(given: Mapping[str, Tensor]) -> dict[str, Any]:
    """Copy the tensors that were made in inference mode; return the copies by name, without the other tensors."""
    return {name: x.clone() for name, x in given.items() if x.is_inference()}


def owned(x: Option) -> Option:
    """Return what backward saves for an option tensor: a copy if the tensor is small, else the tensor itself."""
    return x.clone() if x is not None and _is_copied(x) else x


def name_changed(out: Tensor, options: Mapping[str, Tensor]) -> None:
    """Make the backward of `out` check whether an option was changed, unless a copy of the option was saved (`owned`).

    If it was changed, backward raises ChangedError with the option's name. Nothing is checked where hooks pack saved
    tensors, as those of torch.utils.checkpoint do, because these may keep a copy: see `compared`.
    """
    then = [(name, weakref.ref(x), x._version) for name, x in options.items() if not _is_copied(x)]
    if not then or out.grad_fn is None or _packs():
        return

    def check(_: object) -> None:
        for name, of, version in then:
            x = of()
            if x is not None and x._version != version:
                raise _changed(name, "it was changed in place")

    out.grad_fn.register_prehook(check)


def compared(call: AttentionCall, out: Tensor) -> Tensor:
    """Return `out`, such that backward raises ChangedError if it computes this call again and the call has changed.

    torch.utils.checkpoint computes calls again. Two changes are detected: other numbers in the tensors of a mask on the
    CPU, and changes of option tensors that PyTorch counts.
    """
    if not _packs() or torch._C._are_functorch_transforms_active():
        return out
    state = {name: x._version for name, x in call.option_tensors().items()}
    if call.mask is not None and call.mask.tensors:
        state["mask"] = hash(tuple([read_contents(x) for x in call.mask.tensors if x.is_cpu]))
    same: Tensor = _Same.apply(out, torch.tensor(list(state.values()), device="cpu"), list(state)) if state else out
    return same


class _Same(torch.autograd.Function):
    """Returns its input `out`; backward raises ChangedError if `state` differs from what forward saved.

    It does where torch.utils.checkpoint has computed the call again, with other numbers: that saves `state` again.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, state: Tensor, names: list[str]) -> Tensor:
        ctx.save_for_backward(state)
        ctx.then = dict(zip(names, state.tolist(), strict=True))
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Tensor | None, ...]:
        (state,) = ctx.saved_tensors
        for (name, then), now in zip(ctx.then.items(), state.tolist(), strict=True):
            if then != now:
                raise _changed(name, "what was computed again found it changed")
        return d_out[0], None, None


def _is_copied(x: Tensor) -> bool:
    return x.numel() <= COPIED


def _packs() -> bool:
    """Whether hooks (torch.autograd.graph.saved_tensors_hooks) decide how autograd keeps the tensors that it saves."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _changed(name: str, how: str) -> ChangedError:
    return ChangedError(
        f"{name}: expected what forward saw, as backward reads it again. Received: {name}, {how} between forward and "
        f"backward. Change it after backward, or pass a copy: {name}.clone()"
    )
