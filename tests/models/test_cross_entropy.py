"""The cross-entropy of a vocabulary in pieces: torch's, in value and gradients."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.utils.flop_counter import FlopCounterMode

from headwise.capture import monitor
from headwise.errors import ArgumentError, KernelRefused
from headwise.models.cross_entropy import ROWS, linear_cross_entropy, summed_cross_entropy
from headwise.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from headwise.models.language_model import CausalConfig, CausalLanguageModel


def drawn(tokens: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(tokens)
    hidden, weight = (torch.randn(n, 8, generator=draws, dtype=dtype).requires_grad_() for n in (tokens, 30))
    return hidden, weight, torch.randint(30, (tokens,), generator=draws)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tokens", [0, 1, ROWS, 2 * ROWS + 3])
def test_value_and_gradients_are_those_of_torch(tokens: int, smoothing: float) -> None:
    hidden, weight, labels = drawn(tokens)
    found = linear_cross_entropy(hidden, weight, labels, label_smoothing=smoothing)
    expected = cross_entropy(linear(hidden, weight), labels, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(3 * x, (hidden, weight)) for x in (found, expected)]
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y)
    with torch.no_grad():
        torch.testing.assert_close(linear_cross_entropy(hidden, weight, labels, label_smoothing=smoothing), expected)


def test_autocast_multiplies_in_its_dtype_and_adds_in_float32() -> None:
    hidden, weight, labels = drawn(300, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_cross_entropy(hidden, weight, labels, label_smoothing=0.1)
        expected = cross_entropy(linear(hidden, weight).float(), labels, label_smoothing=0.1, reduction="sum")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)
    gradients = [torch.autograd.grad(x, (hidden, weight)) for x in (found, expected)]
    for x, y in zip(*gradients, strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, y, rtol=0.02, atol=0.02)


def test_a_frozen_weight_and_second_derivatives() -> None:
    hidden, weight, labels = drawn(5)
    total = linear_cross_entropy(hidden, weight.detach(), labels)
    (found,) = torch.autograd.grad(total, hidden, create_graph=True)
    with pytest.raises(KernelRefused, match="ask for the logits"):
        found.sum().backward()


@pytest.mark.parametrize("copies", [False, True])
def test_labels_ask_an_encoder_decoder_for_the_loss_of_its_logits(copies: bool) -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderConfig(20, dim=8, num_heads=2, ffn_dim=8, copies=copies)).eval()
    source, target = torch.randint(20, (2, 5)), torch.randint(20, (2, 4))
    at, labels = torch.tensor([0, 2, 3, 5]), torch.tensor([4, 0, 19, 7])
    found = model(source, target, at=at, labels=labels, label_smoothing=0.1)
    logits = model(source, target, at=at)
    expected = cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(found, expected)
    with pytest.raises(ArgumentError, match="labels: expected `at`"):
        model(source, target, labels=labels)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_monitor_takes_no_loss_for_attention(copies: bool, smoothing: float) -> None:
    torch.manual_seed(0)
    config = EncoderDecoderConfig(20, dim=8, num_heads=2, encoder_layers=1, decoder_layers=1, ffn_dim=8, copies=copies)
    model = EncoderDecoder(config)
    source, target = torch.randint(20, (2, 5)), torch.randint(20, (2, 4))
    with warnings.catch_warnings(), monitor(model, every=1) as watching:
        warnings.simplefilter("error")
        model(source, target, at=torch.arange(8), labels=torch.arange(8), label_smoothing=smoothing).backward()
        metrics = watching.step()
    coverage = watching.coverage()
    assert not coverage.refused
    assert not coverage.missed
    seen = [site.name for site in coverage if site.status == "seen"]
    assert len(seen) == 3 + copies, seen  # the encoder, the decoder, from the one to the other, and the copies
    assert "attention/encoder.layers.0.attention/entropy/head_1" in metrics


def test_labels_ask_a_language_model_for_the_loss_of_its_logits() -> None:
    torch.manual_seed(0)
    model = CausalLanguageModel(CausalConfig(20, dim=8, num_heads=2, num_layers=1)).eval()
    ids, at, labels = torch.randint(20, (2, 5)), torch.zeros(2, 5, dtype=torch.bool), torch.tensor([4, 0, 19])
    at[0, 1] = at[0, 4] = at[1, 0] = True
    expected = cross_entropy(model(ids, at=at), labels, reduction="sum")
    torch.testing.assert_close(model(ids, at=at, labels=labels), expected)
    with pytest.raises(ArgumentError, match="labels: expected `at`"):
        model(ids, labels=labels)


def test_what_is_kept_for_the_gradients_has_no_row_of_logits() -> None:
    hidden, weight, labels = drawn(2 * ROWS)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(tuple(x.shape)) or x, lambda x: x):
        linear_cross_entropy(hidden, weight, labels, label_smoothing=0.1)
    assert sorted(kept) == sorted([tuple(hidden.shape), tuple(weight.shape)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_watched_and_half_precision_losses_are_those_of_the_logits(dtype: torch.dtype) -> None:
    hidden, weight, labels = drawn(7, dtype)
    expected = summed_cross_entropy(linear(hidden, weight), labels)
    assert expected.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    with FlopCounterMode(display=False) as counted:
        torch.testing.assert_close(linear_cross_entropy(hidden, weight, labels), expected)
    assert counted.get_total_flops() == 2 * 7 * 8 * 30
