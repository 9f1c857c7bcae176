"""torch's own attention: scaled_dot_product_attention, nn.MultiheadAttention and the nn.Transformer family."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise
from tests.capture.parity import assert_all_seen, assert_weights, watched

B, S, K, M, H = 2, 5, 7, 16, 4
PAD = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool()  # True = padding, as torch has it
CAUSAL = nn.Transformer.generate_square_subsequent_mask(S)


def sequence(length: int = S, seed: int = 0) -> Tensor:
    return torch.randn(B, length, M, generator=torch.Generator().manual_seed(seed))


# nn.MultiheadAttention.

MASKS: dict[str, dict[str, Any]] = {
    "": {},
    "padding": {"key_padding_mask": PAD},
    "float padding": {"key_padding_mask": torch.zeros(B, S).masked_fill(PAD, -math.inf)},
    "causal": {"attn_mask": CAUSAL, "is_causal": True},
    "bool causal": {"attn_mask": CAUSAL < 0, "is_causal": False},
    "causal and padding": {"attn_mask": CAUSAL < 0, "key_padding_mask": PAD},
    "bias": {"attn_mask": torch.linspace(-1, 1, S * S).view(S, S)},
    "bias of each head": {"attn_mask": torch.linspace(-1, 1, B * H * S * S).view(B * H, S, S)},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True},
    "no bias": {"bias": False},
    "seq first": {"batch_first": False},
    "dropout": {"dropout": 0.3},
}


# Beside added keys torch takes is_causal to mean another mask with need_weights than without.
ODD = list(itertools.product(("bias_kv", "zero_attn", "both"), ("causal",)))


def mha(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(3)
    module = nn.MultiheadAttention(M, H, **{"batch_first": True, **options})
    with torch.no_grad():
        for p in module.parameters():
            nn.init.normal_(p, std=0.3)
    return module


def own_weights(module: nn.MultiheadAttention, *qkv: Tensor, **masks: Any) -> Tensor:
    """The weights of each head, before dropout, that the module itself returns."""
    with torch.no_grad():
        mode, _ = module.training, module.eval()
        weights = module(*qkv, need_weights=True, average_attn_weights=False, **masks)[1]
        module.train(mode)
    assert isinstance(weights, Tensor)
    return weights


@pytest.mark.parametrize(
    ("need", "training"),
    [(None, False), (None, True), (False, True), (True, False)],
    ids=["eval", "train", "weights of heads", "mean weights"],
)
@pytest.mark.parametrize(("option", "mask"), [case for case in itertools.product(OPTIONS, MASKS) if case not in ODD])
def test_multihead_attention(option: str, mask: str, need: bool | None, training: bool) -> None:
    module = mha(**OPTIONS[option]).train(training)
    x = sequence()
    x = x if module.batch_first else x.transpose(0, 1).contiguous()
    wanted = {"need_weights": need is not None, "average_attn_weights": bool(need)}
    seen, _ = watched(module, x, x, x, **wanted, **MASKS[mask], atol=1e-6)
    assert_all_seen(seen, ["MultiheadAttention"])
    (record,) = seen
    assert record.dropout == pytest.approx(0.3 if training and option == "dropout" else 0.0)
    assert_weights(record, own_weights(module, x, x, x, **MASKS[mask]))
    added = record.shape[3] - S
    assert record.site.kind == "self"
    assert record.site.causal == ("causal" in mask and not added)


@pytest.mark.parametrize("need", [False, True])
def test_cross_attention_of_other_widths(need: bool) -> None:
    module = mha(kdim=6, vdim=3).eval()
    q, k, v = sequence(), torch.randn(B, K, 6), torch.randn(B, K, 3)
    seen, _ = watched(module, q, k, v, need_weights=need)
    assert_weights(seen.records[0], own_weights(module, q, k, v))
    assert seen.records[0].site.kind == "cross"


def test_keywords_in_any_order_do_not_confuse_self_and_cross() -> None:
    module, x, y = mha().eval(), sequence(), sequence(seed=1)
    for key, kind in ((x, "self"), (y, "cross")):
        seen, _ = watched(module, value=key, key=key, query=x, atol=1e-6)
        assert seen.records[0].site.kind == kind


@pytest.mark.parametrize("need", [False, True])
def test_unbatched(need: bool) -> None:
    module, x = mha().eval(), sequence()[0]
    seen, _ = watched(module, x, x, x, need_weights=need, key_padding_mask=PAD[1], atol=1e-6)
    assert_weights(seen.records[0], own_weights(module, x, x, x, key_padding_mask=PAD[1])[None])


def test_an_example_that_is_all_padding() -> None:
    """torch gives it NaN; a record, weights of 0."""
    module, x = mha().train(), sequence()
    pad = torch.tensor([[False] * S, [True] * S])
    seen, (_, weights) = watched(module, x, x, x, key_padding_mask=pad, average_attn_weights=False)
    assert_weights(seen.records[0], weights.nan_to_num(0.0), empty=pad)


# nn.Transformer and its parts.


def layer(cls: type = nn.TransformerEncoderLayer, **options: Any) -> nn.Module:
    torch.manual_seed(3)
    return cls(M, H, dim_feedforward=8, batch_first=True, **options)


@pytest.mark.parametrize("first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("mask", ["", "causal", "padding", "both"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_encoder(mask: str, training: bool, first: bool) -> None:
    model = nn.TransformerEncoder(layer(dropout=0.0, norm_first=first), 2, norm=nn.LayerNorm(M)).train(training)
    given: dict[str, Any] = {}
    if mask in ("causal", "both"):
        given |= {"mask": CAUSAL < 0, "is_causal": mask == "causal"}
    if mask in ("padding", "both"):
        given |= {"src_key_padding_mask": PAD}
    x = sequence()
    with torch.no_grad():
        plain = model(x, **given)
        with headwise.watch(model) as seen:
            out = model(x, **given)
    # The fast path sets padding to 0 and computes in another order: said in the notes.
    rows = ~PAD if "src_key_padding_mask" in given else torch.ones_like(PAD)
    torch.testing.assert_close(out[rows], plain[rows], rtol=0, atol=2e-6)
    assert any("fused fast path" in note for note in seen.coverage().notes)
    assert_all_seen(seen, [f"layers.{i}.self_attn" for i in range(2)])
    for i, record in enumerate(seen):
        assert (record.site.kind, record.site.causal) == ("self", mask in ("causal", "both"))
        if not first:
            stage = x if i == 0 else _after_one(model, x, given)
            masks = {"attn_mask": given.get("mask"), "key_padding_mask": given.get("src_key_padding_mask")}
            expected = own_weights(model.layers[i].self_attn, stage, stage, stage, **masks)
            real = (~PAD if masks["key_padding_mask"] is not None and i else torch.ones_like(PAD)).bool()
            shown, expected = (w.transpose(1, 2)[real] for w in (record.weights(), expected))
            torch.testing.assert_close(shown, expected, rtol=0, atol=1e-5)


def _after_one(model: nn.TransformerEncoder, x: Tensor, given: dict[str, Any]) -> Tensor:
    mode = model.training
    with torch.no_grad():
        first = model.layers[0].train()  # no fast path
        out = first(x, src_mask=given.get("mask"), src_key_padding_mask=given.get("src_key_padding_mask"))
    model.train(mode)
    return out


def test_decoder() -> None:
    model = nn.TransformerDecoder(layer(nn.TransformerDecoderLayer), 2).eval()
    seen, _ = watched(model, sequence(), sequence(K, 1), tgt_mask=CAUSAL, tgt_is_causal=True, atol=1e-6)
    names = [f"layers.{i}.{part}" for i in range(2) for part in ("self_attn", "multihead_attn")]
    assert_all_seen(seen, names)
    sites = [record.site for record in seen if record.site]
    assert [(site.kind, site.causal, site.layer) for site in sites] == [
        ("self", True, 0),
        ("cross", False, 0),
        ("self", True, 1),
        ("cross", False, 1),
    ]
    assert [record.shape[3] for record in seen] == [S, K, S, K]


# functional.scaled_dot_product_attention.


class Fused(nn.Module):
    def __init__(self, heads: int | None = None) -> None:
        super().__init__()
        if heads is not None:
            self.num_heads = heads

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, **options)


def dense(q: Tensor, k: Tensor, mask: Tensor | None = None, scale: float | None = None, causal: bool = False) -> Tensor:
    k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3) if q.ndim > 2 and k.shape[-3] != q.shape[-3] else k
    s = q.double() @ k.double().mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:]).tril().bool(), -math.inf)
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else s + mask
    return s.softmax(-1).nan_to_num(0.0).float()


@pytest.mark.parametrize(
    ("lead", "shape"),
    [((), (1, 1)), ((3,), (3, 1)), ((2, 3), (2, 3)), ((2, 3, 2), (2, 6)), ((2, 1, 3, 2), (2, 6))],
    ids=str,
)
def test_leading_dimensions(lead: tuple[int, ...], shape: tuple[int, int]) -> None:
    q, k, v = torch.randn(*lead, S, 8), torch.randn(*lead, K, 8), torch.randn(*lead, K, 6)
    seen, _ = watched(Fused(), q, k, v)
    (record,) = seen
    assert_weights(record, dense(q, k).reshape(*shape, S, K))


def test_heads_folded_into_the_batch_are_found_where_the_module_says_how_many() -> None:
    q, k, v = torch.randn(3, B * H, S, 8).unbind()
    seen, _ = watched(Fused(heads=H), q, k, v)
    assert_weights(seen.records[0], dense(q, k).view(B, H, S, S))


MASKED: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "[Q, K]": {"attn_mask": torch.ones(S, K).tril(2).bool()},
    "[1, K]": {"attn_mask": (torch.arange(K) < 4)[None]},
    "[B, 1, 1, K]": {"attn_mask": torch.tensor([[1] * K, [1] * 3 + [0] * 4]).bool()[:, None, None]},
    "[B, 1, Q, 1]": {"attn_mask": torch.tensor([[1] * S, [1] * 3 + [0] * 2]).bool()[:, None, :, None]},
    "[1, H, 1, K]": {"attn_mask": (torch.arange(K) <= torch.arange(H)[:, None])[None, :, None]},
    "[B, H, Q, K]": {"attn_mask": torch.arange(B * H * S * K).view(B, H, S, K) % 3 > 0},
    "float [Q, K]": {"attn_mask": torch.linspace(-2, 2, S * K).view(S, K)},
    "float [H, 1, K]": {"attn_mask": torch.linspace(-2, 2, H * K).view(H, 1, K)},
    "float with -inf": {"attn_mask": torch.zeros(S, K).masked_fill(torch.ones(S, K).triu(1).bool(), -math.inf)},
    "bias and finfo.min": {
        "attn_mask": torch.linspace(-2, 2, S * K)
        .view(S, K)
        .masked_fill(torch.ones(S, K).triu(1).bool(), torch.finfo(torch.float32).min)
    },
    "scale": {"scale": 0.7},
}


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("groups", [H, 2, 1])
def test_masks_that_broadcast_and_grouped_heads(name: str, groups: int) -> None:
    options = MASKED[name]
    q, k, v = torch.randn(B, H, S, 8), torch.randn(B, groups, K, 8), torch.randn(B, groups, K, 6)
    seen, _ = watched(Fused(), q, k, v, enable_gqa=groups < H, **options)
    (record,) = seen
    expected = dense(q, k, options.get("attn_mask"), options.get("scale"), options.get("is_causal", False))
    empty = (expected.sum(-1) == 0).any(1)
    assert_weights(record, expected, empty=empty)
    assert record.site.key_heads == groups


def test_a_bias_that_also_forbids_is_split_into_both() -> None:
    """As T5's: one tensor of relative positions and finfo.min."""
    q, k, v = torch.randn(3, B, H, S, 8).unbind()
    bias = torch.linspace(-2, 2, H * S * S).view(H, S, S)
    forbidden = torch.ones(S, S).triu(1).bool()
    both = bias.masked_fill(forbidden, torch.finfo(torch.float32).min)
    seen, _ = watched(Fused(), q, k, v, attn_mask=both)
    (record,) = seen
    assert str(record.mask) == "causal(offset=0)"
    torch.testing.assert_close(record.bias[0], bias.masked_fill(forbidden, 0.0))
    assert_weights(record, dense(q, k, both))


