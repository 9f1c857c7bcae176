"""Arguments whose values follow from what reads them: sides of a map, ids of a table, inputs of other widths."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.calling.interface import discover
from headwise.doctor.calling.token_ids import on_embeddings
from tests.doctor.calling.callees import Projected, fused
from tests.doctor.checks.specimens import Attention


class Reduced(Projected):
    """Keys and values of a map of half the sides."""

    def __init__(self) -> None:
        super().__init__()
        self.sr = nn.Conv2d(24, 24, 2, 2)

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        kv = self.sr(x.mT.unflatten(-1, (H, W))).flatten(2).mT
        return self.attend(x, kv, kv)


class Decomposed(Projected):
    """[B, H, W, M], with tables of 2 * 6 - 1 relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.rel_pos_h = nn.Parameter(torch.randn(11, 6))

    def forward(self, x: Tensor) -> Tensor:
        _, height, width, _ = x.shape
        at = torch.arange(6)
        rows = self.rel_pos_h[at[:, None] - at + 5].sum(-1)
        bias = rows.repeat_interleave(6, 0).repeat_interleave(6, 1)
        flat = x.flatten(1, 2)
        return self.attend(flat, flat, flat, attn_mask=bias).unflatten(1, (height, width))


class ClassToken(Projected):
    """A class token and 3 * 3 patches with a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.grid_size = (3, 3)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(9.0)[:, None].expand(9, x.shape[-1])
        x = torch.cat([x[:, :1], x[:, 1:] + at], 1)
        return self.attend(x, x, x)


class Edges(Projected):
    """nodes [B, N, M]; kinds [B, N, N] of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(6, 4)

    def forward(self, nodes: Tensor, kinds: Tensor) -> Tensor:
        return self.attend(nodes, nodes, nodes, attn_mask=self.bias(kinds).permute(0, 3, 1, 2))


class Pairs(Projected):
    """single [B, N, M], pair [B, N, N, P], mask [B, N]: True = real."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Linear(10, 4)

    def forward(self, single: Tensor, pair: Tensor, mask: Tensor | None = None) -> Tensor:
        bias = self.bias(pair).permute(0, 3, 1, 2)
        if mask is not None:
            bias = bias.masked_fill(~mask[:, None, None, :], -torch.inf)
        return self.attend(single, single, single, attn_mask=bias)


class Several(Projected):
    """Three sequences of different widths."""

    def __init__(self) -> None:
        super().__init__()
        self.of_state, self.of_action, self.of_return = nn.Linear(6, 24), nn.Linear(3, 24), nn.Linear(1, 24)

    def forward(self, rtgs: Tensor, states: Tensor, actions: Tensor) -> Tensor:
        x = self.of_state(states) + self.of_action(actions) + self.of_return(rtgs)
        return self.attend(x, x, x)


class Encoded(Projected):
    def forward(
        self, encoded_text: Tensor, encoded_question: Tensor, text_mask: Tensor, question_mask: Tensor
    ) -> Tensor:
        out = self.attend(
            encoded_text, encoded_question, encoded_question, attn_mask=question_mask[:, None, None].bool()
        )
        return out * text_mask[..., None]


class Cloud(Projected):
    """xyz [B, N, 3]: distances are subtracted from the scores."""

    def forward(self, xyz: Tensor, feats: Tensor) -> Tensor:
        assert xyz.shape[-1] == 3
        return self.attend(feats, feats, feats, attn_mask=-torch.cdist(xyz, xyz)[:, None])


class Clicks(nn.Module):
    """target [B] and history [B, N] of ids; a score [B]."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(30, 16)
        self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, target: Tensor, history: Tensor) -> Tensor:
        of_target, past = self.items(target), self.items(history)
        weights = torch.softmax((self.q(of_target)[:, None].expand_as(past) * self.k(past)).sum(-1) / 4, -1)
        return ((weights[..., None] * past).sum(1) * of_target).sum(-1)


