"""Documents that share a row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable, NotChecked
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Packed(Attention):
    """document_ids: [B, N]"""

    def forward(self, x: Tensor, document_ids: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if document_ids is None else self.together(document_ids)[:, None])

    def together(self, ids: Tensor) -> Tensor:
        return ids[:, :, None] == ids[:, None]


class SeesEarlierDocuments(Packed):
    def together(self, ids: Tensor) -> Tensor:
        return ids[:, :, None] >= ids[:, None]


class Lengths(Attention):
    """cu_seqlens: where documents begin, and the end"""

    apart = True

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        if cu_seqlens is None or not self.apart:
            return self.attend(x, x, None)
        ids = torch.bucketize(torch.arange(x.shape[1], dtype=cu_seqlens.dtype), cu_seqlens[1:], right=True)
        return self.attend(x, x, ids[:, None] == ids[None])


class LengthsOnlyResetPositions(Lengths):
    apart = False


def test_documents_that_see_earlier_ones() -> None:
    finding = one("packing", seeded(SeesEarlierDocuments))
    assert (finding.name, finding.severity) == ("packing-leak", "bug")
    assert (finding.numbers["pairs"], finding.numbers["of"]) == (12, 24)  # 4 tokens of the second see 3 of the first
    assert finding.numbers["change"] > 0.01


class OneRow(Attention):
    """cu_seqlens: where documents begin in the one row there is, and the end"""

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


class Restarts(Attention):
    """position_ids: [B, N]; in packed rows they begin again at 0 with every document."""

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(x.shape[1]).expand(x.shape[:2])
        x = x + (position_ids * 0.3).sin()[..., None]
        return self.attend(x, x, self.together(position_ids))

    def together(self, positions: Tensor) -> Tensor | None:
        ids = (positions == 0).cumsum(-1)
        return (ids[:, :, None] == ids[:, None])[:, None]


class OnlyRestarts(Restarts):
    """position_ids: [B, N]; in packed rows they begin again at 0 with every document."""

    def together(self, positions: Tensor) -> Tensor | None:
        return None


def test_one_row_and_an_edge_that_is_off_by_one() -> None:
    finding = one("packing", seeded(OneRowOffByOne))
    assert (finding.numbers["pairs"], finding.numbers["of"]) == (6, 24)  # token 3 is counted to the first three
    assert found("packing", seeded(OneRow)) == []


def test_positions_that_begin_again_and_separate_nothing() -> None:
    finding = one("packing", seeded(OnlyRestarts))
    assert (finding.severity, finding.numbers["pairs"]) == ("bug", 24)
    assert "position_ids" in finding.evidence
    assert found("packing", seeded(Restarts)) == []


def test_lengths_that_keep_nothing_apart() -> None:
    finding = one("packing", seeded(LengthsOnlyResetPositions))
    assert finding.numbers["pairs"] == 24


def test_healthy_ones() -> None:
    assert found("packing", seeded(Packed)) == []
    assert found("packing", seeded(Lengths)) == []
    with pytest.raises(NotChecked, match="no document ids"):
        found("packing", seeded(Attention))


class Images(Packed):
    """image_ids: [B, N], to which image each patch belongs"""

    def forward(self, patches: Tensor, image_ids: Tensor) -> Tensor:
        return super().forward(patches, image_ids)


class ImagesTogether(Images):
    def together(self, ids: Tensor) -> Tensor:
        return torch.ones_like(super().together(ids))


class ZeroIsPadding(Packed):
    """decoder_segment_ids: [B, N], 0 = padding, seen by no other"""

    def forward(self, x: Tensor, decoder_segment_ids: Tensor | None = None) -> Tensor:
        return super().forward(x, decoder_segment_ids)

    def together(self, ids: Tensor) -> Tensor:
        return (super().together(ids) & (ids != 0)[:, None]) | torch.eye(ids.shape[1], dtype=torch.bool)


class OnlyWithoutAMask(Restarts):
    """position_ids: [B, N], begin again at 0 in packed rows. attention_mask: [B, N], 1 = a token, 0 = padding."""

    forgets = True

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(x.shape[1]).expand(x.shape[:2])
        allowed = self.together(position_ids)
        if attention_mask is not None:
            keys = attention_mask[:, None, None].bool()
            allowed = keys if self.forgets else keys & allowed
        return self.attend(x + (position_ids * 0.3).sin()[..., None], x, allowed)


class WithAMaskToo(OnlyWithoutAMask):
    """position_ids: [B, N], begin again at 0 in packed rows. attention_mask: [B, N], 1 = a token, 0 = padding."""

    forgets = False


def test_ids_of_other_names() -> None:
    assert one("packing", seeded(ImagesTogether)).numbers["pairs"] == 24
    assert found("packing", seeded(Images)) == []
    assert found("packing", seeded(ZeroIsPadding)) == []


def test_a_mask_that_hides_nothing_beside_documents() -> None:
    finding = one("packing", seeded(OnlyWithoutAMask))
    assert "and attention_mask passed that hides nothing, 24 of 24" in finding.evidence
    assert found("packing", seeded(WithAMaskToo)) == []


class StartsInKeywords(Attention):
    """Documents are packed into one row; their starts are an option."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        starts = kwargs.get("cu_seqlens")
        allowed = self.both(None, padding_mask)
        if starts is not None and self.reads(padding_mask):
            ids = torch.bucketize(torch.arange(x.shape[1], dtype=starts.dtype), starts[1:], right=True)
            allowed = (ids[:, None] == ids[None]) & (torch.ones(1, dtype=torch.bool) if allowed is None else allowed)
        return self.attend(x, x, allowed)

    def reads(self, padding_mask: Tensor | None) -> bool:
        return True