LINES = torch.linspace(-2, 2, S * S).view(S, S)
LOW: dict[str, Tensor] = {
    "a row that is forbidden as a whole": LINES.masked_fill(
        torch.ones(S, S).triu(1).bool() | (torch.arange(S) == 2)[:, None], torch.finfo(torch.float32).min
    ),
    # It looks like rows that are forbidden as a whole, to who looks at their beginning only.
    "very low in the first column": torch.cat([torch.full((S, 1), -1e32), LINES[:, 1:]], 1),
    "a row of very low numbers": torch.cat([LINES[:1], torch.linspace(-1e32, -1e34, S)[None], LINES[2:]]),
}


@pytest.mark.parametrize("bias", LOW.values(), ids=LOW)
def test_very_low_biases(bias: Tensor) -> None:
    """A row that has nothing higher attends to the highest of its numbers, to all keys alike if they are equal."""
    q, k, v = torch.randn(3, B, H, S, 8).unbind()
    seen, _ = watched(Fused(), q, k, v, attn_mask=bias)
    assert_weights(seen.records[0], (q @ k.mT * 8**-0.5 + bias).softmax(-1))


def test_a_mask_that_layers_share_is_recognised_and_kept_once() -> None:
    mask = torch.rand(B, H, S, K) > 0.3
    bias = torch.randn(H, S, K)
    model = nn.ModuleList([Fused() for _ in range(4)])
    q, k, v = torch.randn(B, H, S, 8), torch.randn(B, H, K, 8), torch.randn(B, H, K, 8)
    with headwise.watch(model) as seen:
        for i, part in enumerate(model):
            part(q + i, k, v, attn_mask=mask if i < 2 else bias)
    first, second, third, fourth = seen
    assert first.mask is second.mask
    assert third.bias.data_ptr() == fourth.bias.data_ptr() == bias.data_ptr()


