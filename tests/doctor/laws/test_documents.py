"""Documents that share a row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable, NotChecked
from tests.doctor.laws.specimens import Attention, found, one, seeded

LAW = "documents"


class Packed(Attention):
    """`together`: which ids [B, N] see one another."""

    def forward(self, x: Tensor, document_ids: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if document_ids is None else self.together(document_ids)[:, None])

    def together(self, ids: Tensor) -> Tensor:
        return ids[:, :, None] == ids[:, None]


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


EXAMPLE = (torch.randn(2, 6, 16), torch.tensor([[0, 1, 2, 0, 1, 2]] * 2)), {}


@pytest.mark.parametrize(
    ("module", "pairs", "of"),
    [
        # 4 tokens of the second document see 3 of the first; in the other row 2 see 5.
        (seeded(Packed, together=lambda ids: ids[:, :, None] >= ids[:, None]), 22, 44),
        # The other row is divided as the first, so that tokens 3 and 4 see 5 and 6.
        (seeded(Packed, together=lambda ids: (ids[:1, :, None] == ids[:1, None]).expand(len(ids), -1, -1)), 8, 44),
        (seeded(MaskForgets), 44, 44),
    ],
)
def test_documents_that_see_one_another(module: nn.Module, pairs: int, of: int) -> None:
    finding = one(LAW, module)
    assert (finding.name, finding.severity) == ("packing-leak", "bug")
    assert (finding.numbers["pairs"], finding.numbers["of"]) == (pairs, of)


def test_positions_of_the_given_call_that_begin_again() -> None:
    assert one(LAW, seeded(Restarts, apart=False), example=EXAMPLE).name == "packing-leak"
    assert found(LAW, seeded(Restarts), example=EXAMPLE) == []
    with pytest.raises(NotApplicable):
        found(LAW, seeded(Restarts, apart=False))  # positions alone say nothing of documents


class TwoSentences(Attention):
    """Ids of a table, as of the two sentences of BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 16)

    def forward(self, x: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        x = x if segment_ids is None else x + self.table(segment_ids)
        return self.attend(x, x, None)


def test_healthy_ones() -> None:
    assert found(LAW, Packed) == []
    for module, words in ((Attention, "no document ids"), (TwoSentences, "ids of a table")):
        with pytest.raises(NotChecked, match=words):
            found(LAW, module)
