"""MultiHeadAttention of PyTorch and Keras made of one another: dtypes, kernels, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import torch
from torch import nn

from headwise import keras as hk
from headwise import nn as hnn
from headwise.errors import ArgumentError, CheckpointError, DtypeError
from tests.keras.backend import BACKEND, array, cases, tensor
from tests.keras.modules import moved
from tests.keras.parity import assert_same_state


def made(**options: Any) -> hnn.MultiHeadAttention:
    return moved(hnn.MultiHeadAttention(16, 4, **options))


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def test_of_pytorchs_own_multi_head_attention() -> None:
    module = nn.MultiheadAttention(16, 4, kdim=6, vdim=10, batch_first=True).eval()
    with torch.no_grad():
        module.in_proj_bias += torch.randn(48)
    layer = hk.MultiHeadAttention.from_torch(module)
    x, k, v = numbers(2, 3, 16), numbers(2, 5, 6), numbers(2, 5, 10)
    expected = module(*map(torch.tensor, (x, k, v)), need_weights=False)[0].detach()
    np.testing.assert_allclose(array(layer(tensor(x), tensor(v), tensor(k))), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("dtype", cases([torch.float16, torch.bfloat16], torch.bfloat16))
def test_half_stays_half(dtype: torch.dtype) -> None:
    module = made(positions=hnn.positions.Rope(4)).to(dtype)
    layer = hk.MultiHeadAttention.from_torch(module)
    name = str(dtype).removeprefix("torch.")
    assert layer.dtype_policy.name == layer.qkv.dtype_policy.name == name
    assert {w.dtype for w in layer.weights} == {name}
    assert_same_state(module, layer.to_torch())


@pytest.mark.every_backend
def test_float64_stays_or_is_refused() -> None:
    module = made().double()
    if BACKEND == "jax":  # which has no float64 unless it is told
        warnings.simplefilter("ignore")  # JAX says so too
        with pytest.raises(ArgumentError, match=r"it makes float32.*jax_enable_x64"):
            hk.MultiHeadAttention.from_torch(module)
        return
    assert_same_state(module, hk.MultiHeadAttention.from_torch(module).to_torch())


def test_another_dtype_if_asked_for() -> None:
    layer = hk.MultiHeadAttention.from_torch(made().double(), dtype="mixed_bfloat16")
    assert layer.dtype_policy.name == "mixed_bfloat16"
    assert {p.dtype for p in layer.to_torch().parameters()} == {torch.float32}
    mixed = made()
    mixed.out.double()
    with pytest.raises(ArgumentError, match=r"one dtype.*Received: float32, float64"):
        hk.MultiHeadAttention.from_torch(mixed)


def test_frozen_weights_stay_frozen() -> None:
    module = made()
    module.qkv.weight.requires_grad_(False)
    layer = hk.MultiHeadAttention.from_torch(module)
    assert len(layer.trainable_weights) == len(layer.weights) - 1
    assert [p.requires_grad for p in layer.to_torch().parameters()] == [False, True, True, True]


def test_kernels_of_one_side_only() -> None:
    flex = hnn.MultiHeadAttention(16, 4, kernel="flex")
    with pytest.raises(ArgumentError, match=r"kernel: expected .* plain.*Received: kernel='flex'.*kernel=\"auto\""):
        hk.MultiHeadAttention.from_torch(flex)
    assert hk.MultiHeadAttention.from_torch(flex, kernel="chunked").kernel == "chunked"
    layer = hk.MultiHeadAttention(16, 4, kernel="plain")
    layer.build()
    with pytest.raises(ArgumentError, match=r"kernel: expected .* sdpa.*Received: kernel='plain'"):
        layer.to_torch()
    assert layer.to_torch(kernel="reference").kernel == "reference"


def test_refused_because_it_is_another_class() -> None:
    class Mine(hnn.MultiHeadAttention):
        pass

    class MyLayer(hk.MultiHeadAttention):
        pass

    for module in (Mine(16, 4), hnn.FeedForward(16), hk.MultiHeadAttention(16, 4), None):
        with pytest.raises(DtypeError, match=r"expected a headwise.nn.multi_head.MultiHeadAttention"):
            hk.MultiHeadAttention.from_torch(module)
    made_of = MyLayer.from_torch(made())  # the caller says so
    assert type(made_of) is MyLayer
    with pytest.raises(ArgumentError, match="not a subclass"):
        made_of.to_torch()
    with pytest.raises(ArgumentError, match=r"Rope2D has no twin"):
        hk.MultiHeadAttention.from_torch(hnn.MultiHeadAttention(16, 4, positions=hnn.positions.Rope2D(4)))


def test_without_weights_yet() -> None:
    with pytest.raises(ArgumentError, match=r"is not built: call layer.build\(\), or the layer once"):
        hk.MultiHeadAttention(16, 4).to_torch()
    with pytest.raises(ArgumentError, match=r"with values.*meta"):
        hk.MultiHeadAttention.from_torch(hnn.MultiHeadAttention(16, 4, device="meta"))


def test_a_replaced_part_is_refused() -> None:
    class Adapted(nn.Linear):
        pass

    module = made()
    module.out = Adapted(16, 16)
    with pytest.raises(ArgumentError, match=r"out: expected a plain nn.Linear.*Received: Adapted. Merge"):
        hk.MultiHeadAttention.from_torch(module)
    module.out = nn.Sequential(nn.Linear(16, 16))
    module.out.bias = None
    with pytest.raises(CheckpointError, match=r"out.0"):
        hk.MultiHeadAttention.from_torch(module)
    module = made()
    module.out = nn.Linear(16, 12)
    with pytest.raises(CheckpointError, match=r"out.weight: expected the same shape.*\[12, 16\].*\[16, 16\]"):
        hk.MultiHeadAttention.from_torch(module)
    module = made(qk_norm="rms")
    module.k_norm = type(module.k_norm)(4, eps=0.5)
    with pytest.raises(CheckpointError, match=r"Expected '.*eps=1e-06.*Received: '.*eps=0.5"):
        hk.MultiHeadAttention.from_torch(module)
    module = made()
    module.register_parameter("extra", nn.Parameter(torch.zeros(1)))
    with pytest.raises(CheckpointError, match="extra: there is no place"):
        hk.MultiHeadAttention.from_torch(module)
    module = made()
    module.register_buffer("extra", torch.zeros(1))
    with pytest.raises(CheckpointError, match="extra: there is no place"):
        hk.MultiHeadAttention.from_torch(module)


def test_weights_tied_in_one_framework_only_are_refused() -> None:
    module = made(qk_norm="rms")
    module.k_norm = module.q_norm
    with pytest.raises(CheckpointError, match=r"k_norm.weight.*shared with q_norm.weight"):
        hk.MultiHeadAttention.from_torch(module)


def test_lora_and_quantised_weights_are_refused_and_lora_merges_by_saving(tmp_path: Any) -> None:
    layer = hk.MultiHeadAttention.from_torch(made(), name="lora")
    layer.out.enable_lora(2)
    layer.out.lora_kernel_b.assign(numbers(2, 16))
    with pytest.raises(ArgumentError, match=r"out: expected a layer without LoRA.*rank 2.*save_weights"):
        layer.to_torch()
    x = keras.Input((5, 16))
    model = keras.Model(x, layer(x))
    model.save_weights(tmp_path / "lora.weights.h5")
    plain = hk.MultiHeadAttention(16, 4, name="lora")
    keras.Model(x, plain(x)).load_weights(tmp_path / "lora.weights.h5")
    np.testing.assert_allclose(plain.to_torch().out.weight.detach().numpy().T, array(layer.out.kernel), atol=1e-6)
    plain.out.quantize("int8")
    with pytest.raises(ArgumentError, match=r"out: expected weights of floats.*int8"):
        plain.to_torch()


def test_the_seed_stays_behind() -> None:
    layer = hk.MultiHeadAttention(16, 4, dropout=0.5, seed=7)
    layer.build()
    assert layer.to_torch().dropout == 0.5
