"""Documents that share a row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.laws.documents import check
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from tests.doctor.laws.specimens import Attention, seeded


def found(module: type[nn.Module], example: Any = None) -> list[Finding]:
    return list(check(Patient(seeded(module), example=example)))


class Packed(Attention):
    def forward(self, x: Tensor, document_ids: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if document_ids is None else self.together(document_ids)[:, None])

    def together(self, ids: Tensor) -> Tensor:
        return ids[:, :, None] == ids[:, None]


class SeesEarlierDocuments(Packed):
    def together(self, ids: Tensor) -> Tensor:
        return ids[:, :, None] >= ids[:, None]


class AllLikeTheFirstRow(Packed):
    def together(self, ids: Tensor) -> Tensor:
        return super().together(ids[:1].expand_as(ids))


class OneRow(Attention):
    """Where documents begin in the one row there is, and the end."""

    right = True

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        if cu_seqlens is None:
            return self.attend(x, x, None)
        if len(x) != 1:
            raise ValueError("documents must be packed into one row")
        at = torch.arange(x.shape[1], dtype=cu_seqlens.dtype)
        ids = torch.bucketize(at, cu_seqlens[1:], right=self.right)
        return self.attend(x, x, ids[:, None] == ids[None])


class OneRowOffByOne(OneRow):
    right = False


class MaskForgets(Packed):
    """With a mask of padding it forgets the documents."""

    def forward(self, x: Tensor, document_ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        allowed = self.together(document_ids)[:, None]
        return self.attend(x, x, allowed if padding_mask is None else padding_mask.bool()[:, None, None])


class Restarts(Attention):
    """Positions begin again with every document."""

    apart = True

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        ids = (position_ids == 0).cumsum(-1)
        x = x + (position_ids * 0.3).sin()[..., None]
        return self.attend(x, x, (ids[:, :, None] == ids[:, None])[:, None] if self.apart else None)


class OnlyRestarts(Restarts):
    apart = False


EXAMPLE = (torch.randn(2, 6, 16), torch.tensor([[0, 1, 2, 0, 1, 2]] * 2)), {}


@pytest.mark.parametrize(
    ("module", "pairs", "of"),
    [
        (SeesEarlierDocuments, 12, 24),  # 4 tokens of the second see 3 of the first
        (OneRowOffByOne, 6, 24),  # token 3 is counted to the first three
        (MaskForgets, 24, 24),
    ],
)
def test_documents_that_see_one_another(module: type[nn.Module], pairs: int, of: int) -> None:
    (finding,) = found(module)
    assert (finding.name, finding.severity) == ("packing-leak", "bug")
    assert (finding.numbers["pairs"], finding.numbers["of"]) == (pairs, of)


def test_positions_of_the_given_call_that_begin_again() -> None:
    assert [x.name for x in found(OnlyRestarts, EXAMPLE)] == ["packing-leak"]
    assert found(Restarts, EXAMPLE) == []
    with pytest.raises(NotApplicable):
        found(OnlyRestarts)  # positions alone say nothing of documents


def test_a_row_that_is_divided_as_another_one() -> None:
    (finding,) = found(AllLikeTheFirstRow)
    assert "the mask of one row is used for all" in finding.evidence


class TwoSentences(Attention):
    """Ids of a table, as of the two sentences of BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 16)

    def forward(self, x: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        x = x if segment_ids is None else x + self.table(segment_ids)
        return self.attend(x, x, None)


def test_healthy_ones() -> None:
    assert [*found(Packed), *found(OneRow)] == []
    for module, words in ((Attention, "no document ids"), (TwoSentences, "ids of a table")):
        with pytest.raises(NotChecked, match=words):
            found(module)
