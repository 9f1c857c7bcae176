"""A model watched and not watched, and its records against the weights that it gives itself."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import headwise
from headwise.records import AttentionRecord, Seen

# Padding on the left, as decoders want it; for encoders it is as good as on the right.
IDS = torch.tensor([[5, 9, 33, 12, 7, 21, 40], [1, 1, 1, 8, 30, 2, 17]])
REAL = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]])

# The sizes of models of transformers.
SMALL = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER_DECODER = {
    **{"vocab_size": 50, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 16},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 16},
}


def tensors(out: Any) -> list[Tensor]:
    """Every tensor of a model's output, in order."""
    if isinstance(out, Tensor):
        return [out]
    if isinstance(out, dict):
        return [x for part in out.values() for x in tensors(part)]
    return [x for part in out for x in tensors(part)] if isinstance(out, (list, tuple)) else []


def watched(
    model: nn.Module, *args: Any, options: dict[str, Any] | None = None, atol: float = 0.0, **inputs: Any
) -> tuple[Seen, Any]:
    """Watch `model(*args, **inputs)`; its outputs must be what they are without, bit by bit or within `atol`."""
    state = torch.get_rng_state()
    with torch.no_grad():
        plain = model(*args, **inputs)
        torch.set_rng_state(state)
        with headwise.watch(model, **(options or {})) as seen:
            out = model(*args, **inputs)
    mine, theirs = tensors(out), tensors(plain)
    assert len(mine) == len(theirs) > 0
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=atol, equal_nan=True)
    return seen, out


def assert_weights(record: AttentionRecord, expected: Tensor, empty: Tensor | None = None, atol: float = 1e-5) -> None:
    """The weights that the record says were used are `expected` [B, H, Q, K].

    Rows that attend to nothing are 0 in a record, and whatever the model made of them in `expected`: they must be the
    ones where `empty` [B, Q] is True; None = there may be none.
    """
    weights = record.used_weights()
    assert weights.shape == expected.shape
    is_empty = weights.sum(-1) == 0
    allowed = torch.zeros(()).bool() if empty is None else empty[:, None]
    assert not bool((is_empty & ~allowed).any())
    expected = expected.to(weights.dtype).masked_fill(is_empty[..., None], 0.0)
    torch.testing.assert_close(weights, expected, rtol=0, atol=atol)


def assert_projects(record: AttentionRecord, out: Tensor) -> None:
    """Σ over the heads of (A v) W_O is what the attention's projection made, [B, Q, M], without its bias."""
    v = record.v.repeat_interleave(record.shape[1] // record.v.shape[1], 1)
    mine = torch.einsum("bhqk,bhke,hem->bqm", record.weights(), v, record.output_weight)
    torch.testing.assert_close(mine, out, rtol=0, atol=1e-5)


def assert_all_seen(seen: Seen, names: Iterable[str]) -> None:
    """The sites are these, in this order, once each, and nothing was missed or refused."""
    sites = list(seen.coverage())
    assert [(site.name, site.status, site.calls) for site in sites] == [(name, "seen", 1) for name in names]
    assert [record.site.name for record in seen if record.site] == [site.name for site in sites]
    stacks: dict[str, int] = {}
    for record in seen:
        stack = "".join(c for c in record.site.name if not c.isdigit())
        assert record.site.layer == stacks.setdefault(stack, 0)
        stacks[stack] += 1
        assert record.site.call == 0
        assert (record.site.heads, record.site.key_heads) == (record.shape[1], record.k.shape[1])


def reachable(found: object) -> list[Tensor]:
    """Every tensor that an object leads to, not through modules of Python, classes and functions."""
    todo, known, tensors = [found], set[int](), []
    while todo:
        each = todo.pop()
        if id(each) in known or isinstance(each, (type, type(gc), type(reachable), nn.Module)):
            continue
        known.add(id(each))
        if isinstance(each, Tensor):
            tensors.append(each)
        else:
            todo += gc.get_referents(each)
    return tensors
