"""What the layers of released model families do on purpose, each in a small module: no check calls it a bug."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise
from headwise.doctor.calling import claims, names
from headwise.doctor.calling.example import as_example
from headwise.doctor.calling.given import Given
from headwise.doctor.calling.interface import discover
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Differential(Attention):
    """The same weights for two halves of the values, as in DiffLlama."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k = self.split(self.q(x)), self.split(self.k(memory))
        halves = self.split(self.v(memory)).chunk(2, dim=1)
        parts = [self.score(q, k).softmax(-1) @ half.repeat(1, 2, 1, 1) for half in halves]
        return self.out(self.merge(parts[0] - 0.5 * parts[1]))


class BothWays(nn.Module):
    """Two inputs attend to each other by one product of scores, as in Grounding DINO."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.of_a, self.of_b = (nn.Linear(16, 16) for _ in range(4))

    def forward(
        self, query: Tensor, memory: Tensor, vision_attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        scores = self.a(query) @ self.b(memory).mT / 4
        back = scores.mT
        if vision_attention_mask is not None:
            back = back.masked_fill(vision_attention_mask[:, None], -torch.inf)
        return scores.softmax(-1) @ self.of_b(memory), back.softmax(-1) @ self.of_a(query)


class Hopeful(Attention):
    """Noise added to the scores drops nothing."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = super().score(q, k)
        return scores + torch.rand_like(scores) if self.training else scores


class TwoStreams(Attention):
    """The dropped weights of one softmax, whose scores go into another one too, as in LiLT."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        scores = self.score(self.split(self.q(x)), self.split(self.k(memory)))
        first = functional.dropout(scores.softmax(-1), 0.5, self.training) @ self.split(self.v(memory))
        second = (2 * scores).softmax(-1) @ self.split(self.v(memory))
        return self.out(self.merge(first + second))


class Tempered(Attention):
    """Every feature of the queries has a factor of its own, as in Gemma's audio layers."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q * torch.linspace(0.5, 2, q.shape[-1]), k)


class Grouped(Attention):
    """Its queries form groups in train mode, as in LW-DETR."""

    groups = 3

    def __init__(self) -> None:
        super().__init__()
        self.groups = 3

    def forward(self, x: Tensor) -> Any:
        if self.training:
            x = torch.cat(x.view(x.shape[0], self.groups, -1, self.width).unbind(1))
        out = self.attend(x, x, None)
        return torch.cat(out.chunk(self.groups), 1) if self.training else out


@pytest.mark.parametrize(
    ("check", "module"),
    [
        ("projection_order", Differential),
        ("layout", BothWays),
        ("laws.masking", BothWays),
        ("dropout_misplaced", Hopeful),
        ("dropout_misplaced", TwoStreams),
        ("rope", Tempered),
    ],
)
def test_no_mistake(check: str, module: type[nn.Module]) -> None:
    assert not [x for x in found(check, seeded(module)) if x.severity == "bug"]


def test_train_mode_of_groups_is_not_checked() -> None:
    with pytest.raises(Exception, match="in train mode it takes other lengths"):
        found("train_eval", seeded(Grouped))


class Model(nn.Module):
    """As in transformers, the class of the models says which implementations they refuse."""

    _supports_sdpa = False


