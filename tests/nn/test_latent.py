"""Learned latents that read an input: numbers by hand, properties, names, bad input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise import masks
from headwise.errors import ArgumentError, CacheError, DtypeError, HeadwiseError, MaskError, ShapeError
from headwise.nn.cache import Cache
from headwise.nn.cross import CrossLayer
from headwise.nn.latent import LatentAttention
from tests.nn.latents import close, gradient, make, shake

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
        close(module(x, real=padding), module(x[:, kept]))
        hidden = torch.where(padding[..., None], x, torch.nan)  # what stands there is not even looked at
        close(module(hidden, real=padding), module(x[:, kept]))
    else:
        queries = torch.randn(2, 4, 6)
        close(module(queries, x, real=padding), module(queries, x[:, kept]))
        close(module(x, real=padding)[:, kept], module(x[:, kept]))


def test_a_mask_says_which_latent_reads_what() -> None:
    module, x = make(), torch.randn(1, 9, 6)
    allowed = torch.zeros(3, 9, dtype=torch.bool)
    allowed[0, :3] = allowed[1, 3:] = True
    found = module(x, mask=allowed)
    close(found[:, 0], module(x[:, :3])[:, 0])
    close(found[:, 1], module(x[:, 3:])[:, 1])
    assert found.isfinite().all()  # the third latent may read nothing
    close(found, module(x, mask=masks.from_tensor(allowed)))
    seen = module(x, mask=allowed, real=torch.arange(9)[None] != 8, record=True)[1]
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
    module(x[:, :3], cache=cache, real=real[:, :3])
    close(module(x[:, 3:], cache=cache), module(x, real=real))
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
        assert one.site.kind == other.site.kind
    assert seen.row_labels(seen[0]) == ("a", "b", "c")
    assert seen.col_labels(seen[0]) == ("the", "cat", "sat", "on", "it")
    assert seen.row_labels(seen[-1]) == ("the", "cat", "sat", "on", "it")


def test_latents_without_names_are_numbered() -> None:
    assert make().latent_names == ("latent 0", "latent 1", "latent 2")


# Bad input.


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"num_latents": 0}, "num_latents: expected a whole number of at least 1. Received: num_latents=0"),
    ({"latent_dim": 7}, "dim: expected a multiple of num_heads=2. Received: dim=7"),
    ({"input_dim": 0}, "input_dim: expected a whole number of at least 1. Received: input_dim=0"),
    ({"num_reads": 0}, "num_reads: expected a whole number of at least 1. Received: num_reads=0"),
    ({"self_layers": -1}, "self_layers: expected a whole number of at least 0. Received: self_layers=-1"),
    ({"self_heads": 3, "self_layers": 1}, "dim: expected a multiple of num_heads=3. Received: dim=8"),
    ({"output_dim": 4}, "output_dim: expected read_out=True with it. Received: output_dim=4"),
    ({"query_residual": False}, "query_residual: expected read_out=True"),
    ({"latent_names": ["a", "b"]}, "expected 3 names, one for each latent. Received: len(latent_names)=2"),
    ({"latent_names": "abc"}, "latent_names: expected 3 strings, one for each latent. Received: latent_names='abc'"),
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
    "rank": ({}, {"query": X[0]}, ShapeError, "query: expected [B, S, 6]. Received: query=[5, 6]"),
    "width": ({}, {"query": torch.zeros(2, 5, 8)}, ShapeError, "query: expected [B, S, 6]. Received: query=[2, 5, 8]"),
    "kind": ({}, {"query": None}, DtypeError, "query: expected a tensor [B, S, 6]. Received: query=NoneType"),
    "a key": ({}, {"query": X, "key": X + 1}, ArgumentError, "key: expected None, without read_out"),
    "values": ({}, {"query": X, "value": X + 1}, ArgumentError, "value: expected None"),
    "padding": ({}, {"query": X, "real": torch.ones(2, 4, dtype=torch.bool)}, ShapeError, "real: expected [2, 5]"),
    "mask": ({}, {"query": X, "mask": torch.ones(5, 5, dtype=torch.bool)}, MaskError, "mask"),
    "no input": ({"read_out": True, "output_dim": 4}, {"query": torch.zeros(2, 5, 4)}, ArgumentError, "key: expected"),
    "batch": ({"read_out": True}, {"query": X, "key": X[:1]}, ShapeError, "key: expected the batch size of query"),
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
    with pytest.raises(CacheError, match="Received: a cache of another module, LatentAttention"):
        make()(X, cache=cache)
    with pytest.raises(CacheError, match="B"):
        module(X[:1], cache=cache)
    with pytest.raises(CacheError, match="not enough free slots"):
        module(X, cache=cache)


def test_a_mask_that_does_not_fit_leaves_the_cache_as_it_was() -> None:
    cache, module = Cache(), make()
    module(X, cache=cache)
    before = cache.length
    for wrong in (torch.ones(3, 2 * before + 1).bool(), masks.padding(torch.ones(2, before).bool())):
        with pytest.raises(MaskError):
            module(X, mask=wrong, cache=cache)
    assert cache.length == cache.size == before


def test_a_cross_layer_reads_another_sequence() -> None:
    layer, memory = CrossLayer(6, 2, memory_dim=8), torch.randn(2, 4, 8)
    cache = Cache()
    close(layer(X, memory, cache=cache), layer(X, memory))
    close(layer(X[:, :1], memory, cache=cache), layer(X[:, :1], memory))
    with pytest.raises(CacheError):
        layer(X, memory + 1, cache=cache)
    with pytest.raises(ArgumentError, match="key: expected the memory"):
        layer(X)
    with pytest.raises(ShapeError, match=r"key: expected \[B, S, 8\]"):
        layer(X, X)
    assert layer(X, memory, record=True)[1].layers == ["attention"]
