"""Linear, dynamic NTK, YaRN and Llama 3: by hand, and equal to Hugging Face's LlamaRotaryEmbedding."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.errors import ArgumentError
from headwise.nn.positions import DynamicNTK, Linear, Llama3, LongRope, Proportional, Rope, Yarn
from tests.versions import rope_options


def test_linear_by_two_puts_position_two_where_one_was() -> None:
    x = torch.randn(1, 1, 1, 8)
    scaled = Rope(8, scaling=Linear(2.0)).rotate(x, torch.tensor([2]))
    torch.testing.assert_close(scaled, Rope(8).rotate(x, torch.tensor([1])))


def test_dynamic_ntk_changes_nothing_up_to_the_original_length_and_the_base_beyond() -> None:
    x, ids = torch.randn(1, 2, 3, 8), torch.tensor([0, 5, 9])
    rope = Rope(8, base=100.0, scaling=DynamicNTK(2.0, 10))
    for length in (1, 9, 10):
        torch.testing.assert_close(rope.rotate(x, ids, length), Rope(8, base=100.0).rotate(x, ids))
    # twice the length, factor 2: base · (2·2 - 1)^(8/6)
    expected = Rope(8, base=100.0 * 3.0 ** (8 / 6)).rotate(x, ids)
    torch.testing.assert_close(rope.rotate(x, ids, 20), expected)
    torch.testing.assert_close(rope.rotate(x, ids, torch.tensor(20)), expected)


def test_dynamic_ntk_asks_for_the_length() -> None:
    rope = Rope(8, scaling=DynamicNTK(2.0, 10))
    assert rope.depends_on_length
    assert not Rope(8, scaling=Linear(2.0)).depends_on_length
    with pytest.raises(ArgumentError, match="length: expected the number of tokens"):
        rope.rotate(torch.randn(1, 1, 1, 8), torch.tensor([0]))


def test_llama3_keeps_short_waves_divides_long_ones_and_mixes_between() -> None:
    # Wavelengths 2π·10^i: 6.3, 62.8, 628, 6283. Original 1000: short < 1000/10 = 100, long > 1000/1.
    theta = Llama3(8.0, 1.0, 10.0, 1000).frequencies(8, 10_000.0)
    share = (1000 / (2 * math.pi * 100) - 1) / 9
    mixed = (1 - share) * 0.01 / 8 + share * 0.01
    torch.testing.assert_close(theta, torch.tensor([1.0, 0.1, mixed, 0.001 / 8]))


def test_yarn_keeps_fast_turns_and_divides_slow_ones() -> None:
    # 8 dimensions, base 10⁴, trained on 1000: dimension i turns 1000/(2π 10^i) times: 159, 15.9, 1.6, 0.16.
    yarn = Yarn(4.0, 1000, beta_fast=32.0, beta_slow=1.0, truncate=False)
    low, high = (math.log10(1000 / (turns * 2 * math.pi)) for turns in (32, 1))  # 0.70 and 2.2
    kept = [1.0, 1 - (1 - low) / (high - low), 1 - (2 - low) / (high - low), 0.0]
    expected = [10.0**-i * (gamma + (1 - gamma) / 4) for i, gamma in enumerate(kept)]
    torch.testing.assert_close(yarn.frequencies(8, 10_000.0), torch.tensor(expected))
    # truncated: from dimension 0 to dimension 3
    expected = [10.0**-i * (1 - i / 3 + i / 3 / 4) for i in range(4)]
    torch.testing.assert_close(Yarn(4.0, 1000).frequencies(8, 10_000.0), torch.tensor(expected))


def test_yarn_amplitude_and_softmax_factor() -> None:
    m = 0.1 * math.log(40.0) + 1
    assert Yarn(40.0, 4096).amplitude == pytest.approx(m)
    assert Yarn(40.0, 4096).softmax_factor == 1.0
    deepseek_v3 = Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    assert deepseek_v3.amplitude == 1.0
    assert deepseek_v3.softmax_factor == pytest.approx(m**2)
    deepseek_v2 = Yarn(40.0, 4096, mscale=0.707, mscale_all_dim=0.707)
    assert deepseek_v2.softmax_factor == pytest.approx((0.0707 * math.log(40.0) + 1) ** 2)
    assert Yarn(40.0, 4096, attention_factor=1.5).amplitude == 1.5
    assert Yarn(0.5, 4096).amplitude == 1.0


def test_yarn_amplitude_scales_queries_and_keys() -> None:
    x = torch.randn(1, 1, 3, 8)
    rope = Rope(8, scaling=Yarn(4.0, 16, attention_factor=2.0))
    torch.testing.assert_close(rope.rotate(x, torch.arange(3)).norm(dim=-1), 2 * x.norm(dim=-1))


SCALINGS = [
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.3},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
]


@pytest.mark.parametrize("parameters", SCALINGS, ids=lambda p: "-".join([p["rope_type"], *list(p)[3:]]))
def test_scalings_equal_llamas(parameters: dict) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as hf

    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=64,
        **rope_options(rope_theta=10_000.0, **parameters),
    )
    embedding = hf.LlamaRotaryEmbedding(config)
    rope = Rope.from_hf(config)
    assert rope.scaling is not None
    torch.testing.assert_close(rope.inverse_frequencies, embedding.inv_freq, atol=0, rtol=1e-6)
    assert rope.amplitude == pytest.approx(embedding.attention_scaling)
    x, ids = torch.randn(2, 4, 50, 16), torch.arange(3, 53)
    expected, _ = hf.apply_rotary_pos_emb(x, x, *embedding(x, ids[None]))
    torch.testing.assert_close(rope.rotate(x, ids), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("length", [30, 50])
def test_longrope_equals_phi3s(length: int) -> None:
    from transformers import Phi3Config
    from transformers.models.phi3 import modeling_phi3 as hf

    factors = {"short_factor": [1.0 + 0.1 * i for i in range(6)], "long_factor": [2.0 + 0.5 * i for i in range(6)]}
    config = Phi3Config(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=64,
        original_max_position_embeddings=32,
        partial_rotary_factor=0.75,
        pad_token_id=0,
        **rope_options(rope_theta=10_000.0, rope_type="longrope", **factors),
    )
    rope = Rope.from_hf(config)
    x, ids = torch.randn(2, 4, length, 16), torch.arange(length)
    expected, _ = hf.apply_rotary_pos_emb(x, x, *hf.Phi3RotaryEmbedding(config)(x, ids[None]))
    torch.testing.assert_close(rope.rotate(x, ids, length), expected, atol=1e-5, rtol=0)


def test_each_type_of_layer_equals_gemma_4s() -> None:
    transformers = pytest.importorskip("transformers", minversion="5.5")
    from transformers.models.gemma4 import modeling_gemma4 as hf

    config = transformers.Gemma4TextConfig(hidden_size=64, num_attention_heads=4, head_dim=16, global_head_dim=32)
    embedding = hf.Gemma4TextRotaryEmbedding(config)
    for layer_type, dim in (("full_attention", 32), ("sliding_attention", 16)):
        rope = Rope.from_hf(config, layer_type=layer_type)
        x, ids = torch.randn(2, 50, 4, dim), torch.arange(3, 53)
        expected = hf.apply_rotary_pos_emb(x, *embedding(x, ids[None], layer_type), unsqueeze_dim=2)
        torch.testing.assert_close(rope.rotate(x.transpose(1, 2), ids), expected.transpose(1, 2), atol=1e-5, rtol=0)
        assert repr(Rope.from_hf(config.to_dict(), layer_type=layer_type)) == repr(rope)  # as in config.json


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(0.0), "Linear.factor: expected a finite number above 0. Received: Linear.factor=0.0"),
        (lambda: DynamicNTK(2.0, 0), "DynamicNTK.original_length: expected a whole number of at least 1"),
        (lambda: Yarn(math.inf, 16), "Yarn.factor: expected a finite number"),
        (lambda: Yarn(2.0, 16, beta_fast=1.0, beta_slow=2.0), "expected beta_fast >= beta_slow"),
        (lambda: Yarn(2.0, 16, attention_factor=-1.0), "Yarn.attention_factor"),
        (lambda: LongRope([1.0], [0.0], 32, 2.0), "LongRope.long_factor: expected a finite number above 0"),
        (
            lambda: Rope(8, scaling=LongRope([1.0], [2.0], 32, 2.0)),
            "expected 4 divisors, .* Received: 1 in short_factor",
        ),
        (lambda: Proportional(0.0), "Proportional.share"),
        (lambda: Llama3(8.0, 4.0, 1.0, 8192), "expected high_freq_factor > low_freq_factor"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
