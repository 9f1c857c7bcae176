"""What a mask does to the scores, cell by cell: every healthy way of writing one, and the wrong ways."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.checks.mask_cells import check
from headwise.doctor.patient import NotChecked, Patient
from tests.doctor.checks.specimens import Attention, Cross, found, one, seeded
from tests.doctor.checks.styles import Einsum, Masked, Plain, assert_at


class Padded(Einsum):
    """padding: [B, K], 1 = a real token, 0 = padding."""

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 2
        if padding is not None:
            scores = self.hidden(scores, padding)
        return self.proj(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2))

    def hidden(self, scores: Tensor, padding: Tensor) -> Tensor:
        return scores.masked_fill(padding[:, None, None] == 0, -torch.inf)


# Healthy: every way of writing it.


class True_IsHidden(Plain):  # noqa: N801
    """mask: [B, Q, K], True = hidden."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if mask is None else ~mask[:, None])


class OnesAndZeros(Plain):
    """mask: [B, 1, Q, K], 1 may attend, 0 is hidden."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, mask)

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(allowed == 0, float("-inf"))


class AddedNumbers(Plain):
    """attn_mask: [Q, K], added to the scores: 0 where a query may attend, -inf elsewhere."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, attn_mask)

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores + allowed


class MadeAdditive(Padded):
    """attention_mask as BERT has it."""

    def hidden(self, scores: Tensor, padding: Tensor) -> Tensor:
        return scores + (1.0 - padding[:, None, None].float()) * torch.finfo(scores.dtype).min


class InPlace(Masked):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill_(~allowed, -torch.inf)


class ByWhere(Padded):
    def hidden(self, scores: Tensor, padding: Tensor) -> Tensor:
        return torch.where(padding[:, None, None].bool(), scores, torch.tensor(-torch.inf))


class ByAssignment(Masked):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is not None:
            scores[~allowed.expand_as(scores)] = -torch.inf
        return scores


class InFusedAttention(Plain):
    """mask: [B, Q, K], True = may attend."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        allowed = None if mask is None else mask[:, None]
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)))


class Renormalised(Masked):
    """Weights of hidden keys are taken away, and the rest is divided by what is left: the same."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        weights = self.score(q, k).softmax(-1)
        if allowed is not None:
            weights = weights * allowed
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)
        return self.out(self.merge(weights @ v))


class ExpTimesMask(Masked):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        e = self.score(q, k).exp()
        if allowed is not None:
            e = e * allowed
        return self.out(self.merge(e / (e.sum(-1, keepdim=True) + 1e-9) @ v))


class Folded(Masked):
    """Scores [B * H, Q, K], the heads of an example together."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return scores
        b, h, q, k = scores.shape
        repeated = allowed[:, 0].repeat_interleave(h, dim=0)
        return scores.view(b * h, q, k).masked_fill(~repeated, -torch.inf).view(scores.shape)


@pytest.mark.parametrize(
    "module",
    [
        *(Masked, Padded, True_IsHidden, OnesAndZeros, AddedNumbers, MadeAdditive, InPlace, ByWhere, ByAssignment),
        *(InFusedAttention, Renormalised, ExpTimesMask, Folded, Cross),
    ],
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("mask_cells", seeded(module)) == []


# Polarity.


class SaysTheOther(Masked):
    """mask: [B, Q, K], True = may attend."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(allowed, -torch.inf)


class KeepsPadding(Padded):
    """padding: [B, K], 1 = a real token, 0 = padding."""

    def hidden(self, scores: Tensor, padding: Tensor) -> Tensor:
        return scores.masked_fill(padding[:, None, None].bool(), -torch.inf)


@pytest.mark.parametrize(
    ("module", "name", "code"),
    [
        (SaysTheOther, "mask", "scores.masked_fill(allowed, -torch.inf)"),
        (KeepsPadding, "padding", "padding[:, None, None].bool()"),
    ],
)
def test_a_mask_that_forbids_what_it_should_allow(module: type[nn.Module], name: str, code: str) -> None:
    finding = one("mask_cells", seeded(module))
    assert (finding.name, finding.severity) == ("mask-polarity", "bug")
    assert finding.evidence.startswith(f"`{name}` (")
    assert "it masks exactly the cells that it should allow" in finding.evidence
    assert_at(finding, module, code)


