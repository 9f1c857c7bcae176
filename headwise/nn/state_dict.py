"""State dicts of other implementations of attention: parameter names are mapped to ours when a module loads them.

Each module calls its projections `qkv` (or `q`, `k`, `v` if the inputs differ in width) and `out`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.errors import CheckpointError

# Names by role, as in PyTorch, Hugging Face, timm, lucidrains, the papers' code and the tutorials.
QUERY, KEY, VALUE = (
    (
        *(x, f"{x}_proj", f"{x}_linear", f"linear_{x}", f"{x}_lin", f"W{x}", f"W_{x}", f"w{x}", f"w_{x}", f"w_{x}s"),
        *(f"to_{x}", word, f"self.{word}", plural, f"linears.{place}"),
    )
    for place, (x, word, plural) in enumerate(
        [("q", "query", "queries"), ("k", "key", "keys"), ("v", "value", "values")]
    )
)
# One matrix with all queries, then all keys, then all values; within each, head by head.
FUSED = ("qkv", "in_proj", "c_attn", "qkv_proj", "Wqkv", "to_qkv")
OUT = (
    *("out", "out_proj", "o_proj", "c_proj", "proj", "fc_out", "out_linear", "W_o", "Wo", "w_o", "wo", "o"),
    *("to_out", "to_out.0", "out_lin", "linear_out", "dense", "output", "output.dense"),
    *("w_concat", "fc", "linears.3"),
)
# Matrices in which each head has its q, k and v together (head after head): these are not stacked q, k and v.
HEADS_OUTSIDE = ("query_key_value",)
# Masks and frequencies that older checkpoints keep beside the weights (GPT-2, minGPT, GPT-NeoX, Llama).
CONSTANTS = ("bias", "masked_bias", "rotary_emb.inv_freq")


def rename(module: Any, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Rename entries before `load_state_dict` loads them (a hook), so that other common names of projections work."""
    for name in HEADS_OUTSIDE:
        if f"{prefix}{name}.weight" in state:
            raise CheckpointError(
                f"{prefix}{name}: expected queries, keys and values one below the other; GPT-NeoX, BLOOM and Falcon "
                "keep q, k and v of each head together under this name. Split them by head first: "
                "weight.view(heads, 3, head_dim, dim).transpose(0, 1).flatten(0, 2) is what to load as qkv.weight"
            )
    for name in CONSTANTS:
        state.pop(f"{prefix}{name}", None)
    positions = getattr(module, "positions", None)
    for name in () if positions is None else positions.state_dict():  # T5 and BERT have these beside the projections
        if f"{prefix}{name}" in state:
            state[f"{prefix}positions.{name}"] = state.pop(f"{prefix}{name}")
    transposed = False
    sizes = list(module.projection_sizes)
    for kind in ("weight", "bias"):
        fused = take(state, prefix, FUSED, kind)
        if fused is not None and kind == "weight" and _is_conv1d(fused, sum(sizes)):
            fused, transposed = fused.T, True  # GPT-2 keeps its weights as [in, out]
        parts = None
        if fused is not None and (module.is_fused or fused.shape[0] != sum(sizes)):
            state[f"{prefix}qkv.{kind}"] = fused  # if its size is wrong, torch reports it
        elif fused is not None:
            parts = list(fused.split(sizes))
        else:
            parts = _separate(state, prefix, kind)
        if parts is not None:
            if module.is_fused:
                state[f"{prefix}qkv.{kind}"] = torch.cat(parts)
            else:
                state.update({f"{prefix}{name}.{kind}": part for name, part in zip("qkv", parts, strict=True)})
        out = take(state, prefix, OUT, kind)
        if out is not None:
            state[f"{prefix}out.{kind}"] = out.T if transposed and kind == "weight" else out


def _separate(state: dict[str, Tensor], prefix: str, kind: str) -> list[Tensor] | None:
    """Take [q, k, v] out of the state dict; None unless all are there. A bias that only k lacks (Whisper) becomes 0."""
    q, k, v = (take(state, prefix, names, kind) for names in (QUERY, KEY, VALUE))
    if k is None and q is not None and v is not None and kind == "bias":
        k = torch.zeros_like(q if q.shape == v.shape else v)
    found = dict(zip("qkv", (q, k, v), strict=True))
    if any(x is None for x in found.values()):
        state.update({f"{prefix}{name}.{kind}": x for name, x in found.items() if x is not None})
        return None
    return [x for x in found.values() if x is not None]


def take(state: dict[str, Tensor], prefix: str, names: Sequence[str], kind: str) -> Tensor | None:
    """Pop the entry with one of these names from the state dict; None if there is none, CheckpointError if several."""
    # nn.MultiheadAttention writes in_proj_weight and q_proj_weight, other code uses a dot.
    keys = [f"{prefix}{name}{joint}{kind}" for name in names for joint in (".", "_")]
    found = [key for key in keys if key in state]
    if len(found) > 1:
        raise CheckpointError(
            f"state_dict: expected one of {', '.join(found)}, which mean the same projection. Received: all of them"
        )
    return state.pop(found[0]) if found else None


def _is_conv1d(weight: Tensor, total: int) -> bool:
    """Return whether a weight is [in, out], as in GPT-2, not [out, in], as in nn.Linear. `total`: the size of out."""
    return bool(weight.shape[0] != total and weight.shape[-1] == total)
