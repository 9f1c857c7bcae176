"""MultiHeadAttention of Keras with every scheme: the same numbers as PyTorch's, by every kernel, with padding."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import torch

from headwise import masks
from headwise import nn as hnn
from headwise.errors import ArgumentError
from headwise.keras import MultiHeadAttention, positions
from headwise.keras.kernels import chunked
from tests.keras.backend import array, cases, tensor, weight_gradients
from tests.keras.parity import copy_weights, gradients_of

M, H, D = 12, 3, 4
SCHEMES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "rope": ("Rope", (D,), {}),
    "rope-dynamic": ("Rope", (D,), {"scaling": positions.DynamicNTK(2.0, 5)}),
    "alibi": ("Alibi", (H,), {}),
    "t5": ("T5Buckets", (H, 8, 20), {"std": 1.0}),
    "shaw": ("ShawRelative", (D, 2), {}),
    "shaw-values": ("ShawRelative", (D, (3, 1)), {"values": True}),
}


def pair(scheme: str, **options: Any) -> tuple[hnn.MultiHeadAttention, MultiHeadAttention]:
    name, args, given = SCHEMES[scheme]
    twin = hnn.MultiHeadAttention(M, H, positions=getattr(hnn.positions, name)(*args, **given))
    layer = MultiHeadAttention(M, H, positions=getattr(positions, name)(*args, **given), **options)
    copy_weights(twin, layer)
    return twin, layer


def padded(length: int) -> torch.Tensor:
    """Two examples, the first of which begins with padding."""
    real = torch.ones(2, length, dtype=torch.bool)
    real[0, : length // 3] = False
    return real


def compare(got: Any, want: torch.Tensor, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(array(got), want.detach(), atol=tolerance)


@pytest.mark.parametrize("scheme", cases(SCHEMES, "rope", "alibi", "shaw-values"))
def test_whole(scheme: str) -> None:
    twin, layer = pair(scheme)
    x, real = torch.randn(2, 7, M), padded(7)
    compare(layer(tensor(x)), twin(x))
    # The queries of the padding may attend to nothing: their output is the bias of `out`.
    got = layer(tensor(x), query_mask=tensor(real), use_causal_mask=True)
    compare(got, twin(x, mask=masks.causal(), real=real))
    compare(got[0, :2], twin.out.bias.expand(2, -1))
    out, weights = layer(tensor(x), attention_mask=masks.window(2, 1), return_attention_scores=True)
    want, record = twin(x, mask=masks.window(2, 1), record=True)
    compare(out, want)
    compare(weights, record.weights())


@pytest.mark.parametrize("kernel", ["plain", "chunked", "banded", "block_sparse"])
@pytest.mark.parametrize("scheme", ["rope-dynamic", "alibi", "t5", "shaw"])
def test_every_kernel(scheme: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "ROWS", 64)
    twin, layer = pair(scheme, kernel=kernel)
    x, real = torch.randn(2, 150, M), padded(150)
    compare(layer(tensor(x), attention_mask=masks.window(3, 2)), twin(x, mask=masks.window(3, 2)))
    got = layer(tensor(x), query_mask=tensor(real), attention_mask=masks.window(3, 2))
    compare(got, twin(x, mask=masks.window(3, 2), real=real))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_given_positions(scheme: str) -> None:
    twin, layer = pair(scheme)
    x = torch.randn(2, 7, M)
    for ids in (torch.tensor([5, 3, 0, 9, 1, 2, 30]), torch.tensor([[0, 0, 1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4, 3]])):
        for given, mask in (({"use_causal_mask": True}, masks.causal()), ({}, None)):
            got = layer(tensor(x), position_ids=tensor(ids), **given)
            compare(got, twin(x, mask=mask, position_ids=ids))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_sequence(scheme: str) -> None:
    twin, layer = pair(scheme)
    x, memory, real = torch.randn(2, 5, M), torch.randn(2, 8, M), padded(8)
    got = layer(tensor(x), tensor(memory), value_mask=tensor(real))
    compare(got, twin(x, memory, real=real))


@pytest.mark.parametrize("kernel", ["plain", "chunked", "banded"])
@pytest.mark.parametrize("scheme", ["rope", "alibi", "t5", "shaw", "shaw-values"])
def test_gradients(scheme: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "ROWS", 40)
    twin, layer = pair(scheme, kernel=kernel)
    x, weight, real = torch.randn(2, 70, M), torch.randn(2, 70, M), padded(70)
    (twin(x, mask=masks.window(4, 1), real=real) * weight).sum().backward()
    given = {"query_mask": tensor(real), "attention_mask": masks.window(4, 1)}
    there, weight = tensor(x), tensor(weight)
    got = weight_gradients(lambda: keras.ops.sum(layer(there, **given) * weight), layer)
    wanted = gradients_of(twin, layer)
    assert got.keys() == wanted.keys()
    for path, want in wanted.items():
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got[path] / scale, want / scale, atol=1e-4, err_msg=path)


@pytest.mark.parametrize("scheme", cases(SCHEMES, "rope-dynamic", "t5"))
def test_inside_a_model_of_unknown_length(scheme: str) -> None:
    _, layer = pair(scheme)
    inputs = keras.Input((None, M))
    model = keras.Model(inputs, layer(inputs, use_causal_mask=True))
    x = np.random.default_rng(0).normal(size=(2, 7, M)).astype(np.float32)
    want = array(layer(tensor(x), use_causal_mask=True))
    np.testing.assert_allclose(model.predict(x, verbose=0), want, atol=1e-5)


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match="num_heads=4"):
        MultiHeadAttention(M, H, positions=positions.Alibi(4))
    with pytest.raises(ArgumentError, match="head_dim=8"):
        MultiHeadAttention(M, H, positions=positions.ShawRelative(8, 2))
    with pytest.raises(ArgumentError, match="dropout: expected 0"):
        MultiHeadAttention(M, H, positions=positions.ShawRelative(D, 2, values=True), dropout=0.1)
    with pytest.raises(ArgumentError, match=r"a scheme of headwise\.keras\.positions"):
        MultiHeadAttention(M, H, positions=hnn.positions.Alibi(H))
