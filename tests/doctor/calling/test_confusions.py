"""What a call could be confused with: sizes that coincide, tables of distances, several outputs, options, weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.calling import sizes
from headwise.doctor.calling.interface import discover


class Plain(nn.Module):
    """Self-attention of 4 heads, 16 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (4, 4)).transpose(1, 2)

    def scores(self, x: Tensor) -> Tensor:
        return self.split(self.q(x)) @ self.split(self.k(x)).mT / 2

    def attend(self, x: Tensor, scores: Tensor) -> Tensor:
        return self.out((scores.softmax(-1) @ self.split(self.v(x))).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Any:
        return self.attend(x, self.scores(x))


class QueriesFirst(Plain):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.scores(x)
        return self.q(x), self.attend(x, scores), scores.softmax(-1)


class RefusesMasks(Plain):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is not None:
            raise TypeError("no mask of mine")
        return self.attend(x, self.scores(x))


class Scorer(Plain):
    """mask: [B, K], padded with zero padded rows."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.scores(x)
        return self.attend(x, scores if mask is None else scores.masked_fill(mask.bool()[:, None, None], -1e9))


def test_the_number_of_examples_is_no_other_size() -> None:
    module = nn.Module()
    assert sizes.batch(module) == 3
    module.three = nn.Parameter(torch.zeros(3, 16))
    assert sizes.batch(module) == 4
    module.config, module.heads = {"layers": 6}, 4  # type: ignore[assignment]
    assert sizes.batch(module) == 11


@pytest.mark.parametrize("kind", [QueriesFirst, RefusesMasks, Scorer])
def test_a_healthy_module_is_not_accused(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    diagnosis = headwise.diagnose(kind())
    assert diagnosis.healthy, str(diagnosis)
    if kind is RefusesMasks:  # a mask that always raises is named with its error
        assert "TypeError: no mask of mine" in diagnosis.unchecked["attention_mask"]


def test_the_output_is_the_tensor_that_attends() -> None:
    assert discover(QueriesFirst()).way.output_at == (1,)
