"""Shapes that docstrings state, and calls that are found by them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise
from headwise.doctor.calling import token_ids
from headwise.doctor.calling.forward_arguments import Sizes
from headwise.doctor.calling.interface import discover
from headwise.doctor.calling.signature import parameters, signature
from headwise.doctor.calling.spec import Spec
from headwise.doctor.calling.stated_shapes import Stated, maker, stated_shapes
from headwise.doctor.patient import Patient
from tests.doctor.checks.specimens import Attention, seeded


class InText(nn.Module):
    """Reads a text.

    x (batch, text, dim), media (batch, images, latents, dim_media), places (batch, text) bool
    item, category: [B]
    """

    def __init__(self, dim: int = 16, dim_media: int = 12) -> None:
        super().__init__()

    def forward(self, x: Tensor, media: Tensor, places: Tensor, item: Tensor, category: Tensor, table: Tensor) -> None:
        """x is mixed with rows [B, N, 3].

        Args:
            table (torch.Tensor): of shape `(bsz, 7, n)`, ids of words
        """


def of(module: nn.Module) -> dict[str, Stated]:
    return stated_shapes(module, signature(module).parameters)


def test_what_is_stated() -> None:
    found = of(InText())
    assert {name: x.shape for name, x in found.items()} == {
        "x": ("batch", "text", "dim"),
        "media": ("batch", "images", "latents", "dim_media"),
        "places": ("batch", "text"),
        "item": ("B",),
        "category": ("B",),
        "table": ("bsz", "7", "n"),
    }
    assert "bool" in found["places"].said
    assert "bool" not in found["x"].said


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("media", (3, 4, 6, 12), torch.float32),  # sizes that nothing states, and the default of dim_media
        ("places", (3, 5), torch.bool),  # as many as there are queries
        ("table", (3, 7, 4), torch.int64),
        ("item", (3,), torch.int64),
    ],
)
def test_values_of_a_stated_shape(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    module = InText()
    module.words = nn.Embedding(10, 16)
    found = of(module)
    made = maker(found[name], {"query": found["x"]}, module)(Sizes(3, 5, 7, 16, torch.float32, torch.device("cpu")))
    assert (made.shape, made.dtype) == (shape, dtype)
    assert torch.equal(made[0], made[1])  # the same for each example
    if dtype == torch.int64:
        assert made.min() >= 1
        assert made.max() < 10


class OfRegions(nn.Module):
    """words: [B, T, q_dim], regions: [B, R, 7], num_regions: [B], limit: [B] how many are read"""

    def forward(self, words: Tensor, regions: Tensor, num_regions: Tensor, limit: Tensor, num_steps: int) -> None: ...


def test_counts_and_widths() -> None:
    module = OfRegions()
    roles = {p.name: p.role for p in parameters(module, Spec())}
    assert (roles["num_regions"], roles["limit"], roles["num_steps"]) == ("lengths", "lengths", "other")
    found = of(module)
    assert (found["words"].width(module), found["regions"].width(module)) == (None, 7)
    module.q_dim = 12
    assert found["words"].width(module) == 12


class OfAMap(nn.Module):
    """src: [B, C, H, W], pos: [B, C, H, W], mask: [B, H, W] bool"""

    def forward(self, src: Tensor, pos: Tensor, mask: Tensor) -> None: ...


def test_values_beside_a_map() -> None:
    module = OfAMap()
    found = of(module)
    at = Sizes(2, 24, 24, 16, torch.float32, torch.device("cpu"))  # tokens of 4 rows and 6 columns
    made = [maker(found[name], {"query": found["src"]}, module)(at) for name in ("pos", "mask")]
    assert [x.shape for x in made] == [(2, 16, 4, 6), (2, 4, 6)]


class WithAStar(nn.Module):
    """m: [*, N, 16] as AlphaFold writes it, far: [B, p, q, r, s]"""

    def forward(self, m: Tensor, far: Tensor) -> None: ...


def test_a_star_is_a_batch_and_sizes_may_all_be_free() -> None:
    module = WithAStar()
    found = of(module)
    assert found["m"].shape == ("*", "N", "16")
    made = maker(found["far"], {"query": found["m"]}, module)(Sizes(2, 5, 5, 16, torch.float32, torch.device("cpu")))
    assert made.shape == (2, 4, 6, 8, 10)
    assert made.is_contiguous()


def test_fewer_tokens_have_the_same_values() -> None:
    module = OfRows()
    found = of(module)
    make = maker(found["z"], {"query": found["m"]}, module)
    few, many = (make(Sizes(2, n, n, 16, torch.float32, torch.device("cpu"))) for n in (3, 5))
    assert few.shape == (2, 3, 3, 6)
    assert torch.equal(few, many[:, :3, :3])


class OfRows(Attention):
    """m: [B, rows, N, 16], z: [B, N, N, c_z]"""

    def __init__(self, c_z: int = 6) -> None:
        super().__init__()
        self.bias = nn.Linear(c_z, self.heads, bias=False)

    def forward(self, m: Tensor, z: Tensor) -> Tensor:
        q, k, v = (f(m).unflatten(-1, (self.heads, -1)).transpose(2, 3) for f in (self.q, self.k, self.v))
        scores = self.score(q, k) + self.pairs(self.bias(z))[:, None]
        return self.out((scores.softmax(-1) @ v).transpose(2, 3).flatten(3))

    def pairs(self, bias: Tensor) -> Tensor:
        return bias.permute(0, 3, 1, 2)


class Reshaped(OfRows):
    """m: [B, rows, N, 16], z: [B, N, N, c_z]"""

    def pairs(self, bias: Tensor) -> Tensor:
        return bias.reshape(len(bias), self.heads, *bias.shape[1:3])


def test_rows_with_a_bias_of_pairs() -> None:
    found = discover(seeded(OfRows))
    assert (found.way.layout, found.takes, found.way.slots) == ("B1NM", "self", (("query", "m"),))
    assert not headwise.diagnose(seeded(OfRows)).bugs
    assert headwise.diagnose(seeded(Reshaped)).bugs


class OfMedia(Attention):
    """x: (batch, text, 16), media: (batch, images, latents, 16)"""

    def forward(self, x: Tensor, media: Tensor) -> Tensor:
        return self.attend(x, media.flatten(1, 2), None)


class ByKeys(OfMedia):
    """x: (batch, text, 16), media: (batch, images, latents, 16)"""

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)


def test_a_memory_of_rows() -> None:
    found = discover(seeded(OfMedia))
    assert (found.way.layout, found.takes) == ("BNM,B1NM", "memory")
    assert not headwise.diagnose(seeded(OfMedia)).bugs
    assert "softmax-axis" in {x.name for x in headwise.diagnose(seeded(ByKeys)).bugs}


class Distances(nn.Module):
    """spd: long [B, N, N], the hops between two nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(6, 4)

    def forward(self, x: Tensor, spd: Tensor) -> Tensor:
        return x + self.bias(spd).mean(2)[..., :1]