class NamedOnly(Padded):
    """Its argument's name is all that speaks of it."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, padding_mask)


class NamedAsTorchNamesIt(NamedOnly):
    """The same."""

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, key_padding_mask)


def test_a_name_alone_is_a_risk_unless_it_is_torchs_own() -> None:
    finding = one("mask_cells", seeded(NamedOnly))
    assert (finding.name, finding.severity) == ("mask-polarity", "risk")
    assert "the name padding_mask says" in finding.evidence
    finding = one("mask_cells", seeded(NamedAsTorchNamesIt))
    assert (finding.name, finding.severity) == ("mask-polarity", "bug")


# Masks that forbid nothing.


class AddsItAsItIs(Masked):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores + allowed.float()


class AddsPadding(Padded):
    def hidden(self, scores: Tensor, padding: Tensor) -> Tensor:
        return scores + padding[:, None, None]


@pytest.mark.parametrize("module", [AddsItAsItIs, AddsPadding])
def test_zeros_and_ones_that_are_added(module: type[nn.Module]) -> None:
    finding = one("mask_cells", seeded(module))
    assert (finding.name, finding.severity) == ("mask-added", "bug")


class Multiplies(Masked):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return scores
        return scores * allowed


class MultipliesPadding(Padded):
    def hidden(self, scores: Tensor, padding: Tensor) -> Tensor:
        return torch.mul(scores, padding[:, None, None])


@pytest.mark.parametrize(
    ("module", "code"), [(Multiplies, "return scores * allowed"), (MultipliesPadding, "return torch.mul(")]
)
def test_scores_that_are_multiplied(module: type[nn.Module], code: str) -> None:
    finding = one("mask_cells", seeded(module))
    assert (finding.name, finding.severity) == ("mask-multiplied", "bug")
    assert "masked scores become 0" in finding.evidence
    assert_at(finding, module, code)


class AfterTheSoftmax(Masked):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        weights = torch.softmax(q @ k.mT / 2, dim=-1)
        if allowed is not None:
            weights = weights.masked_fill(~allowed, 0.0)
        return self.out(self.merge(weights @ v))


class PaddingAfterTheSoftmax(Padded):
    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).div(2).softmax(-1)
        if padding is not None:
            weights = weights * padding[:, None, None]
        return self.proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


@pytest.mark.parametrize(
    ("module", "code"),
    [(AfterTheSoftmax, "weights = torch.softmax("), (PaddingAfterTheSoftmax, ".div(2).softmax(-1)")],
)
def test_a_mask_that_acts_after_the_softmax(module: type[nn.Module], code: str) -> None:
    finding = one("mask_cells", seeded(module))
    assert (finding.name, finding.severity) == ("mask-after-softmax", "bug")
    assert 0 < finding.numbers["sum"] < 1
    assert_at(finding, module, code)


class Tiny(Masked):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, 1e-9)


class Tenth(Padded):
    def hidden(self, scores: Tensor, padding: Tensor) -> Tensor:
        return scores - (1 - padding[:, None, None].float()) * 5


class Thousand(Masked):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else torch.where(allowed, scores, -2000.0)


@pytest.mark.parametrize(
    ("module", "severity", "fill", "words", "code"),
    [
        (Tiny, "bug", 1e-9, "sets masked scores to 1e-09 (1e-9 for -1e9?)", "masked_fill(~allowed, 1e-9)"),
        (Tenth, "bug", -5, "lowers masked scores by only 5", "scores - (1 - padding"),
        (Thousand, "risk", -2000, "sets forbidden cells to only -2000", "torch.where(allowed, scores, -2000.0)"),
    ],
)
def test_a_fill_that_scores_can_beat(
    module: type[nn.Module], severity: str, fill: float, words: str, code: str
) -> None:
    finding = one("mask_cells", seeded(module))
    assert (finding.name, finding.severity) == ("mask-fill-too-small", severity)
    assert words in finding.evidence
    assert finding.numbers["fill"] == pytest.approx(fill, rel=1e-5)
    assert_at(finding, module, code)


class TooLowForHalf(Masked):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, -1e9)


def test_a_fill_that_float16_does_not_hold_is_a_note() -> None:
    finding = one("mask_cells", seeded(TooLowForHalf))
    assert (finding.name, finding.severity) == ("mask-overflows-half", "note")
    assert finding.numbers["fill"] == -1e9
    assert_at(finding, TooLowForHalf, "masked_fill(~allowed, -1e9)")


# Masks that forbid other cells.


class HidesQueries(Padded):
    """padding: [B, K], 1 = a real token; laid out over the queries."""

    def hidden(self, scores: Tensor, padding: Tensor) -> Tensor:
        return scores.masked_fill(padding[:, None, :, None] == 0, -torch.inf)


class Transposed(Masked):
    """mask: [B, Q, K], True = may attend."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed.mT, -torch.inf)


class RepeatsInTheWrongOrder(Masked):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return scores
        b, h, q, k = scores.shape
        repeated = allowed[:, 0].repeat(h, 1, 1)
        return scores.view(b * h, q, k).masked_fill(~repeated, -torch.inf).view(scores.shape)


class RepeatsPaddingInTheWrongOrder(Padded):
    def hidden(self, scores: Tensor, padding: Tensor) -> Tensor:
        b, h, _, k = scores.shape
        keys = padding.bool().repeat(h, 1).view(b, h, 1, k)
        return torch.where(keys, scores, -torch.inf)


def test_padding_that_hides_queries() -> None:
    finding = one("mask_cells", seeded(HidesQueries))
    assert (finding.name, finding.severity) == ("mask-broadcast", "bug")
    assert "masks queries instead of keys" in finding.evidence
    assert_at(finding, HidesQueries, "padding[:, None, :, None]")


