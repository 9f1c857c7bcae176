"""Other sizes, and what comes back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.laws.sizes import loses_rows
from tests.doctor.laws.specimens import Attention, Cross, found, one, seeded

LAW = "sizes"


class Squeezes(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(w(x)).squeeze() for w in (self.q, self.k, self.v))
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


class Positions(Attention):
    def __init__(self, most: int = 16) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(most, 16))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > len(self.positions):
            raise ValueError("too long")
        return super().forward(x + self.positions[: x.shape[1]])


class AsLong(Cross):
    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.length, self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        self.length = x.shape[1]
        return self.attend(x, memory, None)


class Fixed(Attention):
    def __init__(self, seq_len: int = 6) -> None:
        super().__init__()
        self.seq_len = seq_len
        self.bias = nn.Parameter(torch.randn(seq_len, seq_len))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, None)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + self.bias


def test_a_squeeze_that_takes_too_much() -> None:
    findings = found(LAW, seeded(Squeezes))
    assert [(x.name, x.severity) for x in findings] == [("sizes-fixed", "bug")] * 2
    assert findings[0].numbers == {"batch": 1}
    assert findings[1].numbers == {"length": 1}


def test_a_largest_length_is_a_note() -> None:
    finding = one(LAW, seeded(Positions))
    assert (finding.severity, finding.numbers["length"]) == ("note", 33)
    assert "up to 12 tokens" in finding.evidence
    fixed = one(LAW, seeded(Fixed))
    assert (fixed.severity, fixed.numbers["length"]) == ("note", 6)


def test_a_memory_that_must_be_as_long_as_the_queries() -> None:
    finding = one(LAW, seeded(AsLong))
    assert (finding.name, finding.severity) == ("sizes-fixed", "bug")
    assert "2 more keys than queries" in finding.evidence


@pytest.mark.parametrize("kind", [Attention, Cross])
def test_a_healthy_one(kind: type[Attention]) -> None:
    assert found(LAW, seeded(kind)) == []


# What comes back.


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


class AsWideAsLong(Cross):
    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(x, memory, None)[..., : x.shape[1]]


class Pools(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mean(1, keepdim=True)


class WithAClassToken(Attention):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x[:, :1] * 0, x], 1)
        return self.attend(x, x, None)


class Pointer(Cross):
    """Scores of the keys, and no sum of values."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.score(self.split(self.q(x)), self.split(self.k(memory))).mean(1).log_softmax(-1)


class ReturnsItsScores(Attention):
    """Every token attends to the others."""

    def forward(self, x: Tensor) -> Tensor:
        return self.score(self.split(self.q(x)), self.split(self.k(x))).mean(1)


@pytest.mark.parametrize(
    ("kind", "severity", "said"),
    [
        (RowsOfKeys, "bug", "6 for 7 queries"),
        (Uninitialised, "bug", "15 of its 240 numbers are NaN"),
        (AsWideAsLong, "bug", "the width of its output depends"),
        (Pools, "note", "1 for 5 queries; 1 for 7 queries"),
        (WithAClassToken, "note", "6 for 5 queries; 8 for 7 queries"),
        (Pointer, "note", "returns 1 for each key"),
        (ReturnsItsScores, "risk", "returns 1 for each key"),
    ],
)
def test_the_shape_of_the_output(kind: type[nn.Module], severity: str, said: str) -> None:
    finding = next(x for x in found(LAW, seeded(kind)) if x.name == "output-shape")
    assert finding.severity == severity
    assert said in finding.evidence


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({5: 5, 7: 6}, True),
        ({5: 4, 7: 5}, True),
        ({5: 1, 7: 1}, False),  # a pool
        ({5: 3, 7: 4}, False),  # every second one
        ({5: 4, 7: 6}, False),  # all but the first
        ({5: 6, 7: 8}, False),  # a token more
        ({5: 10, 7: 14}, False),
    ],
)
def test_rows_that_are_lost(rows: dict[int, int], expected: bool) -> None:
    assert loses_rows(rows) is expected


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


# Heads.


class Narrow(Attention):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        inner = width // heads * heads
        self.q, self.k, self.v = (nn.Linear(width, inner) for _ in range(3))
        self.out = nn.Linear(inner, width)


class Stated(Attention):
    """The width of a head is an argument of its own."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__(width, heads)
        self.head_dim = head_dim
        self.q, self.k, self.v = (nn.Linear(width, heads * head_dim) for _ in range(3))
        self.out = nn.Linear(heads * head_dim, width)


def test_a_width_that_is_made_to_fit() -> None:
    finding = one(LAW, seeded(Narrow, 18, 4))
    assert (finding.severity, finding.numbers["left"]) == ("risk", 2)
    assert "has 16 features instead of 18" in finding.evidence


def test_heads_that_lose_nothing() -> None:
    assert found(LAW, seeded(Stated, 18, 4, 5)) == []
    assert found(LAW, seeded(Stated, 16, 4, 4)) == []
