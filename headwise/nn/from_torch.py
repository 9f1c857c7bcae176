"""Conversion of the attention modules of PyTorch to ours, and back, with weights; and the parts of their layers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from headwise.errors import ArgumentError, DtypeError
from headwise.nn.feed_forward import Activation

if TYPE_CHECKING:
    from headwise.nn.multi_head import MultiHeadAttention
    from headwise.nn.transformer_layer import DecoderLayer, EncoderLayer, LayerOptions


def attention_from_torch(
    cls: type[MultiHeadAttention], module: nn.MultiheadAttention, *, kernel: str
) -> MultiHeadAttention:
    """See `MultiHeadAttention.from_torch`."""
    check_class(module, nn.MultiheadAttention)
    for option, used in (("add_bias_kv", module.bias_k is not None), ("add_zero_attn", module.add_zero_attn)):
        if used:
            raise ArgumentError(
                f"from_torch: expected an nn.MultiheadAttention without {option}. Received: one with {option}"
            )
    weight = module.out_proj.weight
    ours = cls(
        module.embed_dim,
        module.num_heads,
        kdim=module.kdim,
        vdim=module.vdim,
        bias=module.in_proj_bias is not None,
        dropout=module.dropout,
        kernel=kernel,
        device=weight.device,
        dtype=weight.dtype,
    )
    state = module.state_dict()
    if not ours.is_fused and "in_proj_bias" in state:  # PyTorch fuses the biases even where widths differ
        biases = zip("qkv", state.pop("in_proj_bias").chunk(3), strict=True)
        state.update({f"{name}_proj_bias": bias for name, bias in biases})
    ours.load_state_dict(state)
    return ours.train(module.training)


def attention_to_torch(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """See `MultiHeadAttention.to_torch`."""
    head_dim = ours.dim // ours.num_heads
    differs = {
        "num_kv_heads": ours.num_kv_heads != ours.num_heads,
        "head_dim": (ours.head_dim, ours.value_head_dim) != (head_dim, head_dim),
        "scale": ours.scale is not None and abs(ours.scale * head_dim**0.5 - 1) > 1e-6,
        "softcap": ours.softcap is not None,
        "sinks": ours.sinks is not None,
        "qk_norm": ours.q_norm is not None,
        "gate": ours.gate is not None,
        "positions": ours.positions is not None,
        "projection": ours.projection != "per_head",
    }
    for option, differs_here in differs.items():
        if differs_here:
            raise ArgumentError(
                f"to_torch: nn.MultiheadAttention does not support {option}. Received: a module that uses it"
            )
    inputs: list[nn.Linear] = [getattr(ours, name) for name in (["qkv"] if ours.is_fused else "qkv")]
    if (inputs[0].bias is None) != (ours.out.bias is None):
        raise ArgumentError(
            "to_torch: nn.MultiheadAttention has all biases or none, expected bias == output_bias. Received: only one"
        )
    theirs = nn.MultiheadAttention(
        ours.dim,
        ours.num_heads,
        dropout=ours.dropout,
        bias=ours.out.bias is not None,
        kdim=ours.kdim,
        vdim=ours.vdim,
        batch_first=True,
        device=ours.out.weight.device,
        dtype=ours.out.weight.dtype,
    )
    state: dict[str, Tensor] = {f"out_proj.{name}": x for name, x in ours.out.named_parameters()}
    if theirs.in_proj_weight is not None:
        state["in_proj_weight"] = torch.cat([linear.weight for linear in inputs])
    else:
        state.update({f"{name}_proj_weight": linear.weight for name, linear in zip("qkv", inputs, strict=True)})
    if ours.out.bias is not None:
        state["in_proj_bias"] = torch.cat([linear.bias for linear in inputs])
    theirs.load_state_dict(state)
    return theirs.train(ours.training)


def check_class(module: object, wanted: type[nn.Module]) -> None:
    """Raise DtypeError for an object of another class."""
    if not isinstance(module, wanted):
        raise DtypeError(f"from_torch: expected an nn.{wanted.__name__}. Received: {type(module).__name__}")


def layer_options(module: Any, after_branches: Sequence[nn.Dropout]) -> LayerOptions:
    """The options of a torch layer; both kinds have the same attributes."""
    rates = [dropout.p for dropout in after_branches]
    if len(set(rates)) > 1:
        raise ArgumentError(f"from_torch: expected one rate of dropout after all branches. Received: {rates}")
    return {
        "ffn_dim": module.linear1.out_features,
        "norm_first": module.norm_first,
        "activation": _activation(module.activation),
        "dropout": rates[0],
        "ffn_dropout": module.dropout.p,
        "bias": module.linear1.bias is not None,
        "device": module.linear1.weight.device,
        "dtype": module.linear1.weight.dtype,
    }


def _activation(act: object) -> Activation:
    if act is relu or isinstance(act, nn.ReLU):
        return "relu"
    if act is gelu or (isinstance(act, nn.GELU) and act.approximate == "none"):
        return "gelu"
    if isinstance(act, nn.GELU):
        return "gelu_tanh"
    if act is silu or isinstance(act, nn.SiLU):
        return "silu"
    name = getattr(act, "__name__", None) or type(act).__name__
    raise ArgumentError(
        f"from_torch: expected the activation relu, gelu or silu of torch.nn or torch.nn.functional. Received: {name}"
    )


def copy_parts(ours: EncoderLayer | DecoderLayer, module: Any, norms: Mapping[str, str]) -> None:
    """Copy the norms and the weights of the feed-forward network."""
    for name, theirs in norms.items():
        setattr(ours, name, copy.deepcopy(getattr(module, theirs)))
    for linear, theirs in ((ours.mlp.up, module.linear1), (ours.mlp.down, module.linear2)):
        linear.load_state_dict(theirs.state_dict())
