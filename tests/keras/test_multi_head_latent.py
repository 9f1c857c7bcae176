"""Multi-head latent attention in Keras: PyTorch's numbers by both paths, with masks and padding, and bad input."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest
import torch

from headwise import masks
from headwise import nn as hnn
from headwise.errors import ArgumentError, ShapeError
from headwise.keras.kernels import chunked
from headwise.keras.multi_head_latent import MultiHeadLatentAttention
from headwise.keras.positions import Alibi, DynamicNTK, Rope, Yarn
from headwise.nn import positions as torch_positions
from tests.keras.backend import array, tensor
from tests.keras.parity import copy_weights

M, H = 12, 3
SIZES: dict[str, Any] = {"q_rank": 7, "kv_rank": 6, "nope_dim": 5, "rope_dim": 4, "value_head_dim": 3}
YARN = Yarn(40.0, 16, mscale=1.0, mscale_all_dim=1.0)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-q-rank": {"q_rank": None},
    "bias": {"bias": True, "norm_eps": 1e-3},
    "yarn": {"scaling": YARN},
    "halves-scaled": {"interleaved": False, "scale": 0.7},
}
PATHS = ("expand", "absorb")


def pair(kind: str = "plain", **more: Any) -> tuple[hnn.MultiHeadLatentAttention, MultiHeadLatentAttention]:
    """Twins with the same weights, large enough that the softmax is far from even."""
    options = {**SIZES, **KINDS[kind]}
    rope = {"interleaved": options.pop("interleaved", True), "scaling": options.pop("scaling", None)}
    with_rope = kind in ("yarn", "halves-scaled")
    twin = hnn.MultiHeadLatentAttention(
        M, H, **options, positions=torch_positions.Rope(4, **rope) if with_rope else None
    ).eval()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.copy_(torch.randn_like(parameter) / math.sqrt(parameter.shape[-1]) + (parameter.ndim == 1))
    layer = MultiHeadLatentAttention(M, H, **options, positions=Rope(4, **rope) if with_rope else None, **more)
    copy_weights(twin, layer)
    return twin, layer


def padded(length: int) -> torch.Tensor:
    real = torch.ones(2, length, dtype=torch.bool)
    real[0, : length // 3] = False
    real[1, -1] = False
    return real


def compare(got: Any, want: torch.Tensor) -> None:
    np.testing.assert_allclose(array(got), want.detach(), atol=1e-5)


def test_yarns_mscale_enters_the_scale_once() -> None:
    # DeepSeek-V3: 128 + 64 dimensions, factor 40: m = 0.1 · ln 40 + 1 = 1.3688879454, scale = m² / √192 = 0.13523378.
    rope = Rope(64, interleaved=True, scaling=Yarn(40, 4096, mscale=1.0, mscale_all_dim=1.0))
    sizes = {"q_rank": None, "kv_rank": 8, "nope_dim": 128, "rope_dim": 64, "value_head_dim": 4}
    assert MultiHeadLatentAttention(8, 2, **sizes, positions=rope).scale == pytest.approx(0.13523378)
    assert rope.amplitude == 1.0


def test_one_token_attends_to_itself_by_hand() -> None:
    # Its output is W_O W_UV norm(W_DKV x), whatever the scores are. x = (3, 4), its norm's mean square is 12.5.
    layer = MultiHeadLatentAttention(2, 1, q_rank=None, kv_rank=2, nope_dim=1, rope_dim=2, value_head_dim=1)
    layer.build()
    layer.kv_down.kernel.assign(np.eye(2, 4))
    layer.kv_up.kernel.assign(np.array([[7.0, 1], [7, 2]]))  # the key's column, the value's
    layer.out.kernel.assign(np.array([[1.0, -1]]))
    want = (3 + 8) / math.sqrt(12.5)
    for path in PATHS:
        np.testing.assert_allclose(array(layer(tensor([[[3.0, 4]]]), path=path)), [[[want, -want]]], rtol=1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_same_as_pytorch(kind: str, path: Any) -> None:
    twin, layer = pair(kind)
    x, real = torch.randn(2, 7, M), padded(7)
    compare(layer(tensor(x), path=path), twin(x))
    # The first example begins with padding: what may attend to nothing gives the bias of `out`, or 0.
    out, weights = layer(
        tensor(x), query_mask=tensor(real), use_causal_mask=True, path=path, return_attention_scores=True
    )
    want, record = twin(x, mask=masks.causal(), real=real, record=True)
    compare(out, want)
    compare(weights, record.weights())
    assert not array(weights)[0, :, :2].any()
    ids = torch.tensor([[3, 4, 5, 9, 10, 2, 1], [0, 1, 2, 3, 4, 5, 6]])
    allowed = torch.rand(2, 7, 7) > 0.4
    got = layer(tensor(x), attention_mask=tensor(allowed), position_ids=tensor(ids), path=path)
    compare(got, twin(x, mask=allowed[:, None], position_ids=ids))


@pytest.mark.parametrize("kernel", ["plain", "chunked", "banded", "block_sparse"])
@pytest.mark.parametrize("path", PATHS)
def test_every_kernel(path: Any, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "ROWS", 64)
    twin, layer = pair(kernel=kernel, path=path)
    x, real = torch.randn(2, 130, M), padded(130)
    got = layer(tensor(x), query_mask=tensor(real), attention_mask=masks.window(6, 1))
    compare(got, twin(x, mask=masks.window(6, 1), real=real))


@pytest.mark.parametrize("path", PATHS)
def test_padding_may_hold_nan(path: Any) -> None:
    _, layer = pair()
    x, real = torch.randn(2, 7, M), padded(7)
    want = array(layer(tensor(x), query_mask=tensor(real), path=path))
    x[~real] = math.nan
    got = array(layer(tensor(x), query_mask=tensor(real), path=path))
    np.testing.assert_allclose(got[real], want[real], atol=1e-6)


def test_auto_takes_the_fewer_multiplications() -> None:
    _, layer = pair()
    assert not layer._absorbs(None)  # 2 R = 12, nope_dim + E = 8
    assert MultiHeadLatentAttention(M, H, **{**SIZES, "kv_rank": 3})._absorbs(None)
    assert layer._absorbs("absorb")
    assert not layer._absorbs("expand")
    assert pair(path="absorb")[1]._absorbs(None)


def test_lora_is_not_passed_by() -> None:
    layer = MultiHeadLatentAttention(M, H, **{**SIZES, "kv_rank": 3})
    layer.build()
    layer.kv_up.enable_lora(2)
    layer.kv_up.lora_kernel_b.assign(np.ones(layer.kv_up.lora_kernel_b.shape))
    x = tensor(torch.randn(1, 4, M))
    assert np.array_equal(array(layer(x)), array(layer(x, path="expand")))  # "auto"
    with pytest.raises(ArgumentError, match=r'path: "absorb" reads the kernel of kv_up.*lora_enabled=True'):
        layer(x, path="absorb")


def test_quantised_weights_are_not_passed_by() -> None:
    layer = MultiHeadLatentAttention(M, H, **SIZES)
    layer.build()
    layer.kv_up.quantize("int8")
    with pytest.raises(ArgumentError, match="quantization_mode='int8'"):
        layer(tensor(torch.randn(1, 4, M)), path="absorb")


def test_inside_a_model_of_unknown_length_after_an_embedding() -> None:
    _, layer = pair("yarn")
    ids = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(9, M, mask_zero=True)
    out, weights = layer(embedded(ids), use_causal_mask=True, return_attention_scores=True, path="absorb")
    assert tuple(out.shape) == (None, None, M)
    assert tuple(weights.shape) == (None, H, None, None)
    given = np.array([[0, 0, 4, 2, 5], [3, 3, 1, 8, 0]], np.int32)
    got, weights = keras.Model(ids, [out, weights]).predict(given, verbose=0)
    x = embedded(tensor(given))
    want = layer(x, query_mask=tensor(given != 0), use_causal_mask=True)
    np.testing.assert_allclose(got, array(want), atol=1e-5)
    assert not weights[0, :, :, :2].any()
    assert not weights[1, :, :, 4].any()


def test_mixed_precision() -> None:
    _, layer = pair()
    low = MultiHeadLatentAttention(M, H, **SIZES, dtype="mixed_bfloat16")
    low.build()
    low.set_weights(layer.get_weights())
    x = tensor(torch.randn(2, 7, M))
    want = array(layer(x))
    for path in PATHS:
        out, weights = low(x, path=path, return_attention_scores=True)
        assert keras.backend.standardize_dtype(out.dtype) == "bfloat16"
        assert keras.backend.standardize_dtype(weights.dtype) == "float32"
        np.testing.assert_allclose(array(keras.ops.cast(out, "float32")), want, atol=0.03 * np.abs(want).max())


def test_weights_begin_small() -> None:
    layer = MultiHeadLatentAttention(64, 4, q_rank=32, kv_rank=32, nope_dim=8, rope_dim=4, value_head_dim=8, bias=True)
    layer.build()
    for part in (layer.q_down, layer.q_up, layer.kv_down, layer.kv_up, layer.out):
        assert float(np.std(array(part.kernel))) == pytest.approx(0.006, rel=0.15)
    assert not array(layer.out.bias).any()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"rope_dim": 3}, "rope_dim"),
        ({"path": "both"}, "path"),
        ({"kernel": "fast"}, "kernel"),
        ({"positions": Alibi(H)}, "positions: expected a headwise.keras.positions.Rope"),
        ({"positions": Rope(6)}, "head_dim"),
        ({"positions": Rope(4, scaling=DynamicNTK(2.0, 8))}, "do not depend on the length"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_bad_options(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        MultiHeadLatentAttention(M, H, **{**SIZES, **options})


def test_bad_input() -> None:
    layer = MultiHeadLatentAttention(M, H, **SIZES)
    x = tensor(torch.randn(2, 7, M))
    with pytest.raises(ArgumentError, match="path"):
        layer(x, path="fast")
    with pytest.raises(ArgumentError, match="path"):
        layer(keras.Input((None, M)), path="fast")
    with pytest.raises(ShapeError, match="attention_mask"):
        layer(x, attention_mask=tensor(np.ones((7, 6), bool)))
    with pytest.raises(ShapeError, match="position_ids"):
        layer(x, position_ids=tensor(np.arange(6)))
