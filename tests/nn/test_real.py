"""`real=` says which tokens count: one polarity, bool or 0/1 integers, the same in modules, caches and models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.models import (
    Bert,
    BertConfig,
    CausalConfig,
    CausalLanguageModel,
    EncoderDecoder,
    EncoderDecoderConfig,
    LatentEncoder,
    LatentEncoderConfig,
    SmallEncoder,
    SmallEncoderConfig,
    TextClassifier,
)
from headwise.models.pooling import average_real
from headwise.nn import Cache, Decoder, DecoderLayer, Encoder, MultiHeadAttention, positions
from headwise.nn.cross import CrossLayer
from headwise.nn.real import check_real
from tests.nn.cases import CASES, DIM

REAL = torch.tensor([[True, True, True, False], [True, True, True, True]])
IDS = torch.tensor([[3, 4, 5, 0], [6, 7, 8, 9]])
SIZES: dict[str, Any] = {"vocab_size": 11, "dim": 8, "num_heads": 2, "num_layers": 1}


def x() -> Tensor:
    return torch.randn(2, 4, DIM, generator=torch.Generator().manual_seed(0))


def memory() -> Tensor:
    return torch.randn(2, 4, DIM, generator=torch.Generator().manual_seed(1))


def small() -> SmallEncoder:
    return SmallEncoder(SmallEncoderConfig(**SIZES))


def bert() -> Bert:
    return Bert(BertConfig(**SIZES, ffn_dim=8, max_positions=8))


def rotary() -> MultiHeadAttention:
    return MultiHeadAttention(DIM, 4, positions=positions.Rope(8))


def called(other: bool, module: Any, real: Any) -> Tensor:
    """What a module of `headwise.nn` makes of tokens, and of a memory of which the same count."""
    both = isinstance(module, (DecoderLayer, Decoder))
    return module(x(), memory() if other else None, real=real, **({"memory_real": real} if both else {}))


# What to make, and how to call it with `real`.
CALLS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    **{name: (case.build, partial(called, case.other)) for name, case in CASES.items()},
    "cross layer": (lambda: CrossLayer(DIM, 4), partial(called, True)),
    "decoder layer that counts": (
        lambda: DecoderLayer(DIM, self_attention=rotary(), cross_attention=rotary()),
        partial(called, True),
    ),
    "a bert": (bert, lambda m, real: m(IDS, real=real)),
    "a small encoder": (small, lambda m, real: m(IDS, real=real)),
    "a latent encoder": (
        lambda: LatentEncoder(LatentEncoderConfig(**SIZES)),
        lambda m, real: m(IDS, real=real),
    ),
    "a classifier": (lambda: TextClassifier(small(), 3), lambda m, real: m(IDS, real=real)),
    "a causal model": (lambda: CausalLanguageModel(CausalConfig(**SIZES)), lambda m, real: m(IDS, real=real)),
    "an encoder-decoder": (
        lambda: EncoderDecoder(EncoderDecoderConfig(11, dim=8, num_heads=2, copies=True)),
        lambda m, real: m(IDS, IDS, source_real=real),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_integers_are_read_as_bool_and_say_the_same(name: str) -> None:
    make, call = CALLS[name]
    torch.manual_seed(0)
    model = make().eval()
    expected = call(model, REAL)
    for dtype in (torch.int64, torch.int32, torch.uint8):
        torch.testing.assert_close(call(model, REAL.to(dtype)), expected, rtol=0, atol=0)
    assert not torch.equal(call(model, None), expected)  # padding does change what comes out


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_such_mask_is_refused_by_name(name: str) -> None:
    make, call = CALLS[name]
    model = make().eval()
    with pytest.raises(DtypeError, match=r"real: expected bool or integers.*real=mask == 0"):
        call(model, torch.where(REAL, 0.0, -torch.inf))
    with pytest.raises(ArgumentError, match=r"real: expected 1 .* Received: .*real with the values \[-10000, 0, 1\]"):
        call(model, torch.tensor([[1, 0, -10000, 1]] * 2))
    with pytest.raises(ShapeError, match=r"real: expected \[2, 4\].* Received: .*real=\[2, 3\]"):
        call(model, REAL[:, :3])


def test_the_polarity_is_the_opposite_of_pytorchs() -> None:
    theirs = torch.nn.MultiheadAttention(DIM, 4, batch_first=True).eval()
    key_padding_mask = ~REAL
    expected, _ = theirs(x(), x(), x(), key_padding_mask=key_padding_mask)
    torch.testing.assert_close(MultiHeadAttention.from_torch(theirs)(x(), real=~key_padding_mask), expected)


def test_a_cache_takes_integers_too() -> None:
    cache = Cache()
    left = torch.tensor([[0, 0, 1], [1, 1, 1]])
    assert cache.next_positions(3, left, device="cpu").tolist() == [[0, 0, 0], [0, 1, 2]]
    cache.append(torch.zeros(2, 1, 3, 1), real=left)
    assert cache.real.tolist() == cache.key_real.tolist() == [[False, False, True], [True] * 3]
    with pytest.raises(ArgumentError, match="real: expected 1"):
        cache.append(torch.zeros(2, 1, 1, 1), real=torch.tensor([[2], [1]]))
    assert cache.length == 3


def test_bool_comes_back_as_it_is_and_lengths_get_a_hint() -> None:
    assert check_real(REAL, 2, 4) is REAL
    assert check_real(None, 2, 4) is None
    with pytest.raises(ShapeError, match=r"real=\[2\]. For lengths pass torch.arange\(K\) < lengths\[:, None\]"):
        check_real(torch.tensor([3, 4]), 2, 4)
    with pytest.raises(DtypeError, match="Received: real=list"):
        check_real([[True]], 1, 1)  # type: ignore[arg-type]


def test_the_mean_over_real_tokens_ignores_what_stands_at_padding() -> None:
    states = torch.tensor([[[1.0], [3.0], [torch.nan]], [[1.0], [2.0], [6.0]]])
    assert average_real(states, torch.tensor([[1, 1, 0], [1, 1, 1]])).tolist() == [[2.0], [3.0]]
    assert average_real(states[1:], None).tolist() == [[3.0]]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("kind", ["module", "stack", "bert"])
def test_a_trace_of_an_example_without_padding_serves_examples_with_it(kind: str) -> None:
    ids, real = torch.arange(14).view(2, 7), torch.ones(2, 7, dtype=torch.bool)
    x: Tensor = ids if kind == "bert" else torch.randn(2, 7, 8)
    module: Any = {
        "module": lambda: MultiHeadAttention(8, 2),
        "stack": lambda: Encoder(8, num_layers=2, num_heads=2),
        "bert": lambda: Bert(BertConfig(vocab_size=20, dim=8, num_layers=2, num_heads=2, ffn_dim=8, max_positions=9)),
    }[kind]()
    module.eval().requires_grad_(False)
    traced = torch.jit.trace(lambda x, real: module(x, real=real), (x, real), check_trace=False)
    padded = torch.arange(7) < torch.tensor([[7], [4]])
    torch.testing.assert_close(traced(x, padded), module(x, real=padded), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(module(x, real=padded)[1, :4], module(x, real=real)[1, :4])