def test_that_numbers_are_whole_may_stand_before_their_shape() -> None:
    module = Distances()
    make = maker(of(module)["spd"], {}, module)
    found = make(Sizes(2, 5, 5, 16, torch.float32, torch.device("cpu")))
    assert found.dtype == torch.int64
    assert int(found.max()) < 6


def test_ids_of_pairs_are_the_same_for_fewer_tokens() -> None:
    module = Distances()
    make = maker(of(module)["spd"], {"query": Stated("x", ("B", "N", "M"), "")}, module)
    long, short = (make(Sizes(2, n, n, 16, torch.float32, torch.device("cpu"))) for n in (5, 4))
    assert torch.equal(long[:, :4, :4], short)


class WithAVirtualNode(nn.Module):
    """x [B, N + 1, M], bias [B, heads, N + 1, N + 1], spd [B, N, N] long."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.table = heads, nn.Embedding(6, heads)

    def forward(self, x: Tensor, bias: Tensor, spd: Tensor) -> Tensor:
        bias = bias.clone()
        bias[:, :, 1:, 1:] += self.table(spd).permute(0, 3, 1, 2)
        return bias.mean(1).softmax(-1) @ x


def test_sizes_that_are_sums() -> None:
    found = discover(WithAVirtualNode())
    assert found.takes == "self"
    assert found.run(found.inputs(3, 6, 6)).output.shape == (3, 6, found.width)


class Ranked(nn.Module):
    """history: (batch, seq_len) item ids; target: (batch,) candidate item; other: (batch, other_dim) features."""

    def __init__(self, seq_len: int = 9, other_dim: int = 3) -> None:
        super().__init__()
        self.items, self.out = nn.Embedding(50, 16), nn.Linear(16 * (seq_len + 1) + other_dim, 1)

    def forward(self, history: Tensor, target: Tensor, other: Tensor) -> Tensor:
        x = self.items(torch.cat([history, target[:, None]], dim=1))
        return self.out(torch.cat([x.flatten(1), other], dim=1))


def test_what_each_example_has_once_is_no_sequence() -> None:
    module = token_ids.on_embeddings(Ranked())
    assert module is not None
    found = discover(module)
    assert found.takes == "self"
    assert dict(found.way.slots) == {"query": "history"}
    assert found.length == 9


class Recommends(nn.Module):
    """history: LongTensor [batch, max_len]; target: LongTensor [batch]; profile: FloatTensor [batch, profile_dim]."""

    def __init__(self, max_len: int = 9, profile_dim: int = 6) -> None:
        super().__init__()
        self.items, self.attention = nn.Embedding(50, 16), nn.MultiheadAttention(16, 4, batch_first=True)
        self.profile, self.out = nn.Linear(profile_dim, 16), nn.Linear((max_len + 2) * 16, 1)

    def forward(self, history: Tensor, target: Tensor, profile: Tensor) -> Tensor:
        x = self.items(torch.cat([history, target[:, None]], 1))
        x = self.attention(x, x, x)[0].flatten(1)
        return self.out(torch.cat([x, self.profile(profile)], -1)).squeeze(-1)


def test_what_is_of_an_example_is_no_sequence() -> None:
    found = Patient(Recommends()).interface
    assert (found.takes, found.way.slots, found.length) == ("self", (("query", "history"),), 9)


class WhichImage(nn.Module):
    """x: (batch, text, 16); text_time: (batch, text) int, 1 for the first image."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor, text_time: Tensor) -> Tensor:
        return self.attention(x, x, x, key_padding_mask=text_time != 1)[0]


