"""NaN, and scores so large that they are rounded to whole numbers: results are those of the definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.kernels.plan import KERNELS

OTHERS = [name for name in KERNELS if name not in ("reference", "flash", "flex")]


def gradients(kernel: str, factor: float, rows: int, bad: bool, **options: Any) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, n, 8, generator=generator) for heads, n in ((6, rows), (1, 22), (1, 22)))
    q, k = q * factor, k * factor
    if bad:
        k[1, 0, 5, 1] = math.nan
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = headwise.attention(*leaves, kernel=kernel, **options)
    return [out.detach(), *torch.autograd.grad(out[0].sum(), leaves)]


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("kernel", ["auto", *OTHERS])
def test_large_scores(kernel: str, bad: bool) -> None:
    """Of one query too, and where another example has NaN, which hides how large they are."""
    rows = 1 if kernel == "decode" else 9
    mask = masks.runs([3], [21]) if rows == 1 else masks.window(6, 3)
    found, expected = (gradients(name, 3e4, rows, bad, mask=mask) for name in (kernel, "reference"))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine[0], theirs[0], rtol=1e-4, atol=1e-3 * float(theirs[0].abs().max()))


@pytest.mark.parametrize("kernel", ["auto", *(name for name in OTHERS if name != "decode")])
def test_a_row_that_sees_nothing_but_nan(kernel: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 8, 4, generator=torch.Generator().manual_seed(0))
    k[:, :, [2, 5]] = math.nan
    ids = torch.tensor([0, 0, 1, 2, 2, 3, 3, 3])  # the third and the sixth see themselves alone
    with torch.no_grad():
        out = headwise.attention(q, k, v, mask=masks.documents(ids) & masks.causal(), kernel=kernel)
    assert out.isnan().all(-1)[0, 0].tolist() == [False, False, True, False, False, True, True, True]
