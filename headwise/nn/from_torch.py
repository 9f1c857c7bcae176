"""Converts PyTorch's attention and transformer layers to headwise's modules, and back: options, weights and norms."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from headwise.errors import ArgumentError, DtypeError
from headwise.nn.feed_forward import Activation
from headwise.nn.residual import LayerOptions, ResidualLayer


def attention_options(module: nn.MultiheadAttention) -> dict[str, Any]:
    """Read the options of an nn.MultiheadAttention as arguments of ours. ArgumentError for options that ours lacks."""
    for option, used in (("add_bias_kv", module.bias_k is not None), ("add_zero_attn", module.add_zero_attn)):
        if used:
            raise ArgumentError(
                f"from_torch: expected an nn.MultiheadAttention without {option}. Received: one with {option}"
            )
    weight = module.out_proj.weight
    return {
        "dim": module.embed_dim,
        "num_heads": module.num_heads,
        "kdim": module.kdim,
        "vdim": module.vdim,
        "bias": module.in_proj_bias is not None,
        "dropout": module.dropout,
        "device": weight.device,
        "dtype": weight.dtype,
    }


def attention_state(module: nn.MultiheadAttention, is_fused: bool) -> dict[str, Tensor]:
    """Return the weights of an nn.MultiheadAttention, for one matrix of q, k and v (`is_fused`) or for three."""
    state = module.state_dict()
    if not is_fused and "in_proj_bias" in state:  # PyTorch has one bias tensor even if it has three weight matrices
        biases = zip("qkv", state.pop("in_proj_bias").chunk(3), strict=True)
        state.update({f"{name}_proj_bias": bias for name, bias in biases})
    return state


def torch_attention(
    inputs: Sequence[nn.Linear], out: nn.Linear, num_heads: int, *, kdim: int, vdim: int, dropout: float
) -> nn.MultiheadAttention:
    """Make an nn.MultiheadAttention with these weights. `inputs`: one projection for q, k and v together, or three."""
    has_bias = out.bias is not None
    if (inputs[0].bias is not None) != has_bias:
        raise ArgumentError(
            "to_torch: nn.MultiheadAttention has all biases or none, expected bias == output_bias. Received: only one"
        )
    theirs = nn.MultiheadAttention(
        out.out_features,
        num_heads,
        dropout=dropout,
        bias=has_bias,
        kdim=kdim,
        vdim=vdim,
        batch_first=True,
        device=out.weight.device,
        dtype=out.weight.dtype,
    )
    state: dict[str, Tensor] = {f"out_proj.{name}": x for name, x in out.named_parameters()}
    if theirs.in_proj_weight is not None:
        state["in_proj_weight"] = torch.cat([linear.weight for linear in inputs])
    else:
        state.update({f"{name}_proj_weight": linear.weight for name, linear in zip("qkv", inputs, strict=True)})
    if has_bias:
        state["in_proj_bias"] = torch.cat([linear.bias for linear in inputs])
    theirs.load_state_dict(state)
    return theirs


def check_class(module: object, wanted: type[nn.Module]) -> None:
    """Raise DtypeError unless `module` is of the class `wanted`."""
    if not isinstance(module, wanted):
        raise DtypeError(f"from_torch: expected an nn.{wanted.__name__}. Received: {type(module).__name__}")


def layer_options(module: Any, after_branches: Sequence[nn.Dropout]) -> LayerOptions:
    """Read the options of PyTorch's layer as arguments of ours. The dropouts `after_branches` must have one rate."""
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


def copy_parts(ours: ResidualLayer, module: Any, norms: Mapping[str, str]) -> None:
    """Copy norms (`norms`: our name → PyTorch's) and the feed-forward network's weights from PyTorch's layer."""
    for name, theirs in norms.items():
        setattr(ours, name, copy.deepcopy(getattr(module, theirs)))
    for linear, theirs in ((ours.mlp.up, module.linear1), (ours.mlp.down, module.linear2)):
        linear.load_state_dict(theirs.state_dict())
