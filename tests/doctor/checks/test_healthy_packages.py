"""Habits of popular packages, each in a small module: how it is called is found, and no check calls it wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.calling.forward_arguments import Sizes
from headwise.doctor.calling.interface import discover
from headwise.doctor.diagnosis import diagnose
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.decoding import _tail
from tests.doctor.checks.specimens import Attention, Cross, found, one, seeded
from tests.doctor.laws.scores import one as law

# How they are called.


class OneOrTwo(Attention):
    """Attends to `key` or to its own input, by an option, as in FSMT."""

    def forward(self, query: Tensor, key: Tensor | None) -> Tensor:
        return self.attend(query, query, None)


def test_a_memory_that_is_the_input_itself() -> None:
    x = torch.randn(2, 6, 16)
    assert discover(seeded(OneOrTwo), example=((x,), {"key": x})).takes == "self"
    assert discover(seeded(OneOrTwo), example=((x,), {"key": x.clone()})).takes == "memory"


class Local(Attention):
    """Blocks of four tokens, each with the block before it; a block before the first is the last, as in Reformer.

    Fewer tokens than a block attend to one another.
    """

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        if x.shape[1] <= 4:
            return self.out(self.merge(self.score(q, k).softmax(-1) @ v))
        q, k, v = (y.unflatten(2, (-1, 4)) for y in (q, k, v))
        scores = self.score(*self.placed(q, self.with_last(k)))
        if attention_mask is not None:
            real = self.with_last(attention_mask.bool()[:, None, :, None].unflatten(2, (-1, 4)))
            scores = scores.masked_fill(~real.mT, -1e9)
        return self.out(self.merge((scores.softmax(-1) @ self.with_last(v)).flatten(2, 3)))

    def with_last(self, y: Tensor) -> Tensor:
        return torch.cat([y.roll(1, 2), y], 3)

    def placed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k


class LocalRotary(Local):
    """The positions of a key begin anew in every block, as in local-attention."""

    def placed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        angle = torch.arange(8.0)[:, None] * 10.0 ** -torch.arange(2.0)
        cos, sin = (torch.cat([f, f], -1) for f in (angle.cos(), angle.sin()))

        def turned(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat([-b, a], -1) * sin

        return turned(q, cos[4:], sin[4:]), turned(k, cos, sin)


LENGTH = {"max_len": 24}


def local(kind: type[Local]) -> nn.Module:
    module = seeded(kind)
    module.max_len = LENGTH["max_len"]
    return module


def test_the_length_must_be_whole_blocks() -> None:
    interface = discover(local(Local))
    assert (interface.batch_first, interface.length) == (True, 24)


def test_keys_of_blocks_keep_their_order() -> None:
    assert [x.name for x in found("mask_cells", local(Local)) if x.severity == "bug"] == []


def test_keys_of_blocks_may_have_several_angles() -> None:
    with pytest.raises(NotChecked):
        law("rotary", local(LocalRotary))


class Padded(nn.Module):
    """An operator that pads queries and keys to whole blocks of eight."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        blocks = [functional.pad(x, (0, 0, 0, -x.shape[1] % 8)).unflatten(1, (-1, 8)).flatten(0, 1) for x in (q, k, v)]
        real = functional.pad(torch.ones(len(k), k.shape[1]), (0, -k.shape[1] % 8)).bool().view(-1, 1, 8)
        scores = torch.bmm(blocks[0], blocks[1].mT) / q.shape[-1] ** 0.5
        mixed = torch.bmm(scores.masked_fill(~real, -torch.inf).softmax(-1), blocks[2])
        return mixed.view(len(q), -1, v.shape[-1])[:, : q.shape[1]]


def test_a_few_more_keys_may_fit_into_a_block() -> None:
    assert discover(Padded()).same_length


class Seventeen(Attention):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 17
        return self.attend(x, x, None)


def test_the_length_of_the_example() -> None:
    assert discover(seeded(Seventeen), example=((torch.randn(2, 17, 16),), {})).length == 17


class OnlyOne(Attention):
    """Packed documents: one row, and a memory that ends with it."""

    def forward(self, x: Tensor, memory: Tensor, width: Tensor) -> Tensor:
        assert len(x) == 1
        assert width.shape == (1, 2, 3)
        return self.attend(x, torch.cat([memory, x], 1), None)