def test_a_transposed_mask() -> None:
    finding = one("mask_cells", seeded(Transposed))
    assert (finding.name, finding.severity) == ("mask-broadcast", "bug")
    assert "masks the transposed cells" in finding.evidence
    assert_at(finding, Transposed, "~allowed.mT")


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (RepeatsInTheWrongOrder, "masked_fill(~repeated, -torch.inf)"),
        (RepeatsPaddingInTheWrongOrder, "torch.where(keys, scores"),
    ],
)
def test_masks_of_another_example(module: type[nn.Module], code: str) -> None:
    finding = one("mask_cells", seeded(module))
    assert (finding.name, finding.severity) == ("mask-head-order", "bug")
    assert "of example 1 acts on head 1 of example 0" in finding.evidence  # b0 b1 b2 b0 over h0 h1 h2 h3
    assert_at(finding, module, code)


def test_without_a_mask_there_is_nothing_to_check() -> None:
    with pytest.raises(NotChecked, match="takes no mask"):
        found("mask_cells", seeded(Plain))


class Unsaid(Einsum):
    """Nothing is said of its mask."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 2
        if mask is not None:
            scores = self.with_mask(scores, mask)
        return self.proj(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2))

    def with_mask(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask


class AddsPaddingUnsaid(Unsaid):
    def with_mask(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask[:, None, None]


class AddsCellsUnsaid(Unsaid):
    def with_mask(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask[:, None, :, :]


class AddsPaddingAsSaid(AddsPaddingUnsaid):
    """mask: [B, K], additive, 0 for tokens and -inf for padding."""


class BoolOrFloat(AddsCellsUnsaid):
    """mask: [B, Q, K], bool with True where attending is allowed, or float to be added."""


class ReallyBoolOrFloat(BoolOrFloat):
    """mask: [B, Q, K], bool with True where attending is allowed, or float to be added."""

    def with_mask(self, scores: Tensor, mask: Tensor) -> Tensor:
        if mask.dtype == torch.bool:
            return scores.masked_fill(~mask[:, None], -torch.inf)
        return super().with_mask(scores, mask)


@pytest.mark.parametrize(
    ("kind", "severity"), [(AddsPaddingUnsaid, "bug"), (AddsCellsUnsaid, "risk"), (BoolOrFloat, "bug")]
)
def test_an_added_mask_of_which_nothing_is_said(kind: type[nn.Module], severity: str) -> None:
    finding = one("mask_cells", seeded(kind))
    assert (finding.name, finding.severity) == ("mask-added", severity)


def test_an_added_mask_that_is_healthy() -> None:
    for kind in (Unsaid, AddsPaddingAsSaid, ReallyBoolOrFloat):
        assert found("mask_cells", seeded(kind)) == []


class ClearsTheMemory(Cross):
    """memory_mask: [B, K], True = a real token. The others are set to 0, and still attended to."""

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        if memory_mask is not None:
            memory = memory * memory_mask[..., None]
        return self.attend(x, memory, None)


class ClearsTheValues(Masked):
    """padding_mask: [B, K], True = a real token."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if padding_mask is not None:
            v = v * padding_mask[:, None, :, None]
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


class ClearsAndMasks(Cross):
    """memory_mask: [B, K], True = a real token. NaN in the others does not matter."""

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        if memory_mask is not None:
            memory = memory.masked_fill(~memory_mask[..., None].bool(), 0.0)
        return super().forward(x, memory, memory_mask)


@pytest.mark.parametrize("kind", [ClearsTheMemory, ClearsTheValues])
def test_masked_keys_that_keep_their_weight(kind: type[nn.Module]) -> None:
    finding = one("mask_cells", seeded(kind))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")
    assert finding.numbers["weight"] > 1e-3
    assert found("mask_cells", seeded(ClearsAndMasks)) == []


class RowsOfPadding(Padded):
    """padding: [B, K], 1 = a real token, 0 = padding. Padding attends to itself, so that no row is empty."""

    def hidden(self, scores: Tensor, padding: Tensor) -> Tensor:
        allowed = padding[:, None, None].bool() | torch.eye(scores.shape[-1], dtype=torch.bool)
        return scores.masked_fill(~allowed, -torch.inf)


def test_rows_of_padding_may_see_anything() -> None:
    assert found("mask_cells", seeded(RowsOfPadding)) == []


class InvertsWhatIsAdded(Attention):
    """What is passed is 0, or far below."""

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        scores = self.score(q, k)
        if attention_mask is not None:
            scores = scores + torch.where(attention_mask < 0, 0.0, torch.finfo(scores.dtype).min)
        found: Tensor = self.out(self.merge(scores.softmax(-1) @ v))
        return found


def test_an_additive_mask_that_is_inverted() -> None:
    passed = torch.zeros(2, 1, 5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), torch.finfo(torch.float32).min)
    example = ((torch.randn(2, 5, 16),), {"attention_mask": passed})
    (finding,) = check(Patient(seeded(InvertsWhatIsAdded), example=example))
    assert (finding.name, finding.severity) == ("mask-polarity", "bug")