def test_a_mask_that_changes_between_layers_is_looked_at_again() -> None:
    model, mask = nn.ModuleList([Fused(), Fused()]), torch.ones(S, K).bool()
    q, k, v = torch.randn(B, H, S, 8), torch.randn(B, H, K, 8), torch.randn(B, H, K, 8)
    with headwise.watch(model) as seen:
        model[0](q, k, v, attn_mask=mask)
        mask[:, 3:] = False
        model[1](q, k, v, attn_mask=mask)
    assert_weights(seen.records[0], dense(q, k))
    assert_weights(seen.records[1], dense(q, k, mask))


def test_nan_of_queries_without_a_key_is_noted() -> None:
    """torch computes NaN for an example that is all padding where it returns weights; the record has 0."""
    model, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    padded = torch.zeros(2, 5, dtype=torch.bool)
    padded[0] = True
    for returns, expected in ((True, ["MultiheadAttention: 5 queries may attend to no key"]), (False, [])):
        with headwise.watch(model) as seen:
            out, _ = model(x, x, x, key_padding_mask=padded, need_weights=returns)
            model(x, x, x, key_padding_mask=padded, need_weights=returns)
        assert bool(out.isnan().any()) == returns
        assert not seen.records[0].weights()[0].any()
        assert [note.partition(".")[0] for note in seen.coverage().notes] == expected
    with headwise.watch(model) as seen:  # NaN of the input is in the record too
        model(x * torch.nan, x, x, key_padding_mask=padded.roll(1, 1) & (torch.arange(5) == 2))
    assert not seen.coverage().notes