@pytest.mark.slow
def test_a_call_of_one_example_alone_is_made_for_each() -> None:
    example = (torch.randn(1, 6, 16), torch.randn(1, 4, 16), torch.zeros(1, 2, 3)), {}
    interface = discover(seeded(OnlyOne), example=example)
    assert (interface.way.layout, interface.way.lengths) == ("1NM", (6, 4))
    assert interface.run(interface.inputs(3)).output.shape == (3, 5, 16)


class Hungry(Attention):
    """Takes square maps; whatever else it is given costs all memory."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != x.shape[2]:
            raise MemoryError
        return self.attend(x.flatten(1, 2), x.flatten(1, 2), None).view_as(x)


def test_memory_that_a_wrong_guess_takes_says_nothing() -> None:
    assert discover(seeded(Hungry), example=((torch.randn(2, 4, 4, 16),), {})).way.layout == "BHWM"


class Silent(Attention):
    """Its `train` returns nothing, as in LeViT."""

    def train(self, mode: bool = True) -> Any:
        super().train(mode)


def test_a_train_that_returns_nothing() -> None:
    assert diagnose(seeded(Silent)).healthy


# Masks.


class OfInputs(Attention):
    """A mask of the memory that is not given, as in Perceiver."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        inputs: Tensor | None = None,
        inputs_mask: Tensor | None = None,
    ) -> Tensor:
        memory, mask = (hidden_states, attention_mask) if inputs is None else (inputs, inputs_mask)
        return self.attend(hidden_states, memory, None if mask is None else mask.bool()[:, None])


def test_a_mask_of_an_input_that_is_not_given() -> None:
    assert {m.parameter for m in discover(seeded(OfInputs)).masks} == {"attention_mask"}
    assert found("mask_ignored", seeded(OfInputs)) == []


