"""Gradient relevance against autograd: a tiny model's own dL/dA, and the updates of the paper written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.analyses import cross_relevance, relevance
from headwise.analyses.gradient_relevance import relevance_by_layer
from headwise.errors import ArgumentError, RecordError
from headwise.records import AttentionRecord
from tests.analyses.dense import Attention, Layer, by_hand, layers_of, tiny_encoder, tiny_records

close = torch.testing.assert_close
MASKS = {"full": None, "causal": masks.causal(), "padding": masks.lengths([7, 4]), "window": masks.window(2, 1)}


def bar(layer: Layer) -> Tensor:
    """Equation 5, from autograd's gradient of the weights."""
    return (layer.weights_grad * layer.weights).clamp(min=0).mean(1)


def dense_relevance(layers: list[Layer]) -> Tensor:
    """Equation 6, R += Ā R."""
    batch, _, length, _ = layers[0].weights.shape
    r = torch.eye(length, dtype=torch.float64).repeat(batch, 1, 1)
    for layer in layers:
        r = r + bar(layer) @ r
    return r


def dense_cross_relevance(encoder: list[Layer], decoder: list[Layer], cross: list[Layer]) -> Tensor:
    """Equations 6, 7, 8, 9 and 10, in the order of the computation."""

    def normalised(r: Tensor) -> Tensor:
        eye = torch.eye(r.shape[-1], dtype=torch.float64)
        rest = r - eye
        total = rest.sum(-1, keepdim=True)
        return torch.where(total > 0, rest / total, 0.0) + eye

    r_ee = dense_relevance(encoder)
    batch, _, q_len, k_len = cross[0].weights.shape
    r_dd = torch.eye(q_len, dtype=torch.float64).repeat(batch, 1, 1)
    r_de = torch.zeros(batch, q_len, k_len, dtype=torch.float64)
    for own, across in zip(decoder, cross, strict=True):
        r_de = r_de + bar(own) @ r_de
        r_dd = r_dd + bar(own) @ r_dd
        r_de = r_de + normalised(r_dd).mT @ bar(across) @ normalised(r_ee)
    return r_de


