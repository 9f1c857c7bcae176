"""Orders of tokens that are undone, and others that are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.patient import NotApplicable
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


class Stage(Attention):
    """Two attentions with residuals, the second in windows that are shifted by 2."""

    back = 2

    def forward(self, x: Tensor) -> Tensor:
        windows = torch.arange(x.shape[1]) // 4
        own = windows[:, None] == windows
        x = x + self.attend(x, x, own)
        y = x.roll(-2, 1)
        return x + self.attend(y, y, own).roll(self.back, 1)


class ShiftedTwiceInAStage(Stage):
    back = -2


class OfThePast(Stage):
    """Every token gets what the token before it attended to, and nothing of itself."""

    def forward(self, x: Tensor) -> Tensor:
        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return x + torch.nn.functional.pad(self.attend(x, x, past)[:, :-1], (0, 0, 1, 0))


def test_a_residual_of_other_tokens() -> None:
    finding = one("output_misplaced", seeded(ShiftedTwiceInAStage))
    assert (finding.name, finding.severity) == ("output-misplaced", "bug")
    assert "query 4 attended to is added to token 0" in finding.evidence
    assert found("output_misplaced", seeded(OfThePast)) == []
    with pytest.raises(NotApplicable, match="no single attention"):  # and no residual is of others
        found("output_misplaced", seeded(Stage))


class Axial(Attention):
    """Attention along the rows and along the columns of a map of 4 by 4, side by side."""

    grid = (4, 4)
    turned = True

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        rows = x.view(b * 4, 4, m)
        columns = x.view(b, 4, 4, m).transpose(1, 2).reshape(b * 4, 4, m)
        along, across = self.attend(rows, rows, None), self.attend(columns, columns, None).view(b, 4, 4, m)
        across = across.transpose(1, 2) if self.turned else across
        return x + along.reshape(b, n, m) + across.reshape(b, n, m)


class ColumnsStayTurned(Axial):
    turned = False


def test_one_of_two_side_by_side() -> None:
    finding = one("output_misplaced", seeded(ColumnsStayTurned))
    assert (finding.name, finding.severity) == ("output-misplaced", "bug")
    with pytest.raises(NotApplicable):
        found("output_misplaced", seeded(Axial))


class Chosen(Attention):
    """Each query attends to itself and to the 4 keys of the largest sums: what they hold decides which."""

    def forward(self, x: Tensor) -> Tensor:
        best = self.k(x).sum(-1).topk(min(4, x.shape[1])).indices
        allowed = torch.zeros(x.shape[:2], dtype=torch.bool).scatter(1, best, True)
        return self.attend(x, x, allowed[:, None, None] | torch.eye(x.shape[1], dtype=torch.bool))


def test_keys_that_are_chosen_by_what_they_hold() -> None:
    with pytest.raises(NotApplicable, match="what they hold"):
        found("output_misplaced", seeded(Chosen))
