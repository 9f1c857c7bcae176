"""What a call could be confused with: sizes that coincide, several outputs, options."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.calling import sizes
from headwise.doctor.calling.interface import discover
from tests.doctor.laws.specimens import Attention, seeded


class QueriesFirst(Attention):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.q(x), self.attend(x, x, None)


class RefusesMasks(Attention):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is not None:
            raise TypeError("no mask of mine")
        return self.attend(x, x, None)


class Scorer(Attention):
    """mask: [B, K], padded with zero padded rows."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if mask is None else ~mask.bool()[:, None, None])


def test_the_number_of_examples_is_no_other_size() -> None:
    module = nn.Module()
    assert sizes.batch(module) == 3
    module.three = nn.Parameter(torch.zeros(3, 16))
    assert sizes.batch(module) == 4
    module.config, module.heads = {"layers": 6}, 4  # type: ignore[assignment]
    assert sizes.batch(module) == 11


@pytest.mark.parametrize("kind", [QueriesFirst, RefusesMasks, Scorer])
def test_a_healthy_module_is_not_accused(kind: type[nn.Module]) -> None:
    diagnosis = headwise.diagnose(seeded(kind))
    assert diagnosis.healthy, str(diagnosis)
    if kind is RefusesMasks:  # a mask that always raises is named with its error
        assert "TypeError: no mask of mine" in diagnosis.unchecked["attention_mask"]


def test_the_output_is_the_tensor_that_attends() -> None:
    assert discover(QueriesFirst()).way.output_at == (1,)