def tiny_translator(
    n_layers: int = 3, encoder_mask: masks.Mask | None = None
) -> tuple[list[Layer], list[Layer], list[Layer]]:
    """An encoder of 6 tokens and a causal decoder of 4, two examples, after backward()."""
    x = torch.randn(2, 6, 6, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    encoder: list[dict[str, Any]] = []
    decoder: list[dict[str, Any]] = []
    cross: list[dict[str, Any]] = []
    for _ in range(2):
        x = x + torch.tanh(Attention()(x, x, encoder_mask, encoder))
    for _ in range(n_layers):
        y = y + torch.tanh(Attention()(y, y, masks.causal(), decoder))
        y = y + torch.tanh(Attention()(y, x, encoder_mask, cross))
    y[:, -1].square().sum().backward()
    return layers_of(encoder, prefix="e"), layers_of(decoder, prefix="d"), layers_of(cross, "cross", "c")


def records(layers: list[Layer]) -> list[AttentionRecord]:
    return [layer.record for layer in layers]


def test_one_layer_of_two_tokens_by_hand() -> None:
    # A = [[1/2, 1/2], [1/4, 3/4]], v = (1, 2), dO = (1, -1): dA = [[1, 2], [-1, -2]], of which only the first row is
    # positive: Ā = [[1/2, 1], [0, 0]].
    seen = by_hand()
    seen.extras.v = torch.tensor([1.0, 2.0], dtype=torch.float64)[None, None, :, None]
    seen.extras.grad = torch.tensor([1.0, -1.0], dtype=torch.float64)[None, None, :, None]
    close(relevance([seen])[0], torch.tensor([[1.5, 1.0], [0.0, 1.0]], dtype=torch.float64))
    # (I + Ā)² for two such layers
    close(relevance([seen, seen])[0], torch.tensor([[2.25, 2.5], [0.0, 1.0]], dtype=torch.float64))


@pytest.mark.parametrize("name", MASKS)
def test_whole_and_rows_equal_autograd(name: str, block_bytes: int) -> None:
    layers = tiny_encoder(n_layers=3, mask=MASKS[name])
    expected = dense_relevance(layers)
    assert float((expected - torch.eye(7, dtype=torch.float64)).abs().max()) > 0.1
    close(relevance(records(layers)), expected)
    close(relevance(records(layers), rows=0), expected[:, [0]])
    close(relevance(records(layers), rows=[6, 2]), expected[:, [6, 2]])


def test_heads_are_averaged_after_the_negative_part_is_cut() -> None:
    layers = tiny_encoder(n_layers=1)
    other = (layers[0].weights_grad * layers[0].weights).mean(1).clamp(min=0) + torch.eye(7, dtype=torch.float64)
    assert not torch.allclose(relevance(records(layers)), other)


def test_layer_by_layer_each_row_is_multiplied_with_one_more_matrix() -> None:
    layers = tiny_encoder(n_layers=3, mask=masks.causal())
    rows = [6, 3]  # of the two examples
    expected = [torch.eye(7, dtype=torch.float64)[rows]]
    for layer in reversed(layers):
        x = expected[-1]
        expected.append(x + (x[:, None] @ bar(layer))[:, 0])
    found = relevance_by_layer(records(layers), rows)
    close(found, torch.stack(expected, dim=1))
    for b, row in enumerate(rows):
        close(found[b, -1], relevance(records(layers), rows=row)[b, 0])
    with pytest.raises(ArgumentError, match="one for each of the 2 examples"):
        relevance_by_layer(records(layers), [6])


def test_nan_behind_the_mask_does_not_spread() -> None:
    layers = tiny_encoder(n_layers=2, mask=masks.lengths(4))
    expected = dense_relevance(layers)
    for layer in layers:
        v = layer.record.v.clone()
        v[:, :, 4:] = float("nan")
        layer.record.extras.v = v
    close(relevance(records(layers)), expected)


@pytest.mark.parametrize("encoder_mask", [None, masks.lengths([6, 3])], ids=["full", "padding"])
def test_cross_relevance_equals_the_updates_in_order(encoder_mask: masks.Mask | None, block_bytes: int) -> None:
    encoder, decoder, cross = tiny_translator(encoder_mask=encoder_mask)
    expected = dense_cross_relevance(encoder, decoder, cross)
    assert float(expected.abs().max()) > 0.1
    found = (records(encoder), records(decoder), records(cross))
    close(cross_relevance(*found), expected)
    close(cross_relevance(*found, rows=-1), expected[:, [-1]])
    close(cross_relevance(*found, rows=[2, 0]), expected[:, [2, 0]])


def test_what_is_missing_is_named() -> None:
    layers = records(tiny_encoder(n_layers=2))
    layers[1].extras.grad = None
    with pytest.raises(RecordError, match=r"record of layer\.1 does not have output gradients.*gradients=True"):
        relevance(layers)
    layers[0].extras.v = None
    with pytest.raises(RecordError, match=r"record of layer\.0 does not have values.*values=True"):
        relevance(layers, rows=0)
    q = torch.randn(1, 2, 5, 4)
    _, dropped = headwise.attention(q, q, q, dropout=0.25, record=True)
    with pytest.raises(
        RecordError, match=r"relevance needs the weights that the call used. Received: record 0, which dropped 0\.25"
    ):
        relevance([dropped])
    with pytest.raises(ArgumentError, match=r"rows must lie in 0 … 4"):
        relevance(tiny_records(1, 5), rows=5)
    with pytest.raises(RecordError, match=r"relevance needs layers over the same tokens"):
        relevance(tiny_records(1, 5) + tiny_records(1, 4))


def test_cross_records_that_do_not_fit_are_named() -> None:
    encoder, decoder, cross = (records(layers) for layers in tiny_translator(2))
    with pytest.raises(
        RecordError, match=r"one cross record for each decoder layer. Received: len\(decoder\)=2, len\(cross\)=1"
    ):
        cross_relevance(encoder, decoder, cross[:1])
    with pytest.raises(RecordError, match=r"B, Q, K = \[2, 4, 6\]. Received: cross record 0 \(d\.0\) with \[2, 4, 4\]"):
        cross_relevance(encoder, decoder, decoder)
    with pytest.raises(
        RecordError, match=r"cross_relevance: encoder needs self-attention. Received: record 0 \(c\.0\)"
    ):
        cross_relevance(cross, decoder, cross)
    with pytest.raises(ArgumentError, match=r"rows must lie in 0 … 3"):
        cross_relevance(encoder, decoder, cross, rows=4)
    cross[1].extras.grad = None
    with pytest.raises(RecordError, match=r"record of c\.1 does not have output gradients"):
        cross_relevance(encoder, decoder, cross)
