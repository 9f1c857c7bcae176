"""NaN and infinity beside dropout: they reach the rows that may see them, and the other weights are dropped as ever."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.native.library import instruction_set

N, BAD = 50, 37
FORBIDS = torch.full((N, N), -torch.inf).triu(1)
# name -> what hides the bad key from some rows, or from all.
HIDES: dict[str, dict[str, Any]] = {
    "padding": {"mask": masks.padding(torch.arange(N) != BAD)},
    "causal": {"mask": masks.causal()},
    "documents": {"mask": masks.documents(torch.arange(N) // 20)},
    "bias": {"bias": FORBIDS},
    "bias and mask": {"bias": FORBIDS, "mask": masks.window(None, 5)},
}
KERNELS = [
    "auto",
    "sdpa",
    "reference",
    pytest.param("native", marks=pytest.mark.skipif(instruction_set() is None, reason="they are not here")),
]


def inputs(q_len: int = N, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, q_len, 8, generator=generator)
    return [x.to(dtype) for x in (q, *(torch.randn(2, 2, N, n, generator=generator) for n in (8, 6)))]


def poisoned(x: Tensor, value: float) -> Tensor:
    x = x.clone()
    x[:, :, BAD, 3] = value
    return x


def seeing(hides: dict[str, Any], q_len: int = N) -> Tensor:
    """Which rows may see the bad key, bool [Q]."""
    allowed = hides["mask"].to_bool(q_len, N)[0, 0] if "mask" in hides else torch.ones(q_len, N, dtype=torch.bool)
    return allowed[:, BAD] & (hides.get("bias", torch.zeros(N, N))[:, BAD] == 0)[-q_len:]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", HIDES)
@pytest.mark.parametrize("bad", ["key", "value", "infinite value"])
@pytest.mark.parametrize("trains", [True, False], ids=["training", "inference"])
def test_rows_that_do_not_see_it_are_what_they_are_without(name: str, kernel: str, bad: str, trains: bool) -> None:
    hides, rows = HIDES[name], ~seeing(HIDES[name])
    clean = inputs()
    given = [x.clone() for x in clean]
    place = 1 if bad == "key" else 2
    given[place] = poisoned(given[place], math.inf if bad.startswith("inf") else math.nan)
    found, drawn = [], []
    for tensors in (clean, given):
        leaves = [x.requires_grad_(trains) for x in tensors]
        torch.manual_seed(3)
        out = headwise.attention(*leaves, **hides, dropout=0.3, kernel=kernel)
        drawn.append(torch.rand(()))
        found.append([out[:, :, rows]])
        if trains:
            d_q, d_k, d_v = torch.autograd.grad(out[:, :, rows].square().sum(), leaves)
            # (NaN times a gradient of 0 is NaN: in what the rows that see it gave, and in the keys that these see.)
            found[-1] += [d_q[:, :, rows], *([d_v] if bad != "key" else []), *([d_k, d_v] if rows.all() else [])]
    assert torch.equal(*drawn)  # what follows draws the same
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    assert not out[:, :, ~rows].isfinite().all(-1).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_step_of_decoding(dtype: torch.dtype) -> None:
    mask = masks.padding(torch.arange(N) != BAD)
    q, k, v = inputs(1, dtype)
    for kernel in ("decode", "sdpa", "reference"):
        outs = []
        for value in (v, poisoned(v, math.nan)):
            torch.manual_seed(3)
            outs.append(headwise.attention(q, k, value, mask=mask, dropout=0.3, kernel=kernel))
        torch.testing.assert_close(outs[1], outs[0])


@pytest.mark.parametrize("kernel", KERNELS)
def test_sinks_and_a_softcap(kernel: str) -> None:
    if kernel == "sdpa":
        pytest.skip("it has none of these with dropout")
    q, k, v = inputs()
    options: dict[str, Any] = {"sinks": torch.zeros(4), "softcap": 3.0, "mask": masks.causal(), "kernel": kernel}
    outs = []
    for value in (v, poisoned(v, math.nan)):
        torch.manual_seed(3)
        outs.append(headwise.attention(q, k, value, dropout=0.3, **options)[:, :, :BAD])
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_was_kept_is_found_some_keys_at_a_time(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.kernels.exact.CELLS", 2 * 4 * N * 9)
    q, k, v = inputs()
    outs = []
    for value in (v, poisoned(v, math.nan)):
        torch.manual_seed(3)
        outs.append(headwise.attention(q, k, value, mask=masks.causal(), dropout=0.3, kernel=kernel)[:, :, :BAD])
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-5, atol=1e-5)
