"""The feed-forward network and stochastic depth: their equations, then what they promise in training."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from headwise.errors import ArgumentError
from headwise.nn.drop_path import DropPath
from headwise.nn.feed_forward import FeedForward


class TestFeedForward:
    @pytest.mark.parametrize(
        ("activation", "torchs"),
        [
            ("relu", functional.relu),
            ("gelu", functional.gelu),
            ("gelu_tanh", nn.GELU("tanh")),
            ("silu", functional.silu),
        ],
    )
    def test_plain_is_linear_activation_linear(self, activation, torchs) -> None:  # type: ignore[no-untyped-def]
        ffn, x = FeedForward(8, activation=activation), torch.randn(2, 3, 8)
        torch.testing.assert_close(ffn(x), ffn.down(torchs(ffn.up(x))))

    @pytest.mark.parametrize(
        ("activation", "torchs"),
        [("swiglu", functional.silu), ("geglu", functional.gelu), ("geglu_tanh", nn.GELU("tanh"))],
    )
    def test_gated_is_equation_6_of_shazeer(self, activation, torchs) -> None:  # type: ignore[no-untyped-def]
        ffn, x = FeedForward(8, activation=activation, bias=False), torch.randn(2, 3, 8)
        w, v, w2 = ffn.gate.weight, ffn.up.weight, ffn.down.weight  # type: ignore[union-attr]
        torch.testing.assert_close(ffn(x), (torchs(x @ w.T) * (x @ v.T)) @ w2.T)

    @pytest.mark.parametrize(
        ("dim", "activation", "hidden"),
        [(512, "gelu", 2048), (10, "relu", 40), (512, "swiglu", 1408), (24, "swiglu", 64), (768, "geglu", 2048)],
    )
    def test_the_width_between_is_4_m_or_8_thirds_m_rounded_up(self, dim: int, activation, hidden: int) -> None:  # type: ignore[no-untyped-def]
        assert FeedForward(dim, activation=activation, device="meta").hidden_dim == hidden

    def test_dropout_is_between_the_linear_maps_and_in_training_only(self) -> None:
        ffn = FeedForward(4, 100, activation="relu", dropout=0.5)
        nn.init.constant_(ffn.up.bias, 1.0)
        nn.init.constant_(ffn.down.weight, 1.0)
        zeros = torch.zeros(1, 4)
        assert ffn.eval()(zeros)[0, 0].item() == 100.0  # 100 ones
        dropped = ffn.train()(zeros)[0, 0].item()
        assert dropped % 2 == 0  # twos and zeros
        assert 60 < dropped < 140
        assert dropped != 100.0

    def test_without_bias_there_is_none(self) -> None:
        names = set(FeedForward(4, activation="geglu", bias=False).state_dict())
        assert names == {"gate.weight", "up.weight", "down.weight"}

    def test_glorot_at_the_start_and_again(self) -> None:
        ffn = FeedForward(64, 192)
        bound = math.sqrt(6 / (64 + 192))
        for _ in range(2):
            assert ffn.up.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
            assert not bool(ffn.up.bias.any())
            nn.init.ones_(ffn.up.weight)
            ffn.reset_parameters()

    def test_says_what_it_is(self) -> None:
        assert repr(FeedForward(4, 8, activation="swiglu")).splitlines()[1].strip() == "4, 8, activation='swiglu'"

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"dim": 0}, "dim: expected a whole number of at least 1. Received: dim=0"),
            ({"hidden_dim": 2.5}, "hidden_dim: expected a whole number of at least 1. Received: hidden_dim=2.5"),
            ({"activation": "tanh"}, "activation: expected one of 'relu', .*'geglu_tanh'. Received: activation='tanh'"),
            ({"dropout": 1.0}, r"dropout: expected a probability in \[0, 1\). Received: dropout=1.0"),
        ],
    )
    def test_bad_options(self, wrong: dict[str, object], said: str) -> None:
        with pytest.raises(ArgumentError, match=said):
            FeedForward(**{"dim": 4, **wrong})  # type: ignore[arg-type]


class TestDropPath:
    def test_each_example_is_dropped_whole_or_scaled(self) -> None:
        out = DropPath(0.75)(torch.ones(1000, 3, 2))
        kept = out[:, 0, 0] != 0
        assert torch.equal(out, torch.where(kept, 4.0, 0.0)[:, None, None].expand(-1, 3, 2))
        assert 200 < int(kept.sum()) < 300

    def test_in_eval_mode_and_with_probability_0_it_is_the_identity(self) -> None:
        x = torch.randn(2, 3)
        assert DropPath(0.9).eval()(x) is x
        assert DropPath(0.0)(x) is x

    def test_a_dropped_example_has_no_gradient(self) -> None:
        x = torch.ones(50, 2, requires_grad=True)
        out = DropPath(0.5)(x)
        out.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, out.detach())  # 0, or 1 / (1 - 0.5)

    @pytest.mark.parametrize("probability", [1.0, -0.1, True, "0.1", None])
    def test_bad_probabilities(self, probability: object) -> None:
        with pytest.raises(ArgumentError, match="probability: expected a probability"):
            DropPath(probability)  # type: ignore[arg-type]

    def test_says_what_it_is(self) -> None:
        assert repr(DropPath(0.25)) == "DropPath(0.25)"