class Cells(Cross):
    """A mask of cells beside one of the keys."""

    def forward(
        self, query: Tensor, key: Tensor, attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        return self.attend(query, key, self.both(attn_mask, None if key_padding_mask is None else ~key_padding_mask))


def test_a_mask_of_queries_and_keys_is_not_that_of_the_queries() -> None:
    assert found("cross_mask", seeded(Cells)) == []


class Indexed(Attention):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        n = x.shape[1]
        # Boolean mask: True = forbidden.
        index_mask = torch.ones(n, n).tril(-n).bool()  # [Q, K]; True = masked
        mask = ~index_mask if attention_mask is None else attention_mask.bool()
        return self.attend(x, x, mask[:, None] if mask.ndim == 3 else mask)


def test_a_comment_is_about_the_mask_of_its_statement() -> None:
    (said,) = {(m.claim, m.form) for m in discover(seeded(Indexed)).masks}
    assert said == ('"""Masks: True = may attend."""', "allowed")  # what its base class says


class Decoder(Attention):
    is_decoder = False

    def forward(self, x: Tensor) -> Tensor:
        allowed = None
        # Causal mask
        if self.is_decoder is True:
            allowed = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        return self.attend(x, x, allowed)


def test_a_comment_above_an_option_that_is_off() -> None:
    module = seeded(Decoder)
    assert discover(module).causal_claim == ""
    module.is_decoder = True
    assert discover(module).causal_claim == 'comment "Causal mask"'


class Kernel(Attention):
    """Linear attention that looks only back; each exp is stabilised with a maximum, as in Performers."""

    def maximum(self, k: Tensor) -> Tensor:
        return k.amax(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        q, k = q.sigmoid(), (k - self.maximum(k)).exp() + 1e-3
        weights = (q @ k.mT).tril()
        return self.out(self.merge(weights / (weights.sum(-1, keepdim=True) + 1e-3) @ v))


class LeakyKernel(Kernel):
    def maximum(self, k: Tensor) -> Tensor:
        return k.amax((-2, -1), keepdim=True)


def test_a_maximum_of_all_tokens_leaks() -> None:
    assert [x.name for x in found("mask_fill", seeded(Kernel))] == []
    finding = one("mask_fill", seeded(LeakyKernel))
    assert (finding.name, finding.severity) == ("causal-leak", "bug")


# Positions and scales.


class OneQuery(Attention):
    """A learned query pools all tokens, as in VideoPrism."""

    def __init__(self) -> None:
        super().__init__(heads=1)
        self.query = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(y) for y in (self.q(self.query.expand(len(x), -1, -1)), self.k(x), self.v(x)))
        q = q * (1 + torch.arange(16) / 4)
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


def test_a_learned_query_is_not_rotated() -> None:
    with pytest.raises(NotChecked):
        law("rotary", seeded(OneQuery))


class Narrow(Attention):
    """Heads too narrow for their parts of RoPE, as in a small V-JEPA 2."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        part = 2 * (q.shape[-1] // 3 // 2)
        angle = torch.arange(q.shape[2])[:, None] * torch.ones(part // 2)
        cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
        q, k = (torch.cat([x[..., :part] * cos + x[..., :part] * sin, x[..., part:]], -1) for x in (q, k))
        return super().score(q, k)


def test_angles_of_no_features_are_not_forgotten() -> None:
    with pytest.raises(NotChecked):
        law("rotary", seeded(Narrow))


_OF_POSITIONS = ("rope-axis", "positions-ignored")


class OverHeads(Attention):
    """Rotated by the number of the head, as in XCodec 2."""

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        assert position_embeddings[0].ndim == 2
        cos, sin = (t[:4, None] for t in position_embeddings)
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        q, k = (y * cos + torch.cat([-y[..., 2:], y[..., :2]], -1) * sin for y in (q, k))
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


@pytest.mark.parametrize(("released", "severity"), [(True, "risk"), (False, "bug")])
def test_positions_over_the_heads_are_one_finding(
    released: bool, severity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Patient, "is_library", released)
    angle = torch.arange(6.0)[:, None] * torch.tensor([1.0, 0.1, 1.0, 0.1])
    example = (torch.randn(2, 6, 16),), {"position_embeddings": (angle.cos(), angle.sin())}
    findings = diagnose(seeded(OverHeads), example=example).findings
    assert [(x.name, x.severity) for x in findings if x.name in _OF_POSITIONS] == [("rope-axis", severity)]


class Normed(Attention):
    """Queries and keys of norm sqrt(width), without a scale, as in NaViT."""

    def gain(self, x: Tensor) -> Tensor:
        return x * x.shape[-1] ** 0.5

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = (self.gain(functional.normalize(x, dim=-1)) for x in (q, k))
        return q @ k.mT


class Gained(Normed):
    """The same, with learned gains."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(4))

    def gain(self, x: Tensor) -> Tensor:
        return super().gain(x) * self.gamma


@pytest.mark.parametrize(("kind", "severity"), [(Normed, "note"), (Gained, "note")])
def test_learned_gains_learn_the_scale(kind: type[nn.Module], severity: str) -> None:
    assert law("scale", seeded(kind)).severity == severity


class Windowed(Attention):
    """Biases of the rows and columns of a window."""

    def __init__(self) -> None:
        super().__init__()
        self.window_size = (4, 4)
        self.bias = nn.Parameter(torch.randn(16, 16))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + self.bias[: q.shape[2], : k.shape[2]]


def test_places_of_a_window_are_not_shifted_by_padding() -> None:
    with pytest.raises(NotApplicable, match="rows and columns"):
        found("left_padding", seeded(Windowed))
    module = seeded(Windowed)
    module.window_size = 4
    assert one("left_padding", module).severity == "risk"


class Continuous(Attention):
    """A small network gives the biases of distances; for these few, some of its units are off, as in Swin 2."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 4, bias=False))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        at = torch.arange(float(q.shape[2]))
        return super().score(q, k) + self.mlp((at - at[:, None])[..., None] / 100).permute(2, 0, 1)


def test_units_that_are_off_are_not_unused() -> None:
    module = seeded(Continuous)
    with torch.no_grad():
        module.mlp[0].bias.copy_(torch.where(torch.arange(64) < 24, -1.0, 1.0))
    assert found("idle_part", module) == []


class Drawn(Attention):
    """Queries that are drawn, as in slot attention."""

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(torch.randn_like(x), x, None)


@pytest.mark.parametrize(("released", "severity"), [(True, "note"), (False, "risk")])
def test_what_a_released_method_draws(released: bool, severity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patient, "is_library", released)
    assert one("determinism", seeded(Drawn)).severity == severity


def test_a_step_gets_the_biases_of_all_keys() -> None:
    """ALiBi's, which the model around BLOOM's attention makes."""
    four, five = (Sizes(2, n, n, 16, torch.float32, torch.device("cpu")) for n in (4, 5))
    assert _tail(lambda at: torch.zeros(8, 1, at.keys), four, five, 3, 4).shape == (8, 1, 4)
    assert _tail(lambda at: torch.zeros(2, at.queries, 6), four, five, 3, 4).shape == (2, 1, 6)
