"""Learned latents that read an input: numbers by hand, the Set Transformer, the Perceiver, properties, bad input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import relu
from transformers import PerceiverConfig
from transformers.models.perceiver.modeling_perceiver import PerceiverEncoder, PerceiverLayer

import headwise
from headwise import masks
from headwise.errors import ArgumentError, CacheError, DtypeError, HeadwiseError, MaskError, ShapeError
from headwise.nn.cache import Cache
from headwise.nn.cross import CrossLayer
from headwise.nn.latent import LatentAttention
from headwise.nn.transformer_layer import EncoderLayer


def close(x: Tensor, y: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(x, y, atol=tolerance, rtol=0)


def gradient(module: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """What a loss that is no symmetric one gives to the input."""
    x = x.detach().clone().requires_grad_()
    out = module(x, *args, **kwargs)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    assert x.grad is not None
    return x.grad


def make(**options: Any) -> LatentAttention:
    """Three latents of width 8 over an input of width 6."""
    return LatentAttention(3, 8, 6, 2, **options)


VARIANTS: dict[str, dict[str, Any]] = {
    "one read": {},
    "a deep one": {"num_reads": 3, "self_layers": 2},
    "shared": {"num_reads": 3, "share_reads": True, "self_layers": 1},
    "inducing points": {"norm_first": False, "read_out": True, "activation": "relu"},
    "Perceiver IO": {"self_layers": 1, "read_out": True, "query_residual": False},
}


# By hand.


def test_a_latent_reads_what_is_like_it() -> None:
    layer = LatentAttention(2, 2, num_heads=1, norm_first=False)
    with torch.no_grad():
        layer.latents.copy_(torch.tensor([[math.sqrt(2) * math.log(3), 0.0], [0.0, 0.0]]))
        layer.reads[0].attention.qkv.weight.copy_(torch.eye(2).repeat(3, 1))
    _, seen = layer(torch.eye(2)[None], record=True)
    # Scores q · k / √2: the first latent has ln 3 for the first position and 0 for the second.
    close(seen[0].weights()[0, 0], torch.tensor([[0.75, 0.25], [0.5, 0.5]]))


def test_the_sum_of_latent_and_what_it_read_is_normalised() -> None:
    layer = LatentAttention(1, 2, num_heads=1, norm_first=False)
    with torch.no_grad():
        layer.latents.copy_(torch.tensor([[1.0, 0.0]]))
        layer.reads[0].attention.qkv.weight.copy_(torch.eye(2).repeat(3, 1))
        layer.reads[0].attention.out.weight.copy_(torch.eye(2))
        layer.reads[0].mlp.up.weight.zero_()
    out = layer(torch.tensor([[[0.0, 3.0]]]))  # one position, so all of it is read: (1, 0) + (0, 3) = (1, 3)
    close(out, torch.tensor([[[-1.0, 1.0]]]), 1e-4)  # which LayerNorm makes (-1, 1)


# The Set Transformer.


def paper_mab(layer: CrossLayer, x: Tensor, y: Tensor) -> Tensor:
    """Lee et al. 2019, equations 6 and 7, with the attention of Vaswani et al. 2017 and its scale 1/√D."""
    attention, heads = layer.attention, []
    q, k, v = attention.q(x), attention.k(y), attention.v(y)
    for q_h, k_h, v_h in zip(*(z.chunk(attention.num_heads, -1) for z in (q, k, v)), strict=True):
        heads.append(torch.softmax(q_h @ k_h.mT / math.sqrt(q_h.shape[-1]), -1) @ v_h)
    h = layer.attention_norm(x + attention.out(torch.cat(heads, -1)))
    return layer.mlp_norm(h + layer.mlp.down(relu(layer.mlp.up(h))))


def test_inducing_points_are_the_papers() -> None:
    isab = make(norm_first=False, read_out=True, activation="relu")
    x = torch.randn(2, 7, 6)
    induced = paper_mab(isab.reads[0], isab.latents.expand(2, -1, -1), x)  # equations 9 and 10
    close(isab(x), paper_mab(isab.read_out, x, induced))
    pma = make(norm_first=False, activation="relu")  # equation 11, of what stands for rFF(Z)
    close(pma(x), paper_mab(pma.reads[0], pma.latents.expand(2, -1, -1), x))


class AuthorsMAB(nn.Module):
    """`MAB(ln=True)` of juho-lee/set_transformer/modules.py.

    It is not the paper's: it divides by √dim_V, not √D of a head (issue 18 there), adds what it reads to the projected
    query, has no W_O, and its rFF is one layer.
    """

    def __init__(self, dim_q: int, dim_k: int, dim_v: int, num_heads: int) -> None:
        super().__init__()
        self.dim_v, self.num_heads = dim_v, num_heads
        self.fc_q, self.fc_k = nn.Linear(dim_q, dim_v), nn.Linear(dim_k, dim_v)
        self.fc_v, self.fc_o = nn.Linear(dim_k, dim_v), nn.Linear(dim_v, dim_v)
        self.ln0, self.ln1 = nn.LayerNorm(dim_v), nn.LayerNorm(dim_v)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        q, k, v = self.fc_q(q), self.fc_k(k), self.fc_v(k)
        split = self.dim_v // self.num_heads
        q_, k_, v_ = (torch.cat(x.split(split, 2), 0) for x in (q, k, v))
        weights = torch.softmax(q_.bmm(k_.transpose(1, 2)) / math.sqrt(self.dim_v), 2)
        out = self.ln0(torch.cat((q_ + weights.bmm(v_)).split(q.size(0), 0), 2))
        return self.ln1(out + relu(self.fc_o(out)))

    def copy_to(self, layer: CrossLayer) -> None:
        """So much as there is of it: our queries are projected already, W_O and the second layer are the identity."""
        width, zeros = torch.eye(self.dim_v), torch.zeros(self.dim_v)
        own = {"q.weight": width, "q.bias": zeros, "out.weight": width, "out.bias": zeros}
        own |= {f"{x}.{name}": y for x in "kv" for name, y in getattr(self, f"fc_{x}").state_dict().items()}
        layer.attention.load_state_dict(own)
        layer.mlp.up.load_state_dict(self.fc_o.state_dict())
        layer.mlp.down.load_state_dict({"weight": width, "bias": zeros})
        layer.attention_norm.load_state_dict(self.ln0.state_dict())
        layer.mlp_norm.load_state_dict(self.ln1.state_dict())


def test_the_authors_code_is_the_papers_with_another_scale() -> None:
    class AuthorsISAB(nn.Module):
        def __init__(self, dim_in: int, dim_out: int, num_heads: int, num_inds: int) -> None:
            super().__init__()
            self.inducing = nn.Parameter(torch.randn(1, num_inds, dim_out))
            self.mab0 = AuthorsMAB(dim_out, dim_in, dim_out, num_heads)
            self.mab1 = AuthorsMAB(dim_in, dim_out, dim_out, num_heads)

        def forward(self, x: Tensor) -> Tensor:
            return self.mab1(x, self.mab0(self.inducing.repeat(x.size(0), 1, 1), x))

    theirs = AuthorsISAB(8, 8, 2, 3)
    nn.init.eye_(theirs.mab1.fc_q.weight)
    nn.init.zeros_(theirs.mab1.fc_q.bias)
    options: dict[str, Any] = {"norm_first": False, "activation": "relu", "ffn_dim": 8}
    ours = LatentAttention(3, 8, 8, 2, read_out=True, scale=1 / math.sqrt(8), **options)
    theirs.mab0.copy_to(ours.reads[0])
    theirs.mab1.copy_to(ours.read_out)
    with torch.no_grad():
        ours.latents.copy_(theirs.mab0.fc_q(theirs.inducing)[0])
    x = torch.randn(2, 7, 8)
    close(ours(x), theirs(x))
    close(gradient(ours, x), gradient(theirs, x), 1e-4)


# The Perceiver, as Hugging Face has it.


def config(**options: Any) -> PerceiverConfig:
    given = {"num_latents": 3, "d_latents": 8, "num_cross_attention_heads": 2, "num_self_attention_heads": 4, **options}
    return PerceiverConfig(**given, attention_probs_dropout_prob=0.1)  # dropout only in training


def copy_layer(theirs: PerceiverLayer, ours: CrossLayer | EncoderLayer) -> None:
    state = theirs.attention.state_dict()
    norms = {name: state.pop(name) for name in list(state) if "layernorm" in name}
    ours.attention.load_state_dict(state)
    pairs = [(ours.attention_norm, "self.layernorm1."), (getattr(ours, "memory_norm", None), "self.layernorm2.")]
    for norm, prefix in pairs:
        if norm is not None:
            norm.load_state_dict({name.removeprefix(prefix): x for name, x in norms.items() if name.startswith(prefix)})
    ours.mlp_norm.load_state_dict(theirs.layernorm.state_dict())
    ours.mlp.up.load_state_dict(theirs.mlp.dense1.state_dict())
    ours.mlp.down.load_state_dict(theirs.mlp.dense2.state_dict())


def shake(module: nn.Module) -> None:
    """Every parameter random: norms and biases that are 1 and 0 would hide what is not copied."""
    with torch.no_grad():
        for x in module.parameters():
            x.normal_(std=0.5)


def additive(padding: Tensor) -> Tensor:
    """[B, 1, 1, K], as Hugging Face wants it."""
    return torch.where(padding, 0.0, torch.finfo(torch.float32).min)[:, None, None]


PADDING = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])


@pytest.mark.parametrize("padding", [None, PADDING], ids=["no padding", "padding"])
@pytest.mark.parametrize("residual", [True, False])
def test_a_perceiver_layer_that_reads(residual: bool, padding: Tensor | None) -> None:
    shape: dict[str, Any] = {"q_dim": 8, "kv_dim": 6, "num_heads": 2, "qk_channels": 12, "v_channels": 10}
    theirs = PerceiverLayer(config(), is_cross_attention=True, widening_factor=2, use_query_residual=residual, **shape)
    theirs.eval()
    shake(theirs)
    ours = CrossLayer(8, 2, memory_dim=6, head_dim=6, value_head_dim=5, ffn_dim=16, query_residual=residual)
    copy_layer(theirs, ours)
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 7, 6)
    mask = None if padding is None else additive(padding)

    def hugging_face(memory: Tensor) -> Tensor:
        return theirs(x, inputs=memory, inputs_mask=mask)[0]

    def headwise_layer(memory: Tensor) -> Tensor:
        return ours(x, memory, padding=padding)

    close(headwise_layer(memory), hugging_face(memory))
    close(gradient(headwise_layer, memory), gradient(hugging_face, memory), 1e-4)


def test_a_perceiver_layer_of_self_attention() -> None:
    theirs = PerceiverLayer(config(), num_heads=4, q_dim=8, kv_dim=8, widening_factor=4).eval()
    shake(theirs)
    ours = EncoderLayer(8, 4)
    copy_layer(theirs, ours)
    x = torch.randn(2, 3, 8)
    close(ours(x), theirs(x)[0])
    close(gradient(ours, x), gradient(lambda x: theirs(x)[0], x), 1e-4)


@pytest.mark.parametrize("padding", [None, PADDING], ids=["no padding", "padding"])
def test_a_whole_perceiver_encoder(padding: Tensor | None) -> None:
    blocks, layers = 2, 3  # Hugging Face runs the same layers once a block, after one read
    options = {"num_blocks": blocks, "num_self_attends_per_block": layers, "cross_attention_shape_for_attention": "q"}
    widening = {"self_attention_widening_factor": 2, "cross_attention_widening_factor": 2}
    theirs = PerceiverEncoder(config(**options, **widening), kv_dim=6).eval()
    shake(theirs)
    ours = LatentAttention(3, 8, 6, 2, self_layers=blocks * layers, self_heads=4, ffn_dim=16)
    copy_layer(theirs.cross_attention, ours.reads[0])
    for i, layer in enumerate(ours.reads[0].layers):
        copy_layer(theirs.self_attends[i % layers], layer)
    x, mask = torch.randn(2, 7, 6), None if padding is None else additive(padding)

    def hugging_face(x: Tensor) -> Tensor:
        return theirs(ours.latents.expand(2, -1, -1), inputs=x, inputs_mask=mask).last_hidden_state

    def headwise_module(x: Tensor) -> Tensor:
        return ours(x, padding=padding)

    close(headwise_module(x), hugging_face(x))
    ours.zero_grad()
    close(gradient(headwise_module, x), gradient(hugging_face, x), 1e-4)
    shared = sum(ours.reads[0].layers[i].mlp.up.weight.grad for i in (0, 3))
    close(shared, theirs.self_attends[0].mlp.dense1.weight.grad, 1e-4)


# Properties.


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_order_of_the_input_does_not_matter(variant: dict[str, Any]) -> None:
    module, x, order = make(**variant), torch.randn(2, 9, 6), torch.randperm(9)
    if module.read_out is None:
        close(module(x), module(x[:, order]))
    else:
        queries = torch.randn(2, 4, 6)
        close(module(queries, x), module(queries, x[:, order]))
        close(module(x)[:, order], module(x[:, order]))  # ISAB is equivariant


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_padding_is_as_if_it_were_not_there(variant: dict[str, Any]) -> None:
    module, x = make(**variant), torch.randn(2, 9, 6)
    padding = torch.ones(2, 9, dtype=torch.bool)
    padding[:, 4] = padding[:, 7:] = False
    kept = padding[0].nonzero()[:, 0]
    if module.read_out is None:
        close(module(x, padding=padding), module(x[:, kept]))
        hidden = torch.where(padding[..., None], x, torch.nan)  # what stands there is not even looked at
        close(module(hidden, padding=padding), module(x[:, kept]))
    else:
        queries = torch.randn(2, 4, 6)
        close(module(queries, x, padding=padding), module(queries, x[:, kept]))
        close(module(x, padding=padding)[:, kept], module(x[:, kept]))


def test_a_mask_says_which_latent_reads_what() -> None:
    module, x = make(), torch.randn(1, 9, 6)
    allowed = torch.zeros(3, 9, dtype=torch.bool)
    allowed[0, :3] = allowed[1, 3:] = True
    found = module(x, mask=allowed)
    close(found[:, 0], module(x[:, :3])[:, 0])
    close(found[:, 1], module(x[:, 3:])[:, 1])
    assert found.isfinite().all()  # the third latent may read nothing
    close(found, module(x, mask=masks.from_tensor(allowed)))
    seen = module(x, mask=allowed, padding=torch.arange(9)[None] != 8, record=True)[1]
    assert torch.equal(seen[0].weights()[0, 0] > 0, allowed & (torch.arange(9) != 8))


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("steps", [[9], [1] * 9, [4, 1, 4]], ids=str)
def test_an_input_that_grows_is_read_as_a_whole(variant: dict[str, Any], steps: list[int]) -> None:
    module, x, cache, done = make(**variant), torch.randn(2, 9, 6), Cache(), 0
    for step in steps:
        new, done = x[:, done : done + step], done + step
        whole = module(x[:, :done]) if module.read_out is None else module(new, x[:, :done])
        close(module(new, cache=cache), whole)
    assert cache.length == 9
    assert cache.bytes == len(module.reads) * 2 * 9 * 2 * 8 * 4  # keys and values of 9 positions, 2 examples, width 8


def test_an_input_that_grows_may_have_padding_and_a_window() -> None:
    module, x = make(self_layers=1), torch.randn(2, 6, 6)
    real = torch.ones(2, 6, dtype=torch.bool)
    real[1, :2] = False
    cache = Cache()
    module(x[:, :3], cache=cache, padding=real[:, :3])
    close(module(x[:, 3:], cache=cache), module(x, padding=real))
    cache.reorder(torch.tensor([1, 1]))
    more = torch.randn(2, 1, 6)
    both = torch.cat([x[1:].expand(2, -1, -1), more], 1)
    close(module(more, cache=cache), module(both[:, 2:]))
    window = Cache(window=2)
    module(x[:, :5], cache=window)
    close(module(x[:, 5:], cache=window), module(x[:, 3:]))  # the new one and the two before it


def test_gradients_reach_what_was_read_before() -> None:
    module, x = make(), torch.randn(1, 4, 6)

    def in_two_steps(x: Tensor) -> Tensor:
        cache = Cache()
        module(x[:, :2], cache=cache)
        return module(x[:, 2:], cache=cache)

    close(gradient(in_two_steps, x), gradient(module, x), 1e-4)


def test_shared_reads_are_one_module_after_the_first() -> None:
    shared, apart = (make(num_reads=4, share_reads=share, self_layers=1) for share in (True, False))
    assert (len(shared.reads), len(apart.reads)) == (2, 4)
    state = shared.state_dict()
    for i in (2, 3):
        state |= {name.replace("reads.1", f"reads.{i}"): x for name, x in state.items() if name.startswith("reads.1")}
    apart.load_state_dict(state)
    x = torch.randn(2, 5, 6)
    close(shared(x), apart(x))
    assert shared(x, record=True)[1].layers == apart(x, record=True)[1].layers
    assert len(make(share_reads=True).reads) == 1


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_parameter_learns_and_comes_back(variant: dict[str, Any], tmp_path: Path) -> None:
    module, other = make(**variant), make(**variant)
    x = torch.randn(2, 5, 6)
    gradient(module, x)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        if not name.endswith("k.bias"):  # which a softmax does not see
            assert parameter.grad.abs().sum() > 0, name
    torch.save(module.state_dict(), tmp_path / "module.pt")
    other.load_state_dict(torch.load(tmp_path / "module.pt"))
    close(module(x), other(x), 0)


def test_latents_begin_as_in_the_papers() -> None:
    perceiver = LatentAttention(200, 64).latents
    assert perceiver.detach().std() == pytest.approx(0.02, rel=0.05)
    module = LatentAttention(200, 56, norm_first=False)
    bound = math.sqrt(6 / 256)
    assert 0.99 * bound < module.latents.abs().max() <= bound
    before = {name: x.detach().clone() for name, x in module.named_parameters()}
    shake(module)
    torch.manual_seed(1)
    module.reset_parameters()
    for name, x in module.named_parameters():
        assert not name.endswith("bias") or not x.any(), name
        assert float(x.detach().std()) == pytest.approx(float(before[name].std()), rel=0.1, abs=1e-6), name


def test_dropout_is_for_training_only() -> None:
    module, x = make(self_layers=1, read_out=True, dropout=0.5), torch.randn(2, 5, 6)
    assert not torch.equal(module(x), module(x))
    module.eval()
    close(module(x), module(x), 0)


def test_half_precision() -> None:
    module, x = make(self_layers=1, read_out=True), torch.randn(2, 5, 6)
    with torch.autocast("cpu", torch.bfloat16):
        close(module(x).float(), module(x).float(), 0)
        found = module(x)
    close(found.float(), module(x), 0.1)
    close(module.double()(x.double()).float(), module.float()(x))


# Records.


def test_records_say_where_they_are_from_and_carry_the_names() -> None:
    module = make(num_reads=2, self_layers=1, read_out=True, latent_names=["subject", "verb", "object"])
    x = torch.randn(2, 5, 6)
    out, seen = module(x, record=True)
    close(out, module(x), 0)
    names = ("subject", "verb", "object")
    assert {record.site.name: (record.row_names, record.col_names) for record in seen if record.site} == {
        "reads.0.attention": (names, None),
        "reads.0.layers.0.attention": (names, names),
        "reads.1.attention": (names, None),
        "reads.1.layers.0.attention": (names, names),
        "read_out.attention": (None, names),
    }
    kinds = [record.site.kind for record in seen if record.site]
    assert kinds == ["cross", "self", "cross", "self", "cross"]


def test_a_watch_sees_the_same() -> None:
    module, x = make(num_reads=2, self_layers=1, read_out=True, latent_names=list("abc")), torch.randn(2, 5, 6)
    model = nn.Sequential(nn.Linear(6, 6), module)
    with headwise.watch(model, tokens=[["the", "cat", "sat", "on", "it"]] * 2) as seen:
        model(x)
    _, told = module(model[0](x), record=True)
    assert [f"1.{layer}" for layer in told.layers] == seen.layers
    for one, other in zip(seen, told, strict=True):
        close(one.weights(), other.weights(), 0)
        assert (one.row_names, one.col_names) == (other.row_names, other.col_names)
        assert one.site is not None
        assert other.site is not None
        assert one.site.kind == other.site.kind
    assert seen.row_labels(seen[0]) == ("a", "b", "c")
    assert seen.col_labels(seen[0]) == ("the", "cat", "sat", "on", "it")
    assert seen.row_labels(seen[-1]) == ("the", "cat", "sat", "on", "it")


def test_latents_without_names_are_numbered() -> None:
    assert make().latent_names == ("latent 0", "latent 1", "latent 2")


# Bad input.


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"num_latents": 0}, "num_latents: expected a whole number of at least 1, received 0"),
    ({"latent_dim": 7}, "dim: expected a multiple of num_heads=2, received 7"),
    ({"input_dim": 0}, "input_dim: expected a whole number of at least 1, received 0"),
    ({"num_heads": 0}, "num_heads: expected a whole number of at least 1, received 0"),
    ({"num_reads": 0}, "num_reads: expected a whole number of at least 1, received 0"),
    ({"self_layers": -1}, "self_layers: expected a whole number of at least 0, received -1"),
    ({"self_heads": 3, "self_layers": 1}, "dim: expected a multiple of num_heads=3, received 8"),
    ({"activation": "tanh"}, "activation: expected one of 'relu'"),
    ({"dropout": 1.0}, "dropout: expected a probability in [0, 1), received 1.0"),
    ({"output_dim": 4}, "output_dim: is of the read-out, so expected read_out=True with it, received 4"),
    ({"query_residual": False}, "query_residual: is of the read-out"),
    ({"latent_names": ["a", "b"]}, "latent_names: expected 3, one for each latent, received 2"),
    ({"latent_names": "abc"}, "latent_names: expected 3 strings, one for each latent, received 'abc'"),
    ({"latent_names": [1, 2, 3]}, "latent_names: expected 3 strings"),
]


@pytest.mark.parametrize(("given", "message"), BAD_OPTIONS, ids=[str(given) for given, _ in BAD_OPTIONS])
def test_a_module_that_makes_no_sense(given: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"num_latents": 3, "latent_dim": 8, "input_dim": 6, "num_heads": 2, **given}
    with pytest.raises(ArgumentError) as error:
        LatentAttention(**options)
    assert message in str(error.value)


X = torch.zeros(2, 5, 6)
BAD_CALLS: dict[str, tuple[dict[str, Any], dict[str, Any], type[HeadwiseError], str]] = {
    "rank": ({}, {"query": X[0]}, ShapeError, "query: expected [B, S, 6], received [5, 6]"),
    "width": ({}, {"query": torch.zeros(2, 5, 8)}, ShapeError, "query: expected [B, S, 6], received [2, 5, 8]"),
    "kind": ({}, {"query": None}, DtypeError, "query: expected a tensor [B, S, 6], received NoneType"),
    "a key": ({}, {"query": X, "key": X + 1}, ArgumentError, "key: expected None, since without read_out"),
    "values": ({}, {"query": X, "value": X + 1}, ArgumentError, "value: expected None"),
    "padding": ({}, {"query": X, "padding": torch.ones(2, 4, dtype=torch.bool)}, ShapeError, "[B, K] = [2, 5]"),
    "mask": ({}, {"query": X, "mask": torch.ones(5, 5, dtype=torch.bool)}, MaskError, "mask"),
    "no input": ({"read_out": True, "output_dim": 4}, {"query": torch.zeros(2, 5, 4)}, ArgumentError, "key: expected"),
    "batch": ({"read_out": True}, {"query": X, "key": X[:1]}, ShapeError, "key: expected as many examples"),
}


@pytest.mark.parametrize(("options", "call", "kind", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_call_that_does_not_fit(
    options: dict[str, Any], call: dict[str, Any], kind: type[HeadwiseError], message: str
) -> None:
    with pytest.raises(kind) as error:
        make(**options)(**call)
    assert message in str(error.value)


def test_a_cache_of_another_module_or_batch_or_that_is_full() -> None:
    cache, module = Cache(capacity=6), make()
    module(X, cache=cache)
    with pytest.raises(CacheError, match="belongs to another module, LatentAttention"):
        make()(X, cache=cache)
    with pytest.raises(CacheError, match="B"):
        module(X[:1], cache=cache)
    with pytest.raises(CacheError, match="full"):
        module(X, cache=cache)


def test_a_cross_layer_reads_another_sequence() -> None:
    layer, memory = CrossLayer(6, 2, memory_dim=8), torch.randn(2, 4, 8)
    cache = Cache()
    close(layer(X, memory, cache=cache), layer(X, memory))
    close(layer(X[:, :1], memory, cache=cache), layer(X[:, :1], memory))
    with pytest.raises(CacheError):
        layer(X, memory + 1, cache=cache)
    with pytest.raises(ArgumentError, match="key: expected the sequence"):
        layer(X)
    with pytest.raises(ShapeError, match=r"key: expected \[B, S, 8\]"):
        layer(X, X)
    assert layer(X, memory, record=True)[1].layers == ["attention"]
