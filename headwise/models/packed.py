"""Packs the weights of a model (arranges them for the native kernels): once, and again after parameters have changed.

Only for inference on the CPU, and only if nothing looks into the model: hooks, `watch` and `edit` need its modules.
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
    parameters: list[Tensor]  # kept alive, so that no other tensor gets their memory addresses
    versions: list[tuple[int, int]]
    made: Any  # the result of `make`; None = the kernels do not support these layers


_remembered: weakref.WeakKeyDictionary[nn.Module, dict[str, _Packed]] = weakref.WeakKeyDictionary()


def packed(model: nn.Module, make: Callable[[Dtype], Made | None], dtype: Dtype | None = None) -> Made | None:
    """Return the packed weights of a model, which `make` returns; None if the modules themselves must run.

    The first call packs the weights; later calls return the same object, until parameters were changed in place or
    replaced. Changes that torch does not count are not noticed: through `.data`, NumPy, and by fused optimizers. Call
    `forget` after such changes. The modules must run if autograd, hooks or `watch` need them, or if they are as fast.

    Args:
        model: all its parameters are packed. Always pass the same `make` for one model.
        make: a function that packs the weights, for a dtype of products; None = the kernels do not support the layers.
        dtype: the dtype of the products; None = the dtype of the parameters.
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
    """Discard the packed weights of a model, so that the next call packs them again."""
    _remembered.pop(model, None)


class Packable(nn.Module):
    """A model whose weights may be packed. Training discards packed weights, so they are never out of date."""

    def train(self, mode: bool = True) -> Self:
        """Switch to training or evaluation, as for every module. Training discards the packed weights."""
        if mode:
            forget(self)
        return super().train(mode)


def pack_linear(linear: Any, dtype: Dtype, strip: int | None = None) -> Weights:
    """Pack the weights of an nn.Linear; `dtype` and `strip` as for `pack`."""
    return pack(linear.weight, linear.bias, dtype, strip=strip)


def pack_norm(norm: Any) -> Norm:
    """Pad the weights of an nn.LayerNorm as the kernels read them."""
    return norm_of(norm.weight, norm.bias, norm.normalized_shape[0], norm.eps)


def read_turns(positions: Any) -> tuple[float, int] | None:
    """Return the base and the number of rotated dimensions of a RoPE that the kernels support; None for others."""
    if type(positions) is not Rope or positions.interleaved or positions.scaling is not None:
        return None
    return positions.base, positions.rotary_dim


def list_projections(attention: Any) -> list[Any]:
    """Return the linear maps of queries, keys and values of a `MultiHeadAttention`: one for all, or three."""
    return [attention.qkv] if attention.is_fused else [attention.q, attention.k, attention.v]


def is_plain(attention: Any, dim: int) -> bool:
    """Return whether the kernels support an attention module of width `dim`; scale and positions are not checked."""
    return (
        type(attention) is MultiHeadAttention
        and attention.projection == "per_head"
        and attention.projection_sizes == (dim,) * 3
        and attention.kernel == "auto"
        and not any((attention.gate, attention.q_norm, attention.k_norm, attention.softcap))
        and attention.sinks is None
        and all(type(x) is nn.Linear for x in (*list_projections(attention), attention.out))
    )


def is_known(layer: Any, attention: Any) -> bool:
    """Return whether the kernels support the feed-forward network of a layer, and its self-attention `attention`."""
    mlp = layer.mlp
    return (
        type(mlp) is FeedForward
        and is_plain(attention, layer.dim)
        and attention.is_fused
        and (attention.positions is None or read_turns(attention.positions) is not None)
        and mlp.activation in (ACTIVATIONS if mlp.gate is None else GATED)
        and all(type(x) is nn.Linear for x in (mlp.gate, mlp.up, mlp.down) if x is not None)
    )


def read_scale(attention: Any) -> float:
    """Return the factor on q kᵀ of an attention module."""
    return attention.head_dim**-0.5 if attention.scale is None else attention.scale


def _is_alone() -> bool:
    """Return whether nothing records or changes torch's operators or headwise's attention now, so kernels may run."""
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
    """Collect all parameters of a module. False if a module in it has hooks, is in training mode or its own forward."""
    state = module.__dict__
    if state["_forward_hooks"] or state["_forward_pre_hooks"] or state["training"] or "forward" in state:
        return False
    parameters += [x for x in state["_parameters"].values() if x is not None]
    return all(_collect(part, parameters) for part in state["_modules"].values() if part is not None)


def _are_plain(parameters: list[Tensor]) -> bool:
    first = parameters[0]
    return all(type(x) is nn.Parameter and x.device.type == "cpu" and x.dtype == first.dtype for x in parameters)
