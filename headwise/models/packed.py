"""Packs parts of a model for the native kernels: once, and again after parameters have changed.

For inference on the CPU, if nothing looks into the model: hooks, `watch` and `edit` see the modules themselves.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from headwise.functional import is_followed
from headwise.native.library import instruction_set
from headwise.native.linear import ACTIVATIONS, Dtype, Norm, Weights, norm_of, pack
from headwise.nn.feed_forward import GATED, FeedForward
from headwise.nn.multi_head import MultiHeadAttention
from headwise.nn.positions import Rope
from headwise.tracing import is_forward_mode, is_traced

if TYPE_CHECKING:
    from typing_extensions import Self

NAMES: dict[torch.dtype, Dtype] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

Made = TypeVar("Made")


class _Packed(NamedTuple):
    parameters: list[Tensor]  # kept alive, so that no other tensor gets their place in memory
    versions: list[tuple[int, int]]
    made: Any  # None: there are no such kernels for these layers


_remembered: weakref.WeakKeyDictionary[nn.Module, dict[str, _Packed]] = weakref.WeakKeyDictionary()


def packed(model: nn.Module, make: Callable[[Dtype], Made | None], dtype: Dtype | None = None) -> Made | None:
    """The result of `make` for a model, kept with it; None if the modules themselves must run, or are as fast.

    It is made in the first call, and again after parameters were changed in place or replaced. Writes that change no
    version counter are not noticed: through `.data`, NumPy, and by fused optimizers; call `forget` after these.

    Args:
        model: all its parameters are packed; `make` must always be the same for one model.
        make: returns None if the kernels do not support the layers.
        dtype: the dtype of the products; None = that of the parameters.
    """
    if torch.is_grad_enabled() or model.training or not _is_alone() or instruction_set() in (None, "portable"):
        return None
    parameters: list[Tensor] = []
    if not _collect(model, parameters):
        return None
    kind = parameters[0].dtype
    name = NAMES.get(kind) if dtype is None else dtype
    if name is None:
        return None
    versions = [(x.data_ptr(), 0 if x.is_inference() else x._version) for x in parameters]
    kept = _remembered.setdefault(model, {})
    found = kept.get(name)
    if found is None or found.versions != versions:
        held = [x.detach() for x in parameters]
        found = kept[name] = _Packed(held, versions, make(name) if _are_plain(parameters) else None)
    return found.made


def forget(model: nn.Module) -> None:
    """Pack the weights of a model again at the next call."""
    _remembered.pop(model, None)


class Packable(nn.Module):
    """A model whose weights may be packed. Weights that were packed before a training are not used after it."""

    def train(self, mode: bool = True) -> Self:
        """Switch to training or evaluation, as for every module; training forgets the packed weights."""
        if mode:
            forget(self)
        return super().train(mode)


def weights_of(linear: Any, dtype: Dtype) -> Weights:
    """An nn.Linear, packed."""
    return pack(linear.weight, linear.bias, dtype)


def layer_norm_of(norm: Any) -> Norm:
    """An nn.LayerNorm, padded."""
    return norm_of(norm.weight, norm.bias, norm.normalized_shape[0], norm.eps)


def turns_of(positions: Any) -> tuple[float, int] | None:
    """The base and the dimensions of a RoPE that the kernels support. None for any other scheme."""
    if type(positions) is not Rope or positions.interleaved or positions.scaling is not None:
        return None
    return positions.base, positions.rotary_dim


def projections_of(attention: Any) -> list[Any]:
    """The linear maps of queries, keys and values of a `MultiHeadAttention`."""
    return [attention.qkv] if attention.is_fused else [attention.q, attention.k, attention.v]


def is_plain(attention: Any, dim: int) -> bool:
    """Whether an attention module is supported by the kernels, apart from its scale and positions."""
    return (
        type(attention) is MultiHeadAttention
        and attention.projection == "per_head"
        and attention.projection_sizes == (dim,) * 3
        and attention.kernel == "auto"
        and not any((attention.gate, attention.q_norm, attention.k_norm, attention.softcap))
        and attention.sinks is None
        and all(type(x) is nn.Linear for x in (*projections_of(attention), attention.out))
    )


def is_known(layer: Any, attention: Any) -> bool:
    """Whether the feed-forward network of a layer and its self-attention are supported by the kernels."""
    mlp = layer.mlp
    return (
        type(mlp) is FeedForward
        and is_plain(attention, layer.dim)
        and attention.is_fused
        and (attention.positions is None or turns_of(attention.positions) is not None)
        and mlp.activation in (ACTIVATIONS if mlp.gate is None else GATED)
        and all(type(x) is nn.Linear for x in (mlp.gate, mlp.up, mlp.down) if x is not None)
    )


def scale_of(attention: Any) -> float:
    """The factor on q kᵀ."""
    return attention.head_dim**-0.5 if attention.scale is None else attention.scale


def _is_alone() -> bool:
    """Whether nothing follows or changes torch's operators or headwise's attention."""
    return not (
        is_traced()
        or is_followed()
        or torch.is_autocast_enabled("cpu")
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._are_functorch_transforms_active()
        or is_forward_mode()
        or nn.modules.module._global_forward_hooks
        or nn.modules.module._global_forward_pre_hooks
    )


def _collect(module: nn.Module, parameters: list[Tensor]) -> bool:
    """Collect the parameters of a module. False if a part has hooks, is in training mode or has its own forward."""
    state = module.__dict__
    if state["_forward_hooks"] or state["_forward_pre_hooks"] or state["training"] or "forward" in state:
        return False
    parameters += [x for x in state["_parameters"].values() if x is not None]
    return all(_collect(part, parameters) for part in state["_modules"].values() if part is not None)


def _are_plain(parameters: list[Tensor]) -> bool:
    first = parameters[0]
    return all(type(x) is nn.Parameter and x.device.type == "cpu" and x.dtype == first.dtype for x in parameters)
