"""Sinusoidal and learned positions: by hand, equal to DistilBERT."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.errors import ArgumentError, DtypeError
from headwise.nn.positions import Learned, Sinusoidal


def test_waves_by_hand() -> None:
    ids = torch.tensor([0, 2])
    # M 4, base 100: wavelengths 1 and 10
    waves = [math.sin(2), math.cos(2), math.sin(0.2), math.cos(0.2)]
    torch.testing.assert_close(Sinusoidal(4, base=100.0)(ids), torch.tensor([[0.0, 1, 0, 1], waves]))
    halves = Sinusoidal(4, base=100.0, interleaved=False)(ids)
    torch.testing.assert_close(halves, torch.tensor([[0.0, 0, 1, 1], [waves[i] for i in (0, 2, 1, 3)]]))


def test_interleaved_equals_distilbert() -> None:
    from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings

    table = torch.empty(512, 48)
    create_sinusoidal_embeddings(512, 48, table)
    torch.testing.assert_close(Sinusoidal(48)(torch.arange(512)), table, atol=1e-6, rtol=0)


def test_far_positions_and_lowered_modules_are_exact() -> None:
    ids = torch.tensor([1_000_000])
    waves = Sinusoidal(4).half()(ids)
    expected = [f(1_000_000 / wave) for wave in (1, 100) for f in (math.sin, math.cos)]
    torch.testing.assert_close(waves, torch.tensor([expected]), atol=1e-6, rtol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(Sinusoidal(4)(ids), waves)


def test_learned_gets_gradients_where_it_was_read() -> None:
    learned = Learned(4, 2)
    learned(torch.tensor([1, 1, 3])).sum().backward()
    assert learned.weight.grad.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


def test_positions_beyond_the_table_are_refused() -> None:
    learned = Learned(4, 2)
    with pytest.raises(ArgumentError, match=r"position_ids: expected 0 to 3, the rows of the table"):
        learned(torch.arange(5))
    with pytest.raises(ArgumentError, match="Received: position_ids from -1 to 0"):
        learned(torch.tensor([0, -1]))
    assert learned(torch.empty(0, dtype=torch.long)).shape == (0, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sinusoidal(5), "dim: expected an even number.*Received: dim=5"),
        (lambda: Sinusoidal(0), "dim: expected a whole number of at least 2. Received: dim=0"),
        (lambda: Sinusoidal(4, base=0.0), "base: expected a finite number above 0"),
        (lambda: Sinusoidal(4, interleaved="no"), "interleaved: expected one of False, True"),
        (lambda: Learned(0, 4), "max_positions: expected a whole number of at least 1. Received: max_positions=0"),
        (lambda: Learned(4, -1), "dim: expected a whole number of at least 1. Received: dim=-1"),
        (lambda: Learned(4, 4, std=0.0), "std: expected a finite number above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(make, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize("module", [Sinusoidal(4), Learned(4, 4)])
def test_positions_are_integers(module: torch.nn.Module) -> None:
    with pytest.raises(DtypeError, match="position_ids: expected an integer tensor"):
        module(torch.tensor([0.5]))


def test_state_and_description() -> None:
    assert repr(Sinusoidal(8)) == "Sinusoidal(8, base=10000.0, interleaved=True)"
    assert repr(Learned(16, 8)) == "Learned(16, 8)"
    assert Sinusoidal(8).state_dict() == {}
    learned = Learned(512, 64)
    assert list(learned.state_dict()) == ["weight"]
    assert learned.weight.std().item() == pytest.approx(0.02, rel=0.05)
