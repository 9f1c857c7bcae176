"""Maps that are attended along one axis or along both."""

from __future__ import annotations

import pytest
from torch import Tensor

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Axial(Attention):
    """x: [B, H, W, C]; attends along the rows, and then along the columns."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.along(x)
        return x + self.turned(self.along(self.turned(x)))

    def along(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        return self.attend(rows, rows, None).view(x.shape)

    def turned(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class TwiceAlongTheRows(Axial):
    """x: [B, H, W, C]; attends along the rows, and then along the columns."""

    def turned(self, x: Tensor) -> Tensor:
        return x


class OfLines(Attention):
    """x: [B, H, W, C], a table whose lines are read twice."""

    def forward(self, x: Tensor) -> Tensor:
        lines = x.flatten(0, 1)
        lines = lines + self.attend(lines, lines, None)
        return (lines + self.attend(lines, lines, None)).view(x.shape)


def test_both_attentions_along_the_rows() -> None:
    finding = one("axis_unread", seeded(TwiceAlongTheRows))
    assert (finding.name, finding.severity) == ("axis-unread", "bug")
    assert "a map of 4 rows and 6 columns" in finding.evidence
    assert "in other rows" in finding.evidence
    assert found("axis_unread", seeded(Axial)) == []


@pytest.mark.parametrize("module", [OfLines, Attention])
def test_what_says_nothing_of_two_axes(module: type[Attention]) -> None:
    with pytest.raises(NotApplicable):
        found("axis_unread", seeded(module))
