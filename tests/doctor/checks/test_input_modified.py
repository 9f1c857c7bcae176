"""What is handed over must stay as it was."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.doctor.checks.specimens import Attention, found, one, seeded


class AddsInPlace(Attention):
    def forward(self, x: Tensor) -> Tensor:
        x += self.attend(x, x, None)
        return x


class FillsItsMask(Attention):
    """mask: [B, Q, K], 1 = may attend"""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            mask.mul_(torch.ones(x.shape[1], x.shape[1]).tril().to(mask.dtype))
        return self.attend(x, x, None if mask is None else mask.bool()[:, None])


class Copies(Attention):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x += self.attend(x, x, None)
        return x


def test_an_input_that_is_added_to() -> None:
    finding = one("input_modified", seeded(AddsInPlace))
    assert (finding.name, finding.severity) == ("input-modified", "bug")
    assert finding.numbers == {"changed": 240, "of": 240}  # 3 examples, 5 tokens, 16 wide


def test_a_mask_that_is_written_to() -> None:
    finding = one("input_modified", seeded(FillsItsMask))
    assert "'mask'" in finding.evidence
    assert finding.numbers == {"changed": 18, "of": 75}  # 6 of the 10 future pairs: the last key was hidden already


def test_a_healthy_one() -> None:
    assert found("input_modified", seeded(Copies)) == []
    assert found("input_modified", seeded(Attention)) == []


class Visits(Attention):
    """A pooling that visits one token; visited: optional bool [B, N]."""

    def forward(self, x: Tensor, visited: Tensor | None = None) -> Tensor:
        taken = torch.zeros(x.shape[:2], dtype=torch.bool) if visited is None else self.own(visited)
        first = (~taken).float().argmax(1, keepdim=True)
        taken.scatter_(1, first, True)
        return self.attend(x, x, ~taken[:, None, None])

    def own(self, visited: Tensor) -> Tensor:
        return visited


class VisitsACopy(Visits):
    def own(self, visited: Tensor) -> Tensor:
        return visited.clone()


def test_marks_of_tokens_that_are_written_to() -> None:
    finding = one("input_modified", seeded(Visits))
    assert (finding.name, finding.severity) == ("input-modified", "bug")
    assert "changed 'visited' in place: 3 of its 15 numbers" in finding.evidence
    assert found("input_modified", seeded(VisitsACopy)) == []


class AddsToItsTable(Attention):
    """table [B, N, M]."""

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        table += 1.0
        return self.attend(x + table, x, None)


def test_a_table_that_is_added_to() -> None:
    finding = one("input_modified", seeded(AddsToItsTable))
    assert "'table' in place" in finding.evidence


class InvertsInPlace(Attention):
    """mask: [B, N], bool or integer, true for real tokens"""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = None if mask is None else self.inverted(mask)[:, None, None]
        return self.attend(x, x, None if hidden is None else ~hidden)

    def inverted(self, mask: Tensor) -> Tensor:
        return mask.to(torch.bool).logical_not_()


class InvertsACopy(InvertsInPlace):
    """mask: [B, N], bool or integer, true for real tokens"""

    def inverted(self, mask: Tensor) -> Tensor:
        return mask.to(torch.bool).logical_not()


def test_a_mask_that_is_changed_only_if_it_is_bool() -> None:
    assert "the mask 'mask' in place" in one("input_modified", seeded(InvertsInPlace)).evidence
    assert found("input_modified", seeded(InvertsACopy)) == []