class StartsOrPadding(StartsInKeywords):
    def reads(self, padding_mask: Tensor | None) -> bool:
        return padding_mask is None


def test_starts_in_keywords() -> None:
    finding = one("packing", seeded(StartsOrPadding))
    assert (finding.name, finding.severity) == ("packing-leak", "bug")
    assert "cu_seqlens" in finding.evidence
    assert "padding_mask" in finding.evidence
    assert found("packing", seeded(StartsInKeywords)) == []


class SaysPacked(Attention):
    """With packing, position_ids [B, N] begin again with every document."""

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if position_ids is None:
            return self.attend(x, x, None)
        ids = (position_ids == 0).cumsum(-1)
        return self.attend(x, x, self.mask(ids))

    def mask(self, ids: Tensor) -> Tensor:
        return (ids[:, :, None] == ids[:, None])[:, None]


class OpenToAll(SaysPacked):
    def mask(self, ids: Tensor) -> Tensor:
        return torch.ones_like(super().mask(ids))


def test_a_base_class_says_that_rows_are_packed() -> None:
    assert OpenToAll.__doc__ is None
    assert one("packing", seeded(OpenToAll)).name == "packing-leak"
    assert found("packing", seeded(SaysPacked)) == []


class OfTheFirstRow(Packed):
    """document_ids: [B, N]"""

    def together(self, ids: Tensor) -> Tensor:
        return (ids[:1, :, None] == ids[:1, None]).expand(len(ids), -1, -1)


def test_documents_of_the_first_row_for_all() -> None:
    finding = one("packing", seeded(OfTheFirstRow))
    assert (finding.name, finding.severity) == ("packing-leak", "bug")
    assert "the mask of one row is used for all" in finding.evidence


class Varlen(nn.Module):
    """x: [N, M], documents one after the other; cu_seqlens: where they begin, and the end."""

    right = True

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        at = torch.arange(len(x), device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        ids = torch.searchsorted(cu_seqlens[1:], at, right=self.right)
        return self.attention.attend(x[None], x[None], ids[:, None] == ids[None])[0]


class VarlenOffByOne(Varlen):
    right = False


def test_starts_that_are_required() -> None:
    assert one("packing", seeded(VarlenOffByOne)).name == "packing-leak"
    assert found("packing", seeded(Varlen)) == []


class OfSegments(nn.Module):
    """Packed rows: x [B, N, 16], segments [B, N] which segment a token belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor, segments: Tensor) -> Tensor:
        blocked = segments[:, :, None] != segments[:, None]
        return self.attention(x, x, x, attn_mask=self.repeated(blocked), need_weights=False)[0]

    def repeated(self, blocked: Tensor) -> Tensor:
        return blocked.repeat_interleave(4, 0)


class HeadsOfOtherRows(OfSegments):
    def repeated(self, blocked: Tensor) -> Tensor:
        return blocked.repeat(4, 1, 1)


class TwoSentences(Attention):
    """segments [B, N]: the first sentence or the second, which see one another."""

    def __init__(self) -> None:
        super().__init__()
        self.sentence = nn.Embedding(4, 16)

    def forward(self, x: Tensor, segments: Tensor) -> Tensor:
        x = x + self.sentence(segments)
        return self.attend(x, x, None)


def test_heads_that_get_the_documents_of_another_row() -> None:
    assert one("packing", seeded(HeadsOfOtherRows)).name == "packing-leak"
    assert found("packing", seeded(OfSegments)) == []


def test_segments_of_a_table_are_no_documents() -> None:
    with pytest.raises(NotApplicable, match="ids of a table"):
        found("packing", seeded(TwoSentences))


class TwoLayers(nn.Module):
    """document_ids: [B, N], 1, 2, ...; 0 is padding at the end of a row, which no token sees."""

    lowest = -torch.inf

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attention(), Attention()])

    def forward(self, x: Tensor, document_ids: Tensor) -> Tensor:
        allowed = (document_ids[:, :, None] == document_ids[:, None]) & (document_ids != 0)[:, None]
        for layer in self.layers:
            layer.fill = lambda scores, allowed: scores.masked_fill(~allowed, self.lowest)  # type: ignore[assignment]
            x = x + layer.attend(x, x, allowed[:, None])
        return x


class TwoFiniteLayers(TwoLayers):
    lowest = -1e9


def test_padding_whose_rows_have_no_key() -> None:
    finding = one("packing", seeded(TwoLayers))
    assert (finding.name, finding.severity, finding.numbers["lost"]) == ("empty-row-nan", "bug", 10)
    assert found("packing", seeded(TwoFiniteLayers)) == []


class Ended(Attention):
    """Documents of a row end with `eos_id` in tokens [B, N]; a token sees those of its own document before it."""

    def __init__(self) -> None:
        super().__init__()
        self.eos_id = 2

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        ends = (tokens == self.eos_id).long()
        ids = ends.cumsum(1) - ends
        n = x.shape[1]
        return self.attend(x, x, (self.together(ids) & torch.ones(n, n, dtype=torch.bool).tril())[:, None])

    def together(self, ids: Tensor) -> Tensor:
        return ids[:, :, None] == ids[:, None]


class EndedSeesEarlierDocuments(Ended):
    """Documents of a row end with `eos_id` in tokens [B, N]; a token sees those of its own document before it."""

    def together(self, ids: Tensor) -> Tensor:
        return ids[:, :, None] >= ids[:, None]


def test_documents_that_end_with_a_token() -> None:
    finding = one("packing", seeded(EndedSeesEarlierDocuments))
    assert (finding.name, finding.severity) == ("packing-leak", "bug")
    assert "with tokens saying that two documents share a row" in finding.evidence
    assert found("packing", seeded(Ended)) == []
