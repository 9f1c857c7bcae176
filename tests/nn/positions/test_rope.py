"""RoPE: turned by hand, relative by property, equal to Llama."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.nn.positions import DynamicNTK, Positions, Rope, Yarn


def test_a_pair_is_turned_by_its_position_in_radians() -> None:
    x = torch.tensor([1.0, 0.0]).expand(1, 1, 3, 2)
    turned = Rope(2).rotate(x, torch.tensor([0, 1, 2]))[0, 0]
    expected = [[1.0, 0.0], [math.cos(1), math.sin(1)], [math.cos(2), math.sin(2)]]
    torch.testing.assert_close(turned, torch.tensor(expected))


def test_the_second_pair_turns_more_slowly_and_pairs_lie_as_asked() -> None:
    x = torch.tensor([1.0, 2.0, 0.0, 0.0]).view(1, 1, 1, 4)
    at_1 = torch.tensor([1])
    # base 100, D 4: θ = 1 and 100^(-1/2) = 0.1. Pairs (x0, x2), (x1, x3), or interleaved (x0, x1), (x2, x3).
    halves = Rope(4, base=100.0).rotate(x, at_1).flatten()
    expected = [math.cos(1), 2 * math.cos(0.1), math.sin(1), 2 * math.sin(0.1)]
    torch.testing.assert_close(halves, torch.tensor(expected))
    interleaved = Rope(4, base=100.0, interleaved=True).rotate(x, at_1).flatten()
    expected = [math.cos(1) - 2 * math.sin(1), 2 * math.cos(1) + math.sin(1), 0.0, 0.0]
    torch.testing.assert_close(interleaved, torch.tensor(expected))


def test_dimensions_beyond_rotary_dim_stay() -> None:
    x = torch.randn(2, 3, 5, 8)
    turned = Rope(8, rotary_dim=4).rotate(x, torch.arange(5))
    assert torch.equal(turned[..., 4:], x[..., 4:])
    torch.testing.assert_close(turned[..., :4], Rope(4).rotate(x[..., :4], torch.arange(5)))


def test_each_row_may_have_positions_of_its_own() -> None:
    rope, x = Rope(8), torch.randn(2, 3, 4, 8)
    ids = torch.tensor([[0, 0, 0, 1], [5, 6, 7, 8]])  # left padding; a row that goes on
    turned = rope.rotate(x, ids)
    for row in range(2):
        torch.testing.assert_close(turned[row : row + 1], rope.rotate(x[row : row + 1], ids[row]))


@given(
    st.integers(0, 2000),
    st.integers(0, 2000),
    st.integers(0, 2000),
    st.booleans(),
    st.sampled_from([None, 4]),
)
def test_scores_depend_on_the_distance_alone(i: int, j: int, shift: int, interleaved: bool, part: int | None) -> None:
    rope = Rope(8, interleaved=interleaved, rotary_dim=part)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).unbind()

    def score(m: int, n: int) -> Tensor:
        return (rope.rotate(q, torch.tensor([m])) * rope.rotate(k, torch.tensor([n]))).sum()

    torch.testing.assert_close(score(i, j), score(i + shift, j + shift), atol=5e-3, rtol=0.0)  # float32 phases
    assert abs(score(i, i) - (q * k).sum()) < 1e-6


@pytest.mark.parametrize("how", ["half", "bfloat16", "double"])
def test_frequencies_stay_float32_when_a_module_is_cast(how: str) -> None:
    rope = Rope(64)
    before = rope.inverse_frequencies.clone()
    module = torch.nn.Sequential(rope)
    getattr(module, how)()
    assert rope.inverse_frequencies.dtype == torch.float32
    assert torch.equal(rope.inverse_frequencies, before)


def test_frequencies_survive_the_meta_device() -> None:
    with torch.device("meta"):
        rope = Rope(16)
    assert rope.inverse_frequencies.device.type == "meta"
    assert torch.equal(rope.to_empty(device="cpu").inverse_frequencies, Rope(16).inverse_frequencies)


def test_phases_are_float32_for_bfloat16_inputs_and_under_autocast() -> None:
    x = torch.randn(1, 2, 6, 32)
    ids = torch.arange(100_000, 100_006)
    exact = Rope(32).rotate(x, ids)
    low = Rope(32).to(torch.bfloat16).rotate(x.bfloat16(), ids)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), Rope(32).rotate(x.bfloat16().float(), ids), atol=0.02, rtol=0.01)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(Rope(32).rotate(x, ids), exact)


def test_nothing_of_it_is_in_the_state_dict() -> None:
    assert Rope(8).state_dict() == {}


# Hugging Face


def test_halves_equal_llama_in_values_and_gradients() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as hf

    config = LlamaConfig(hidden_size=64, num_attention_heads=4, rope_theta=500.0)
    x = torch.randn(2, 4, 6, 16, requires_grad=True)
    ids = torch.tensor([[0, 0, 1, 2, 3, 4], [40, 41, 42, 43, 44, 45]])
    cos, sin = hf.LlamaRotaryEmbedding(config)(x, ids)
    expected, _ = hf.apply_rotary_pos_emb(x, x, cos, sin)
    actual = Rope.from_hf(config).rotate(x, ids)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    weight = torch.randn_like(x)
    gradients = [torch.autograd.grad((out * weight).sum(), x)[0] for out in (actual, expected)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=0)


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head_dim": 7}, "head_dim: expected an even number.*Received: head_dim=7"),
        ({"head_dim": 0}, "head_dim: expected a whole number of at least 2. Received: head_dim=0"),
        ({"head_dim": 8, "rotary_dim": 3}, "rotary_dim: expected an even number.*Received: rotary_dim=3"),
        ({"head_dim": 8, "rotary_dim": 10}, "rotary_dim: expected at most head_dim = 8. Received: rotary_dim=10"),
        ({"head_dim": 8, "base": -1.0}, "base: expected a finite number above 0. Received: base=-1.0"),
        ({"head_dim": 8, "base": 1.0}, "base: expected a number above 1. Received: base=1.0"),
        ({"head_dim": 8, "scaling": "yarn"}, "scaling: expected None or one of .*Received: scaling='yarn'"),
        ({"head_dim": 8, "interleaved": "no"}, "interleaved: expected one of False, True. Received: interleaved='no'"),
        ({"head_dim": 2, "scaling": DynamicNTK(2.0, 8)}, "at least 4 rotated dimensions. Received: rotary_dim=2"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Rope(**arguments)


def test_positions_that_do_not_fit_are_refused() -> None:
    rope, x = Rope(8), torch.randn(2, 3, 4, 8)
    with pytest.raises(ShapeError, match=r"position_ids: expected \[4\] or \[2, 4\]. Received: position_ids=\[5\]"):
        rope.rotate(x, torch.arange(5))
    with pytest.raises(ShapeError, match=r"Received: .*\[3, 4\]"):
        rope.rotate(x, torch.zeros(3, 4, dtype=torch.long))
    with pytest.raises(DtypeError, match=r"expected an integer tensor .* Received: position_ids=torch.float32"):
        rope.rotate(x, torch.arange(4.0))


def test_a_module_of_other_heads_is_refused() -> None:
    Rope(8).check(4, 8)
    with pytest.raises(ArgumentError, match=r"expected a module with head_dim=8. Received: head_dim=16"):
        Rope(8).check(4, 16)


def test_the_scheme_that_does_nothing_does_nothing() -> None:
    x, ids = torch.randn(1, 2, 3, 4), torch.arange(3)
    nothing = Positions()
    nothing.check(2, 4)
    assert nothing.rotate(x, ids) is x
    assert nothing.bias(x, ids, ids) is None
    assert nothing.values(torch.ones(1, 2, 3, 3), ids, ids) is None


def test_it_says_what_it_is() -> None:
    assert repr(Rope(8)) == "Rope(8, base=10000.0)"
    rope = Rope(8, base=5e5, interleaved=True, rotary_dim=4, scaling=Yarn(2.0, 64))
    assert repr(rope).startswith("Rope(8, base=500000.0, interleaved=True, rotary_dim=4, scaling=Yarn(factor=2.0")