class Decoder(Projected):
    """Ids next to hidden states, with positions that are a table of its own kind."""

    class Positions(nn.Embedding):
        def forward(self, input_ids: Tensor) -> Tensor:
            return super().forward(torch.arange(input_ids.shape[1]))

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30, 24), self.Positions(40, 24)

    def forward(self, input_ids: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.places(input_ids)
        return self.attend(x, encoder_hidden_states, encoder_hidden_states)


class Ranks(nn.Module):
    """Candidates that all examples share are no input of an example: the scores are as many as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.q = nn.Embedding(30, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, candidates: Tensor) -> Tensor:
        asked = fused(self.q(x), x, x).mean(1)
        return asked @ self.words(candidates).sum(1).T


def test_sides_of_a_map() -> None:
    found = discover(Reduced())
    assert (found.takes, found.width, found.length) == ("self", 24, 24)
    assert dict(found.way.extras).keys() == {"H", "W"}
    assert discover(Decomposed()).way.layout == "BHWM"
    assert discover(ClassToken()).length == 10


def test_what_reads_an_argument_tells_what_it_takes() -> None:
    for module, query in ((Edges(), "nodes"), (Pairs(), "single"), (Several(), "states"), (Cloud(), "feats")):
        found = discover(module)
        assert (found.takes, found.way.slots) == ("self", (("query", query),))
    assert discover(Pairs()).masks[0].works
    assert headwise.diagnose(Pairs()).healthy  # a pair keeps its numbers where there are fewer tokens


def test_two_inputs_that_are_both_called_encoded() -> None:
    found = discover(Encoded())
    assert found.way.slots == (("query", "encoded_text"), ("memory", "encoded_question"))
    assert [(m.parameter, m.own) for m in found.masks if m.works] == [("question_mask", False)]


def test_ids_of_one_item_and_ids_next_to_hidden_states() -> None:
    clicks = on_embeddings(Clicks())
    assert clicks is not None
    assert discover(clicks).way.layout == "BM"
    decoder = on_embeddings(Decoder())
    assert decoder is not None
    assert discover(decoder).way.slots == (("query", "input_ids"), ("memory", "encoder_hidden_states"))


def test_an_argument_that_all_examples_share_is_not_invented() -> None:
    assert "no way to call it" in str(headwise.diagnose(Ranks()))


class Packed(Attention):
    """x: [1, all tokens, M] of several requests, which begin at `starts`."""

    def forward(self, x: Tensor, starts: list[int]) -> Tensor:
        places = torch.arange(x.shape[1])
        document = torch.bucketize(places, torch.tensor(starts[1:-1]), right=True)
        if starts[-1] != x.shape[1] or len(x) != 1:
            raise ValueError("starts must end with the number of tokens")
        return self.attend(x, x, (document[:, None] == document)[None, None])


def test_a_call_that_runs_as_it_was_given_alone() -> None:
    interface = discover(Packed(), example=((torch.randn(1, 9, 16), [0, 4, 9]), {}))
    assert (interface.way.layout, interface.length, interface.batched) == ("1NM", 9, False)
    inputs = interface.inputs(3)
    out = interface.run(inputs).output
    assert out.shape == (3, 9, 16)
    for i in range(3):  # one call for each example
        assert torch.equal(out[i], interface.module(inputs.query[i : i + 1], [0, 4, 9])[0])


class MapAndText(Projected):
    """x: [B, C, H, W]; context: [B, K, 24]"""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(24, 24, 1)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        _, _, h, w = x.shape
        tokens = self.first(x).flatten(2).mT
        return x + self.attend(tokens, context, context).mT.unflatten(-1, (h, w))


class Forecaster(Projected):
    """[B, context, series] to [B, 3, series], in patches of 8 steps."""

    def __init__(self, context: int = 40, n_series: int = 6) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, 24), nn.Linear(24 * context // 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.mT.unfold(-1, 8, 8)).flatten(0, 1)
        return self.head(self.attend(tokens, tokens, tokens).flatten(1)).unflatten(0, (len(x), -1)).mT


class EachLayer(Projected):
    """[layers, B, N, M]: the outputs of all layers."""

    def forward(self, x: Tensor) -> Tensor:
        first = self.attend(x, x, x)
        return torch.stack([first, self.attend(first, first, first)])


class KeyOrNot(Projected):
    """A key that is read only in cross-attention."""

    def __init__(self, crosses: bool = False) -> None:
        super().__init__()
        self.crosses = crosses

    def forward(self, query: Tensor, key: Tensor | None = None) -> Tensor:
        source = key if self.crosses else query
        return self.attend(query, source, source)


def test_a_map_that_attends_to_a_sequence() -> None:
    interface = discover(MapAndText())
    assert (interface.takes, interface.way.layout) == ("memory", "BMHW,BNM")
    assert interface.run(interface.inputs(3, 24, 7)).output.shape == (3, 24, 24)


def test_the_length_that_a_constructor_states() -> None:
    interface = discover(Forecaster())
    assert (interface.way.layout, interface.length) == ("BNM", 40)


def test_the_outputs_of_all_layers() -> None:
    module, interface = EachLayer(), discover(EachLayer())
    inputs = interface.inputs(3)
    result = interface.on(module).run(inputs)
    assert torch.equal(result.output, result.raw[-1])


def test_a_key_that_changes_nothing_is_no_memory() -> None:
    assert discover(KeyOrNot()).takes == "self"
    assert discover(KeyOrNot(crosses=True)).takes == "memory"


class CutsItsPatches(nn.Module):
    """img: an image, whose patches are cut without a convolution."""

    def __init__(self, image_size: int = 8, channels: int = 3) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(4 * channels, 16), Attention()
        self.places = nn.Parameter(torch.randn((image_size // 2) ** 2, 16))

    def forward(self, img: Tensor) -> Tensor:
        b, c, h, w = img.shape
        x = img.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(b, h * w // 4, -1)
        x = self.embed(x) + self.places
        return self.attention.attend(x, x, None).mean(1)


def test_an_image_by_the_defaults_of_the_constructor() -> None:
    found = discover(CutsItsPatches())
    assert (found.way.layout, found.width, found.length) == ("BMHW", 3, 64)


class OfAResolution(Projected):
    """Windows of 4 x 4 in a map that is given as one row of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.window_size, self.input_resolution = 4, (8, 12)

    def sides(self) -> tuple[int, int]:
        return self.input_resolution

    def forward(self, x: Tensor) -> Tensor:
        h, w = self.sides()
        windows = x.view(len(x), h // 4, 4, w // 4, 4, 24).transpose(2, 3).reshape(-1, 16, 24)
        out = self.attend(windows, windows, windows)
        return out.view(len(x), h // 4, w // 4, 4, 4, 24).transpose(2, 3).reshape(x.shape)


def test_a_resolution_beside_a_window() -> None:
    assert discover(OfAResolution()).length == 96


class OfASide(OfAResolution):
    """A square map, of which the side is kept."""

    def __init__(self) -> None:
        super().__init__()
        del self.input_resolution
        self.resolution = 12

    def sides(self) -> tuple[int, int]:
        return self.resolution, self.resolution


def test_the_side_of_a_square_map() -> None:
    assert discover(OfASide()).length == 144


class MaskedMap(Projected):
    """z: [B, N, N, 24], mask: [B, N, N], 1 for pairs that exist"""

    def forward(self, z: Tensor, mask: Tensor) -> Tensor:
        rows = z.flatten(0, 1)
        far = (mask.flatten(0, 1)[:, None] - 1.0) * 1e9
        return self.attend(rows + 0 * far[:, 0, :, None], rows, rows).view(z.shape)


def test_a_mask_of_a_map() -> None:
    found = discover(MaskedMap())
    assert (found.way.layout, found.takes) == ("BHWM", "self")


class Pools(Projected):
    """Returns one vector for the sequence, and the weights of every head."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(x @ self.q.weight[:4].T, 1).mT
        return (weights @ x).flatten(1), weights


def test_a_pooled_output_beside_its_weights() -> None:
    found = discover(Pools())
    inputs = found.inputs()
    assert torch.equal(found.run(inputs).output[:, 0], Pools.forward(found.module, inputs.query)[0])


class PackedDocuments(Projected):
    """Starts of documents fit one number of queries and one of keys."""

    def forward(self, new: Tensor, context: Tensor, cu_q: Tensor, cu_k: Tensor) -> Tensor:
        assert (new.shape[1], context.shape[1]) == (int(cu_q[-1]), int(cu_k[-1]))
        return self.attend(new, context, context)


def test_one_number_of_queries_and_one_of_keys() -> None:
    given = (torch.randn(1, 9, 24), torch.randn(1, 12, 24), torch.tensor([0, 9]), torch.tensor([0, 12]))
    found = discover(PackedDocuments(), example=(given, {}))
    assert (found.length, found.same_length, found.takes) == (9, False, "memory")
    inputs = found.inputs(1, 5, 7)
    assert inputs.key.shape[1] == 12


class Sentences(nn.Module):
    """Ids of two sentences, with the type of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(30, 16), nn.Embedding(2, 16)
        self.q = nn.Linear(16, 16)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.types(token_type_ids)
        return fused(self.q(x), x, x)


def test_types_of_tokens_are_no_memory() -> None:
    sentences = on_embeddings(Sentences())
    assert sentences is not None
    found = discover(sentences)
    assert (found.takes, found.way.slots) == ("self", (("query", "input_ids"),))
    assert headwise.diagnose(Sentences()).bugs == ()


class Spelled(nn.Module):
    """Words, and the ids of their characters."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.letters, self.q = nn.Embedding(30, 16), nn.Embedding(20, 16), nn.Linear(16, 16)

    def forward(self, words: Tensor, letters: Tensor) -> Tensor:
        x = self.words(words) + self.letters(letters).amax(2)
        return fused(self.q(x), x, x)


def test_a_word_has_as_many_characters_in_a_shorter_text() -> None:
    spelled = on_embeddings(Spelled())
    assert spelled is not None
    found = discover(spelled)
    make = dict(found.way.extras)["letters"]
    assert [make(found.way.sizes(found.inputs(2, n, n))).shape for n in (6, 5)] == [(2, 6, 4), (2, 5, 4)]
