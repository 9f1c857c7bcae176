"""The copy head: numbers by hand, that p is a distribution, and gradients where nothing is copied."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.errors import ArgumentError
from headwise.models import EncoderDecoder, EncoderDecoderConfig
from headwise.models.copy_head import CopyHead, mixed


def test_a_mixture_by_hand() -> None:
    # Of 4 tokens the vocabulary offers the first and the second, evenly. The source is 2, 3, 2, and g is 1/4.
    logits = torch.tensor([[0.0, 0.0, -math.inf, -math.inf]])
    weights, source = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[2, 3, 2]])
    p = mixed(logits, weights, torch.tensor([math.log(1 / 3)]), source).exp()
    torch.testing.assert_close(p, torch.tensor([[0.125, 0.125, 0.75 * 0.7, 0.75 * 0.3]]))


def test_where_to_copy_from_by_hand() -> None:
    head = CopyHead(2).double()
    with torch.no_grad():
        head.query.weight.copy_(torch.tensor([[math.sqrt(2) * math.log(3), 0], [0, 0]]))
        head.gate.weight.copy_(torch.tensor([[1.0, 0, 0, 10]]))
        head.gate.bias.fill_(0.5)
    hidden = torch.tensor([[[1.0, 5.0]]]).double()
    memory = torch.tensor([[[1.0, 0], [0.0, 1], [9.0, 9]]]).double()
    weights, gate = head(hidden, memory, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(weights, torch.tensor([[[0.75, 0.25, 0]]]).double())
    torch.testing.assert_close(gate, torch.tensor([[1.0 + 10 * 0.25 + 0.5]]).double())


def test_where_the_gate_is_shut_gradients_are_numbers() -> None:
    logits = torch.full((1, 3), -200.0, requires_grad=True)  # in float32 e^-200 is 0
    gate = torch.tensor([200.0], requires_grad=True)
    weights = torch.ones(1, 1, requires_grad=True)
    log_p = mixed(logits + torch.tensor([0.0, 0.0, -200.0]), weights, gate, torch.tensor([[2]]))
    log_p.sum().backward()
    for each in (log_p, logits.grad, gate.grad, weights.grad):
        assert bool(each.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_copies_gives_log_probabilities(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shape = {"dim": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    model = EncoderDecoder(EncoderDecoderConfig(vocab_size=11, copies=True, **shape)).to(dtype)
    logits = model(torch.randint(0, 11, (2, 5)), torch.randint(0, 11, (2, 3)))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(logits.log_softmax(-1), logits)


def test_copies_need_one_vocabulary() -> None:
    with pytest.raises(ArgumentError, match="copies: expected one vocabulary for source and target"):
        EncoderDecoderConfig(vocab_size=11, source_vocab_size=12, copies=True)
