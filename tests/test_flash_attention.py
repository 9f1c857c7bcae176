"""flash-attention's functions, against the definition: its layout, alignment, windows and packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.flash_attention import flash_attn_func, flash_attn_varlen_func

H, G, D, E = 4, 2, 8, 6
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


def tensors(q_len: int, k_len: int, *batch: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = ((q_len, H, D), (k_len, G, D), (k_len, G, E))
    return [torch.randn(*batch, *shape, generator=draw, dtype=torch.float64, requires_grad=True) for shape in shapes]


def define(q: Tensor, k: Tensor, v: Tensor, left: int, right: int, cap: float = 0.0, alibi: bool = False) -> Tensor:
    """The definition for one sequence: q [Q, H, D], k [K, G, D], v [K, G, E]; -1 = no limit."""
    k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / D**0.5
    scores = cap * (scores / cap).tanh() if cap else scores
    apart = torch.arange(len(k)) - (torch.arange(len(q))[:, None] + len(k) - len(q))
    scores = scores - SLOPES[:, None, None] * apart.abs() if alibi else scores
    hidden = (apart < -left if left >= 0 else apart < -99) | (apart > right if right >= 0 else apart > 99)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
    return torch.einsum("hqk,khe->qhe", weights, v)


@pytest.mark.parametrize(
    ("options", "left", "right"),
    [
        ({}, -1, -1),
        ({"causal": True}, -1, 0),
        ({"window_size": (2, 1)}, 2, 1),
        ({"window_size": (3, -1), "causal": True}, 3, 0),
        ({"causal": True, "softcap": 2.0}, -1, 0),
        ({"causal": True, "alibi_slopes": SLOPES.double()}, -1, 0),
    ],
)
def test_the_definition(options: dict[str, Any], left: int, right: int) -> None:
    q, k, v = tensors(5, 9, 2)
    out = flash_attn_func(q, k, v, **options)
    cap, alibi = options.get("softcap", 0.0), "alibi_slopes" in options
    expected = torch.stack([define(*x, left, right, cap, alibi) for x in zip(q, k, v, strict=True)])
    assert_close(out, expected)
    gradients = [torch.autograd.grad((x**2).sum(), (q, k, v), retain_graph=True) for x in (out, expected)]
    assert_close(*gradients)


def test_more_queries_than_keys_begin_with_queries_that_see_nothing() -> None:
    q, k, v = tensors(5, 3, 1)
    out = flash_attn_func(q, k, v, causal=True)
    assert (out[0, :2] == 0).all()
    assert (out[0, 2:] != 0).all()


@pytest.mark.parametrize("keys", [(3, 6, 4), (5, 6, 7)])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (1, 0)}, {"alibi_slopes": SLOPES.double()}])
def test_packed_sequences(keys: tuple[int, ...], options: dict[str, Any]) -> None:
    queries = (3, 6, 4)
    q, k, v = tensors(sum(queries), sum(keys))
    starts = [torch.tensor([0, *x]).cumsum(0).int() for x in (queries, keys)]
    out = flash_attn_varlen_func(q, k, v, starts[0], starts[1], max(queries), max(keys), **options)
    left, right = options.get("window_size", (-1, 0 if options.get("causal") else -1))
    parts = zip(q.split(queries), k.split(keys), v.split(keys), strict=True)
    expected = torch.cat([define(*x, left, right, alibi="alibi_slopes" in options) for x in parts])
    assert_close(out, expected)
    gradients = [torch.autograd.grad((x**2).sum(), (q, k, v), retain_graph=True) for x in (out, expected)]
    assert_close(*gradients)


def test_keys_in_pages() -> None:
    q, k, v = tensors(3, 13)
    starts = torch.tensor([0, 1, 3]), torch.tensor([0, 5, 13])
    table = torch.tensor([[4, 1, 0], [2, 5, 3]])
    pages = [torch.zeros(6, 3, G, x.shape[-1], dtype=torch.float64) for x in (k, v)]
    for paged, x in zip(pages, (k, v), strict=True):
        for row, part in zip(table, x.detach().split([5, 8]), strict=True):
            for page, piece in zip(row.tolist(), part.split(3), strict=False):
                paged[page, : len(piece)] = piece
    expected = flash_attn_varlen_func(q, k, v, *starts, 2, 8, causal=True)
    out = flash_attn_varlen_func(q, pages[0], pages[1], *starts, 2, 8, causal=True, block_table=table)
    assert_close(out, expected)


def test_the_log_sum_exp() -> None:
    q, k, v = tensors(4, 4, 1)
    out, lse, rest = flash_attn_func(q, k, v, return_attn_probs=True)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(2, 2)) / D**0.5
    assert_close(lse.double(), scores.logsumexp(-1).detach())
    assert rest is None
    assert_close(out, flash_attn_func(q, k, v))


def test_what_does_not_fit() -> None:
    q, k, v = tensors(4, 4)
    with pytest.raises(ShapeError, match=r"cu_seqlens_k: expected \[2\]"):
        flash_attn_varlen_func(q, k, v, torch.tensor([0, 4]), torch.tensor([0, 2, 4]), 4, 2)
    with pytest.raises(ArgumentError, match="return_attn_probs"):
        flash_attn_varlen_func(q, k, v, torch.tensor([0, 4]), torch.tensor([0, 4]), 4, 4, return_attn_probs=True)
    with pytest.raises(ArgumentError, match=r"dropout_p=0\.1"):
        flash_attn_func(q[None], k[None], v[None], 0.1, return_attn_probs=True)


@pytest.mark.parametrize("starts", [[1, 4], [0, 3], [0, 6], [0, 3, 2, 4]])
def test_starts_that_leave_rows_out_are_refused(starts: list[int]) -> None:
    q, k, v = tensors(4, 4)
    given = torch.tensor(starts)
    with pytest.raises(ArgumentError, match="cu_seqlens_q: expected starts that begin at 0 and do not fall"):
        flash_attn_varlen_func(q, k, v, given, given, 4, 4)


def test_starts_are_a_tensor_of_integers() -> None:
    q, k, v = tensors(4, 4)
    for starts, received in (([0, 4], "list"), (torch.tensor([0.0, 4.0]), r"torch.float32 \[2\]")):
        with pytest.raises(DtypeError, match=f"cu_seqlens_q: expected a tensor .* of {received}"):
            flash_attn_varlen_func(q, k, v, starts, starts, 4, 4)  # type: ignore[arg-type]
