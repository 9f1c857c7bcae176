"""Examples and heads in any order, and modules that say another number of heads than they have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise
from headwise.records import Seen

Q, D = 5, 4


class Layer(nn.Module):
    """Attention with projections, whose body arranges q, k and v [B, Q, H, D] itself."""

    def __init__(self, heads: int, said: int, body: Callable[..., tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.projections = nn.ModuleList(nn.Linear(6, heads * D) for _ in range(3))
        self.heads, self.num_heads, self.body = heads, said, body

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.body(*(each(x).unflatten(-1, (self.heads, D)) for each in self.projections))


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = (x.permute(2, 0, 1, 3) for x in (q, k, v))
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights.transpose(0, 1)


def examples_first(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def fused(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, scale=1.0), (q @ k.mT).softmax(-1)


def flat(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """ "Attention is all you need": [H * B, Q, D], and weights that are changed."""
    b, _, h, _ = q.shape
    q, k, v = (x.permute(2, 0, 1, 3).reshape(h * b, Q, D) for x in (q, k, v))
    weights = torch.bmm(q, k.mT).softmax(-1) * 0.5
    return torch.bmm(weights, v), weights.view(h, b, Q, Q).transpose(0, 1)


def run(layer: Layer, batch: int) -> tuple[Seen, Tensor]:
    with torch.no_grad(), headwise.watch(layer) as seen:
        _, true = layer(torch.randn(batch, Q, 6))
    return seen, true


@pytest.mark.parametrize("body", [heads_first, examples_first, fused])
@pytest.mark.parametrize(("batch", "heads"), [(2, 2), (4, 4), (3, 2), (2, 3), (1, 2)])
def test_the_order_of_examples_and_heads(batch: int, heads: int, body: Callable[..., tuple[Tensor, Tensor]]) -> None:
    seen, true = run(Layer(heads, heads, body), batch)
    torch.testing.assert_close(seen[0].weights(), true)


@pytest.mark.parametrize("body", [examples_first, fused])
@pytest.mark.parametrize(("batch", "said"), [(1, 1), (1, 3), (2, 2), (2, 8), (3, 3), (3, 2)])
def test_modules_that_say_another_number_of_heads(
    batch: int, said: int, body: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    seen, true = run(Layer(4, said, body), batch)
    torch.testing.assert_close(seen[0].weights(), true)


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_flat_heads_before_examples_that_are_changed_are_right_or_refused(batch: int) -> None:
    seen, true = run(Layer(4, 4, flat), batch)
    for record in seen:
        torch.testing.assert_close(record.used_weights(), true)
    assert {site.status for site in seen.coverage()} <= {"seen", "refused"}
    assert len(seen.coverage()) == 1


@pytest.mark.parametrize("reduce", [lambda w: w.mean(1, keepdim=True), lambda w: w.amax(1)[:, None]])
def test_weights_of_several_heads_put_together(reduce: Callable[[Tensor], Tensor]) -> None:
    def body(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        used = reduce((q @ k.mT).softmax(-1))
        return used @ v, used

    seen, true = run(Layer(4, 4, body), 2)
    torch.testing.assert_close(seen[0].used_weights(), true)
