"""The state of torch around a call: whether the numbers in tensors can be read, and whether new tensors may be kept."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _is_tracing, _len_torch_dispatch_stack
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def is_traced() -> bool:
    """Whether torch records operations, or tensors have no numbers: then no decision may depend on a tensor's numbers.

    This is true inside torch.compile, torch.export, torch.jit.trace, make_fx, FakeTensorMode and torch.func.vmap.
    """
    if torch.compiler.is_compiling() or _is_tracing() or is_batched():
        return True
    return _len_torch_dispatch_stack() > 0 and any(x.is_infra_mode() for x in _get_current_dispatch_mode_stack())


def is_batched() -> bool:
    """Whether torch.func.vmap runs a function here: a tensor then stands for many, and has no numbers of its own."""
    if not _are_functorch_transforms_active():
        return False
    return any(each.key() == TransformType.Vmap for each in get_interpreter_stack() or ())


def is_forward_mode() -> bool:
    """Whether forward-mode derivatives are computed here, by torch.autograd.forward_ad or torch.func.jvp."""
    return torch.autograd.forward_ad._current_level >= 0


def surroundings() -> tuple[bool, bool]:
    """Return (is forward mode on, is a TorchDispatchMode on): states of torch for which a kernel may refuse a call."""
    return is_forward_mode(), _len_torch_dispatch_stack() > 0


def is_bare() -> bool:
    """Whether nothing surrounds a call: it is not compiled, traced, transformed or recorded, in no mode of any kind."""
    if torch.compiler.is_compiling() or _is_tracing() or _are_functorch_transforms_active():
        return False
    return not (is_forward_mode() or _len_torch_dispatch_stack())


def is_plain() -> bool:
    """Whether a tensor made here is an ordinary one, so that results may be kept for later calls.

    Inside torch.func a new tensor belongs to the transform, and a TorchDispatchMode may give a tensor of another class.
    """
    if torch.compiler.is_compiling() or _is_tracing() or _are_functorch_transforms_active():
        return False
    return not _len_torch_dispatch_stack() or (not is_traced() and type(torch.empty(0)) is Tensor)
