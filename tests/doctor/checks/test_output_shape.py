"""What comes back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headwise
from tests.doctor.checks.specimens import Attention, Cross, found, one, seeded


class RowsOfKeys(Cross):
    """A row for every key in place of every query, where both are as many."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        out = self.attend(x, memory, None)
        return out if len(x) == 3 else out[:, :-1]


class Uninitialised(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.full((16,), torch.nan))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(torch.arange(16) < 1, self.bias, super().forward(x))


class Pools(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mean(1, keepdim=True)


def test_one_row_for_all_is_a_note() -> None:
    finding = one("output_shape", seeded(Pools))
    assert (finding.name, finding.severity, finding.numbers["rows"]) == ("output-shape", "note", 1)


def test_rows_that_are_missing() -> None:
    finding = one("output_shape", seeded(RowsOfKeys))
    assert (finding.name, finding.severity) == ("output-shape", "bug")
    assert finding.numbers == {"queries": 7, "rows": 6}
    assert "6 for 7 queries" in finding.evidence


def test_numbers_that_are_none() -> None:
    finding = one("output_shape", seeded(Uninitialised))
    assert finding.severity == "bug"
    assert finding.numbers["not finite"] == 15


def test_a_healthy_one() -> None:
    assert found("output_shape", seeded(Attention)) == []
    assert found("output_shape", seeded(Cross)) == []


class Pointer(Cross):
    """Scores of the keys, and no sum of values."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.score(self.split(self.q(x)), self.split(self.k(memory))).mean(1).log_softmax(-1)


class Maps(Pointer):
    """Weights for each head: [B, Q, H, 1, K]."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        weights = self.score(self.split(self.q(x)), self.split(self.k(memory))).softmax(-1)
        return weights.transpose(1, 2)[:, :, :, None]


class AsWideAsLong(Cross):
    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(x, memory, None)[..., : x.shape[1]]


def test_one_number_for_each_key_is_a_note() -> None:
    for kind, number in ((Pointer, "1"), (Maps, "4")):
        finding = one("output_shape", seeded(kind))
        assert (finding.name, finding.severity) == ("output-shape", "note")
        assert f"returns {number} for each key" in finding.evidence
    assert one("output_shape", seeded(AsWideAsLong)).severity == "bug"


class PointsAtItself(Attention):
    """Sorts: every token points to another one."""

    def forward(self, x: Tensor) -> Tensor:
        return self.score(self.split(self.q(x)), self.split(self.k(x))).mean(1).log_softmax(-1)


class ReturnsItsScores(Attention):
    """Every token attends to the others."""

    def forward(self, x: Tensor) -> Tensor:
        return self.score(self.split(self.q(x)), self.split(self.k(x))).mean(1)


class WithAClassToken(Attention):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x[:, :1] * 0, x], 1)
        return self.attend(x, x, None)


def test_a_pointer_among_its_own_tokens_is_a_note() -> None:
    assert one("output_shape", seeded(PointsAtItself)).severity == "note"
    assert one("output_shape", seeded(ReturnsItsScores)).severity == "bug"


def test_a_token_more_is_a_note() -> None:
    assert one("output_shape", seeded(WithAClassToken)).severity == "note"


class AddsNaN(Attention):
    """Sees no future."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        keep = torch.ones(scores.shape[-2:]).tril()
        return scores + (1 - keep) * -torch.inf


def test_an_output_of_nan_alone_is_a_bug_of_the_line_where_it_begins() -> None:
    diagnosis = headwise.diagnose(seeded(AddsNaN))
    (bug,) = diagnosis.bugs
    assert bug.name == "output-shape"
    assert not diagnosis.not_examined
    assert "(1 - keep) * -torch.inf" in bug.where.code


class NeedsMore(Attention):
    """What `unheard_of` is cannot be guessed: NaN may be the fault of the call."""

    def forward(self, x: Tensor, unheard_of: Tensor) -> Tensor:
        return self.attend(x, x, None) * torch.nan


class NeedsTimes(Attention):
    """What `timestep` holds is a guess."""

    def forward(self, x: Tensor, timestep: Tensor) -> Tensor:
        return self.attend(x, x, None) * torch.nan


@pytest.mark.parametrize("kind", [NeedsMore, NeedsTimes])
def test_nan_of_a_call_with_invented_arguments_is_no_bug(kind: type[nn.Module]) -> None:
    diagnosis = headwise.diagnose(seeded(kind))
    assert not diagnosis.bugs
    assert diagnosis.not_examined


class HidesRealTokens(Attention):
    """ids [B, N] -> [B, N, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 16, padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.attend(x, x, (ids == 0)[:, None, None])

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def test_nan_alone_for_ids_without_padding() -> None:
    diagnosis = headwise.diagnose(seeded(HidesRealTokens))
    assert [x.name for x in diagnosis.bugs] == ["output-shape"]
    assert "every number of the output is NaN" in diagnosis.bugs[0].evidence
