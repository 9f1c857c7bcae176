"""Two attentions with the same weights: the same maths in different styles, and where different maths part."""

from __future__ import annotations

import importlib.util
import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from headwise.doctor.calling.spec import Spec
from headwise.doctor.comparing.compare import Comparison, compare
from headwise.doctor.comparing.dimensions import Dimensions
from headwise.doctor.comparing.peers import build_peer
from headwise.doctor.gradients.gradcheck import gradcheck
from headwise.errors import DoctorError
from tests.doctor.laws.specimens import altered


class Separate(nn.Module):
    """Four Linears, `@`, one input."""

    def __init__(self, dim: int = 12, heads: int = 3, scale: float | None = None) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, self.head_dim).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.to_q(x)), self.split(self.to_k(x)), self.split(self.to_v(x))
        scores = q @ k.transpose(-1, -2) * self.scale
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.to_out(self.merge(self.weigh(scores) @ v))

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)


class Fused(nn.Module):
    """One Linear for three, SDPA; the mask is what SDPA takes."""

    def __init__(self, dim: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.n_head = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.proj(y.transpose(1, 2).flatten(2))


class Einsum(nn.Module):
    """Weight tensors [M, H, D] whose names say nothing, einsum, query, key and value; gives the weights too."""

    def __init__(self, dim: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.num_heads = heads
        shapes = ((dim, heads, dim // heads),) * 3 + ((heads, dim // heads, dim),)
        self.wa, self.wb, self.wc, self.wd = (nn.Parameter(0.3 * torch.randn(shape)) for shape in shapes)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        v = torch.einsum("bnm,mhd->bnhd", value, self.wa)
        k = torch.einsum("bnm,mhd->bnhd", key, self.wb)
        q = torch.einsum("bnm,mhd->bnhd", query, self.wc)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, -1)
        out = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        return torch.einsum("bqhd,hdm->bqm", out, self.wd), weights


def assert_same(found: Comparison) -> None:
    assert found.same
    assert found.parted is None
    assert found.largest < 1e-12
    assert not any(row.problem for row in found.rows)


@pytest.mark.parametrize(("first", "second"), [(Separate, Fused), (Einsum, Fused)])
def test_the_same_maths_in_other_styles_is_the_same(first: type[nn.Module], second: type[nn.Module]) -> None:
    found = compare(first(), second())
    assert_same(found)
    assert found.dtype == "float64"
    assert {row.mask for row in found.rows} == {"none", "causal", "padding", "random", "random by example"}
    assert {"q.weight", "k.weight", "v.weight", "o.weight"} <= set(found.mapping)


def test_silent_names_are_mapped_by_what_the_parameters_go_into() -> None:
    found = compare(Separate(), Einsum())
    assert found.mapping["q.weight"].startswith("to_q.weight = wc")
    assert found.mapping["k.weight"].startswith("to_k.weight = wb")
    assert found.mapping["v.weight"].startswith("to_v.weight = wa")
    assert found.mapping["o.weight"].startswith("to_out.weight = wd")
    assert "Einsum has no bias of q, k, v, o: in Separate it was set to 0" in found.notes


@pytest.mark.parametrize("peer", ["torch", "headwise"])
def test_peers_with_other_lengths_of_keys(peer: str) -> None:
    found = compare(Einsum(), peer)
    assert_same(found)
    assert {(row.queries, row.keys) for row in found.rows} > {(3, 7), (7, 3), (1, 6)}
    if peer == "torch":  # which gives its weights, a matrix a head
        assert all(row.weights is not None and row.weights < 1e-12 for row in found.rows)


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed")
def test_keras_as_a_peer() -> None:
    found = compare(Separate(), "keras")
    assert_same(found)
    assert "query.kernel" in found.mapping["q.weight"]


def test_without_keras_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.doctor.comparing.peers.importlib.util.find_spec", lambda name: None)
    with pytest.raises(DoctorError, match="keras is not installed"):
        compare(Separate(), "keras")


def test_rotary_positions_part_at_the_scores_in_the_line_that_rotates() -> None:
    found = compare(Separate(), "hf:llama")
    assert not found.same
    assert found.parted.agreed == ("queries", "keys", "values")
    assert found.parted.stage == "scores"
    assert "rotate_half" in found.parted.second.where.code
    assert any("float32" in note for note in found.notes)  # the softmax of transformers


def test_another_scale_parts_at_the_scores() -> None:
    """0.25 in place of 1 / √4: half as large."""
    found = compare(Separate(scale=0.25), Einsum())
    assert not found.same
    assert (found.parted.stage, found.parted.agreed) == ("scores", ("queries", "keys", "values"))
    assert found.parted.ratio == pytest.approx(0.5)
    assert found.parted.first.where.file.endswith("test_compare.py")
    assert found.parted.first.where.code == "scores = q @ k.transpose(-1, -2) * self.scale"


def test_a_detach_leaves_the_outputs_alone_and_is_found_by_its_line() -> None:
    found = compare(altered(Separate, weigh=lambda self, x: x.softmax(-1).detach()), "torch")
    assert not found.same
    assert all(row.output < 1e-12 for row in found.rows)
    assert found.parted.stage == "gradients"
    assert "x.softmax(-1).detach()" in found.parted.first.where.code


def test_a_mask_the_wrong_way_round_shows_under_masks_alone() -> None:
    """It hides the queries at padding in place of the keys: right without a mask."""

    def forward(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return Separate.forward(self, x, None if mask is None else mask.transpose(-1, -2))

    found = compare(altered(Separate, forward=forward), "torch", spec=Spec(mask="allowed", mask_shape="B1QK"))
    by_mask = {mask: [row.same for row in found.rows if row.mask == mask] for mask in ("none", "causal")}
    assert all(by_mask["none"])
    assert not all(by_mask["causal"])
    assert (found.parted.stage, found.parted.first.name) == ("scores", "masked_fill")


def test_a_mistake_in_merging_the_heads_parts_at_the_output() -> None:
    found = compare(altered(Separate, merge=lambda self, x: x.reshape(len(x), -1, 12)), "torch")
    assert found.parted.stage == "output"
    assert found.parted.agreed == ("queries", "keys", "values", "scores", "weights", "context")


class Shared(nn.Module):
    """One small matrix for all heads, as many tutorials have it."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 3
        self.values, self.keys, self.queries = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.fc_out = nn.Linear(12, 12)

    def forward(self, values: Tensor, keys: Tensor, query: Tensor) -> Tensor:
        v, k, q = (x.reshape(*x.shape[:2], 3, 4) for x in (values, keys, query))
        energy = torch.einsum("nqhd,nkhd->nhqk", self.queries(q), self.keys(k))
        out = torch.einsum("nhql,nlhd->nqhd", torch.softmax(energy / 2, dim=3), self.values(v))
        return self.fc_out(out.flatten(2))


class Heads(nn.Module):
    """Linears of each head, causal by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (
            nn.ModuleList(nn.Linear(12, 4, bias=False) for _ in range(3)) for _ in range(3)
        )
        self.proj = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1]).tril() == 0
        outs = []
        for key, query, value in zip(self.key, self.query, self.value, strict=True):
            scores = query(x) @ key(x).mT / 2
            outs.append(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value(x))
        return self.proj(torch.cat(outs, dim=-1))


class Grouped(nn.Module):
    """Four heads that share two of keys and values, in one Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = 4, 2
        self.qkv_proj = nn.Linear(16, 32)
        self.o_proj = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv_proj(x).split([16, 8, 8], dim=-1)
        q, k, v = (y.unflatten(-1, (-1, 4)).transpose(1, 2) for y in (q, k, v))
        k, v = self.scaled(k).repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        return self.o_proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def scaled(self, k: Tensor) -> Tensor:
        return k


@pytest.mark.parametrize("mine", [Shared, Heads, Grouped])
def test_weights_that_are_held_in_unusual_ways(mine: type[nn.Module]) -> None:
    found = compare(mine(), "torch")
    assert found.same
    assert found.largest < 1e-12
    assert all("no mask argument" in row.problem for row in found.rows if row.problem)
    assert {"q.weight", "k.weight", "v.weight"} <= set(found.mapping)
    if mine is Heads:
        assert "Heads is causal by itself; torch is passed a causal mask" in found.notes
        assert found.mapping["q.weight"].startswith("query.0.weight … query.2.weight")


def test_keys_that_are_repeated_for_their_heads_are_the_same_keys() -> None:
    found = compare(altered(Grouped, scaled=lambda self, k: 0.5 * k), "torch")  # whose keys are repeated in its weights
    assert (found.parted.stage, found.parted.agreed) == ("scores", ("queries", "keys", "values"))
    assert "0.5 * k" in found.parted.first.where.code


def test_the_operation_is_looked_for_after_what_agrees() -> None:
    """Queries that are scaled first are nowhere in the other module, and yet not where the two part."""
    found = compare(altered(Separate, weigh=lambda self, x: 2 * x.softmax(-1)), Separate())
    assert (found.parted.stage, found.parted.ratio) == ("context", pytest.approx(2.0))
    assert (found.parted.first.name, found.parted.first.shape[-2:]) == ("mul", (5, 5))


def test_neither_module_is_changed() -> None:
    first, second = Separate().train(), Fused()
    before = [x.clone() for module in (first, second) for x in module.parameters()]
    compare(first, second)
    after = [x for module in (first, second) for x in module.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert first.training


def test_float32_where_one_cannot_do_better() -> None:
    found = compare(altered(Separate, forward=lambda self, x: Separate.forward(self, x.float())), "torch")
    assert (found.dtype, found.same) == ("float32", True)
    assert any("Separate cannot run in float64" in note for note in found.notes)


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(DoctorError, match="no mapping of the weights fits"):
        compare(Separate(), nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 12)), spec_other=Spec(heads=3, takes="self"))
    with pytest.raises(DoctorError, match=r"must have the same width. Received: 12 and 16"):
        compare(Separate(12), Separate(16, 4))
    with pytest.raises(DoctorError, match=r"must have the same heads. Received: 3 heads of width 4 and 2 of 6"):
        compare(Separate(12, 3), Separate(12, 2))
    with pytest.raises(DoctorError, match=r"transformers .* has no model called 'brt'"):
        compare(Separate(), "hf:brt")
    with pytest.raises(DoctorError, match=r"compare: expected a file.py:Class, .*'jax'"):
        build_peer("jax", Dimensions(3, 3, 4, 4, 12, 12, 12, 12))


def _forever(self: Any, x: Tensor) -> Tensor:
    while True:
        pass


def test_a_forward_that_hangs_gets_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.doctor.comparing.side.LONGEST", 0.5)
    for ask in (lambda x: compare(x, "torch"), gradcheck):
        with pytest.raises(DoctorError, match=r"did not finish within 0.5.* at .*test_compare.py"):
            ask(altered(Separate, forward=_forever))


def test_a_failure_in_one_case_leaves_the_others() -> None:
    def forward(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if x.shape[0] == 1:
            raise ValueError("one is too few")
        return Separate.forward(self, x, mask)

    found = compare(altered(Separate, forward=forward), "torch")
    assert found.same
    (problem,) = {row.problem for row in found.rows if row.problem}
    assert all(row.batch == 1 for row in found.rows if row.problem)
    assert "ValueError: one is too few" in problem


def test_what_it_says_goes_into_json_and_onto_a_terminal() -> None:
    from rich.console import Console

    found = compare(Separate(scale=0.25), "torch")
    told = found.to_dict()
    assert told["same"] is False
    assert told["largest"] == found.largest
    assert told["parted"]["stage"] == "scores"
    assert len(told["rows"]) == len(found.rows)
    out = io.StringIO()
    Console(file=out, width=120).print(found)
    text = " ".join(out.getvalue().split())  # where its lines end does not matter
    assert "They agree in queries, keys, values, and differ at the scores" in text
    assert "those of the first are 0.5 times those of the second" in text
    assert "to_q.weight = in_proj_weight [1 of 3]" in text