class Sinks(Attention):
    """A learned sink, which the fused path forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.attn_implementation = "eager"

    def normalise(self, scores: Tensor) -> Tensor:
        if self.attn_implementation == "sdpa":
            return scores.softmax(-1)
        return functional.pad(scores, (0, 1)).softmax(-1)[..., :-1]


def test_a_path_that_its_models_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match="one code path"):
        found("paths_differ", seeded(Sinks))
    monkeypatch.setattr(Model, "_supports_sdpa", True)
    assert one("paths_differ", seeded(Sinks)).name == "paths-differ"


# What a model passes to its layers.


class Crossing(Attention):
    def forward(self, x: Tensor, key_value_states: Tensor | None = None) -> Tensor:
        return self.attend(x, x if key_value_states is None else key_value_states, None)


def test_a_memory_that_the_model_passes_is_passed() -> None:
    x, memory = torch.randn(2, 6, 16), torch.randn(2, 9, 16)
    assert discover(seeded(Crossing)).takes == "self"
    assert discover(seeded(Crossing), example=((x, memory), {})).takes == "memory"


class Shared(Attention):
    def forward(self, x: Tensor, shared_kv_states: dict[str, Tensor]) -> Tensor:
        shared_kv_states["last"] = x
        return self.attend(x, x, None)


def test_a_dict_of_states_is_no_memory() -> None:
    assert discover(seeded(Shared), example=((torch.randn(2, 6, 16), {}), {})).takes == "self"


class Pairs(Attention):
    """Positions of pairs of tokens, [N, N, B, D], as in BROS."""

    def forward(self, x: Tensor, pair_pos_emb: Tensor) -> Tensor:
        b, n, _ = x.shape
        self.places = pair_pos_emb.view(n, n, b, self.width // self.heads).permute(2, 0, 1, 3)
        return self.attend(x, x, None)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + torch.einsum("bhid,bijd->bhij", q, self.places)


def test_a_batch_inside() -> None:
    interface = discover(seeded(Pairs), example=((torch.randn(2, 6, 16), torch.randn(6, 6, 2, 4)), {}))
    assert interface.batched
    assert interface.takes == "self"


# What is said.


def test_a_number_with_a_point_ends_no_clause() -> None:
    assert claims.polarity("it is 1.0 for positions we want to attend and 0.0 for") == "allowed"


def test_what_is_said_of_the_opposite_of_a_mask() -> None:
    said = claims.of_mask("mask", "", "        valid = ~mask  # True for valid, False for padded", sole=True)
    assert said == ("", None)


class Global(Attention):
    """Below 0 is padding, above 0 a token that all others see beside their window, as in Longformer."""

    def forward(self, x: Tensor, attention_mask: Tensor, is_index_masked: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        near = ((at[:, None] - at).abs() < 2) | (attention_mask > 0)[:, None]
        assert bool((near.any(-1) & (~is_index_masked).any(-1, keepdim=True)).all())
        return self.attend(x, x, (near & ~is_index_masked[:, None])[:, None])


def test_a_mask_of_three_kinds_is_passed_as_in_the_call() -> None:
    mask = torch.tensor([[1e4, 0, 0, 0, 0, 0], [1e4, 0, 0, 0, -1e4, -1e4]])
    example = ((torch.randn(2, 6, 16), mask, mask < 0), {})
    assert [x.parameter for x in discover(seeded(Global), example=example).masks] == ["is_index_masked"]
    assert headwise.diagnose(seeded(Global), example=example).bugs == ()


class OfTwoStreams(Attention):
    """The second stream has queries of its own, or there is none (XLNet, Yang et al. 2019). All are [N, B, M]."""

    def forward(
        self, h: Tensor, g: Tensor | None, attn_mask_h: Tensor | None, attn_mask_g: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        h = h.transpose(0, 1)
        hides = None if attn_mask_h is None else (attn_mask_h[..., 0].permute(2, 0, 1) == 0)[:, None]
        out = self.attend(h, h, hides).transpose(0, 1)
        if g is None:
            return out, None
        shown = None if attn_mask_g is None else (attn_mask_g[..., 0].permute(2, 0, 1) == 0)[:, None]
        return out, self.attend(g.transpose(0, 1), h, shown).transpose(0, 1)


def test_an_argument_that_the_call_leaves_out_is_no_input() -> None:
    example = ((torch.randn(6, 2, 16), None, torch.zeros(6, 6, 2, 1), torch.zeros(1, 6, 2, 1)), {})
    interface = discover(seeded(OfTwoStreams), example=example)
    assert (dict(interface.way.slots), interface.batch_first) == ({"query": "h"}, False)
    assert headwise.diagnose(seeded(OfTwoStreams), example=example).bugs == ()


class Distances(Attention):
    """Tables of 2 N relative distances, the longest first, for two lengths (Funnel, Dai et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.r = nn.Linear(16, 16)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, tables: tuple[list[Tensor], Tensor]) -> Tensor:
        q, k, v = self.split(self.q(query)), self.split(self.k(key)), self.split(self.v(value))
        scores = q @ self.r(tables[0][0]).unflatten(-1, (-1, q.shape[-1])).permute(1, 2, 0)
        b, h, n, m = scores.shape
        shifted = scores.reshape(b, h, m, n)[:, :, 1:].reshape(b, h, n, m - 1)[..., : k.shape[2]]
        return self.out(self.merge(((q @ k.mT + shifted) / 2).softmax(-1) @ v))


def test_tables_of_relative_distances_fit_one_length() -> None:
    x = torch.randn(2, 6, 16)
    example = ((x, x, x, ([torch.randn(12, 16), torch.randn(6, 16)], torch.zeros(6))), {})
    assert discover(seeded(Distances), example=example).length == 6
    call = as_example(((torch.randn(2, 2, 16),), {"cache": (torch.randn(2, 7, 4, 4), torch.randn(2, 7, 4, 4))}))
    assert not Given.by(call, []).holds_distances()  # 4 heads of 2 tokens are no distances
    assert headwise.diagnose(seeded(Distances), example=example).bugs == ()


class Compressing(Attention):
    """Each 32 tokens are one more key; of fewer there is none (DeepSeek-V4)."""

    def __init__(self) -> None:
        super().__init__()
        self.compress = Compressor()

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, torch.cat((x, self.compress(x)), 1), None)


class Compressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.of_position = nn.Linear(16, 16), nn.Parameter(torch.randn(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        whole = x[:, : x.shape[1] // 32 * 32].unflatten(1, (-1, 32))
        gates = self.gate(x)[:, : whole.shape[1] * 32].unflatten(1, (-1, 32)) + self.of_position
        return (whole * gates.softmax(2)).sum(2)


def test_parts_whose_output_is_empty_in_the_call() -> None:
    example = ((torch.randn(2, 6, 16),), {})
    assert found("unused_parameter", seeded(Compressing), example=example) == []


def test_the_length_of_the_longest_document_is_no_mask() -> None:
    assert (names.role("max_seqlen"), names.role("seqlens")) == ("other", "lengths")
