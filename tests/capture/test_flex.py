"""FlexAttention: its mask_mod and score_mod are read as a mask, a bias and a softcap, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import headwise
from headwise.records import Seen
from tests.capture.parity import assert_weights

B, H, Q, K, D = 2, 4, 9, 12, 8
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7, [0] * 8 + [1] * 4])

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]


class Flex(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return flex_attention(q, k, v, **options)


def see(groups: int = H, **options: Any) -> tuple[Seen, Tensor, Tensor]:
    q, k, v = torch.randn(B, H, Q, D), torch.randn(B, groups, K, D), torch.randn(B, groups, K, D)
    model = Flex()
    with torch.no_grad():
        plain = model(q, k, v, **options)
        with headwise.watch(model) as seen:
            out = model(q, k, v, **options)
    torch.testing.assert_close(out, plain, rtol=0, atol=1e-6)
    return seen, q, k


def expected(
    q: Tensor, k: Tensor, score: Callable[..., Tensor] | None, allowed: Callable[..., Tensor] | None
) -> Tensor:
    s = q @ k.repeat_interleave(H // k.shape[1], 1).mT * D**-0.5
    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in s.shape), indexing="ij")
    if score is not None:
        s = score(s, b, h, i, j)
    if allowed is not None:
        s = s.masked_fill(~allowed(b, h, i, j), -torch.inf)
    return s.softmax(-1).nan_to_num(0.0)


SCORES: dict[str, Callable[..., Tensor]] = {
    "alibi": lambda s, b, h, i, j: s - SLOPES[h] * (i - j).abs(),
    "softcap": lambda s, b, h, i, j: 0.5 * torch.tanh(s / 0.5),
    "softcap and alibi": lambda s, b, h, i, j: 0.5 * torch.tanh(s / 0.5) + SLOPES[h] * j,
    "bias of each example": lambda s, b, h, i, j: s + 0.3 * b * j,
    "nothing": lambda s, b, h, i, j: s,
}
MASKS: dict[str, Callable[..., Tensor]] = {
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i - j).abs() < 3,
    "documents": lambda b, h, i, j: DOCUMENTS[b, i] == DOCUMENTS[b, j],
    "of each head": lambda b, h, i, j: j <= i + h,
    "nothing for some rows": lambda b, h, i, j: (i % 3 > 0) & (j > 2),
}


@pytest.mark.parametrize("name", SCORES)
def test_score_mods(name: str) -> None:
    seen, q, k = see(score_mod=SCORES[name])
    (record,) = seen
    assert_weights(record, expected(q, k, SCORES[name], None))
    assert record.softcap == (pytest.approx(0.5) if "softcap" in name else None)
    assert (record.bias is not None) == ("alibi" in name or "bias" in name)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("groups", [pytest.param(H, marks=pytest.mark.slow), 2])
def test_mask_mods(name: str, groups: int) -> None:
    blocks = create_block_mask(MASKS[name], B, H, Q, K, device="cpu")
    seen, q, k = see(groups, block_mask=blocks, enable_gqa=groups < H)
    (record,) = seen
    weights = expected(q, k, None, MASKS[name])
    assert_weights(record, weights, empty=(weights.sum(-1) == 0).any(1))
    assert (record.site.heads, record.site.key_heads) == (H, groups)
    assert seen.coverage().notes == ("FlexAttention ran uncompiled: its outputs may differ in the last digits",)


REFUSED: dict[str, Callable[..., Tensor]] = {
    "a factor that depends on the position": lambda s, b, h, i, j: s * (1 + i),
    "a factor of each head": lambda s, b, h, i, j: s * (1 + h),
    "a square": lambda s, b, h, i, j: s * s,
    "a relu": lambda s, b, h, i, j: torch.relu(s),
    "a factor": lambda s, b, h, i, j: s * 2,
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_score_mods_are_refused(name: str) -> None:
    seen, _, _ = see(score_mod=REFUSED[name])
    assert len(seen) == 0
    (site,) = seen.coverage()
    assert site.status == "refused"
    assert "score_mod is neither a bias nor a softcap" in site.how


def test_a_score_mod_that_hides_something_far_from_where_it_was_tried_is_refused() -> None:
    """Bits that the tried scores do not show: the output tells."""
    seen, _, _ = see(score_mod=lambda s, b, h, i, j: torch.where((s > 1.0) & (s < 7.0), s + 3.0, s))
    (site,) = seen.coverage()
    assert (site.status, len(seen)) == ("refused", 0)
    assert "could not be explained" in site.how
