"""Orders of tokens that are undone, and others that are not."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


class Windows(Attention):
    """Attention inside of windows of 4 tokens that are shifted by 1."""

    back = 1

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        windows = torch.arange(n) // 4
        y = x.roll(-1, 1)
        return x + self.attend(y, y, windows[:, None] == windows).roll(self.back, 1)


class ShiftedTwice(Windows):
    back = -1


def test_a_shift_that_is_not_undone() -> None:
    finding = one("output_misplaced", seeded(ShiftedTwice))
    assert (finding.name, finding.severity) == ("output-misplaced", "bug")
    assert found("output_misplaced", seeded(Windows)) == []
    assert found("output_misplaced", seeded(Causal)) == []