def test_integers_that_are_no_ids_are_ones() -> None:
    found = discover(WhichImage())
    value = dict(found.way.extras)["text_time"](found.way.sizes(found.inputs(2)))
    assert value.dtype == torch.int64
    assert bool((value == 1).all())


class Rows(nn.Module):
    """x: (B, H * W, C), of a map that its constructor got."""

    def __init__(self, resolution: tuple[int, int] = (4, 6)) -> None:
        super().__init__()
        self.H, self.W = resolution
        self.norm, self.attention = nn.LayerNorm(16), nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x).view(len(x), self.H, self.W, 16).flatten(1, 2)
        return self.attention(x, x, x)[0]


def test_the_rows_and_columns_that_a_module_keeps() -> None:
    assert discover(Rows()).length == 24


class Boxes(nn.Module):
    """bbox (B, N, 4) are integers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.boxes = nn.Embedding(50, 16), nn.Embedding(50, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, input_ids: Tensor, bbox: Tensor) -> Tensor:
        x = self.words(input_ids) + self.boxes(bbox).sum(2)
        return self.attention(x, x, x)[0]


def test_the_length_of_an_argument_where_nothing_is_said_of_the_ids() -> None:
    patient = Patient(Boxes())
    assert (patient.interface.takes, patient.interface.length) == ("self", None)


class Joins(nn.Module):
    """Two inputs, one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.image = nn.Embedding(50, 16), nn.Linear(12, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, input_ids: Tensor, visual: Tensor) -> Tensor:
        x = torch.cat([self.words(input_ids), self.image(visual)], 1)
        return self.attention(x, x, x)[0]


def test_an_output_of_another_length_is_no_bug() -> None:
    assert headwise.diagnose(Joins()).bugs == ()


class Conditioned(nn.Module):
    """x: (B, N, D); c: (B, C), what modulates all tokens (DiT, Peebles and Xie 2023)."""

    def __init__(self, dim: int = 16, cond: int = 12) -> None:
        super().__init__()
        self.attention, self.modulate = nn.MultiheadAttention(dim, 4, batch_first=True), nn.Linear(cond, 2 * dim)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        scale, shift = self.modulate(functional.silu(c)).unsqueeze(1).chunk(2, -1)
        x = x * (1 + scale) + shift
        return self.attention(x, x, x)[0]


def test_a_size_may_be_the_first_letter_of_what_the_constructor_got() -> None:
    found = discover(Conditioned())
    assert found.length is None
    assert dict(found.way.extras)["c"](found.way.sizes(found.inputs(2))).shape == (2, 12)


class TwoStreams(nn.Module):
    """perm_mask: (B, N, N), 1 where i may not see j (XLNet, Yang et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(16, 16), nn.Linear(16, 32)

    def forward(self, h: Tensor, g: Tensor, perm_mask: Tensor) -> Tensor:
        assert perm_mask.ndim == 3
        k, v = self.kv(h).chunk(2, -1)
        return g + ((self.q(g) @ k.mT) / 4 - 1e30 * perm_mask).softmax(-1) @ v


def test_a_required_mask_of_a_stated_shape() -> None:
    assert headwise.diagnose(TwoStreams()).bugs == ()


class OfAState(nn.Module):
    """hidden: (batch, dec_dim); encoder_outputs: (batch, src_len, enc_dim)."""

    def __init__(self, dec_dim: int = 12, enc_dim: int = 20) -> None:
        super().__init__()
        self.joined, self.v = nn.Linear(dec_dim + enc_dim, 16), nn.Linear(16, 1)

    def forward(self, hidden: Tensor, encoder_outputs: Tensor) -> Tensor:
        state = self.each(hidden, encoder_outputs.shape[1])
        scores = self.v(self.joined(torch.cat((state, encoder_outputs), -1)).tanh())
        return (scores.softmax(1) * encoder_outputs).sum(1)

    def each(self, hidden: Tensor, length: int) -> Tensor:
        return hidden[:, None].expand(-1, length, -1)


class OfAnotherState(OfAState):
    """hidden: (batch, dec_dim); encoder_outputs: (batch, src_len, enc_dim).

    It repeats the rows of the batch in another order than it reads them.
    """

    def each(self, hidden: Tensor, length: int) -> Tensor:
        return hidden.repeat(length, 1).view(-1, length, hidden.shape[-1])


@pytest.mark.parametrize(("module", "bugs"), [(OfAState, []), (OfAnotherState, ["batch-mixing"])])
def test_a_state_of_stated_features_is_the_query(module: type[nn.Module], bugs: list[str]) -> None:
    interface = discover(module())
    assert dict(interface.way.slots) == {"query": "hidden", "memory": "encoder_outputs"}
    assert (interface.width, interface.key_width) == (12, 20)
    assert [x.name for x in headwise.diagnose(module()).bugs] == bugs
