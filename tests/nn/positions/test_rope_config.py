"""Rope.from_hf: configs of today and of old, and those that are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headwise.errors import CheckpointError
from headwise.nn.positions import DynamicNTK, Linear, Llama3, Rope, Yarn

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 4096}


def test_a_dict_without_any_rope_is_plain_rope() -> None:
    rope = Rope.from_hf(LLAMA)
    assert (rope.head_dim, rope.rotary_dim, rope.base, rope.interleaved, rope.scaling) == (
        16,
        16,
        10_000.0,
        False,
        None,
    )


def test_the_names_of_old_are_read() -> None:
    old = {**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    rope = Rope.from_hf(old)
    assert (rope.base, rope.scaling) == (5e5, Linear(2.0))
    neox = {"hidden_size": 64, "num_attention_heads": 2, "rotary_pct": 0.25, "rotary_emb_base": 2000}
    assert repr(Rope.from_hf(neox)) == "Rope(32, base=2000.0, rotary_dim=8)"
    gptj = {"model_type": "gptj", "n_embd": 64, "n_head": 2, "rotary_dim": 16}
    assert repr(Rope.from_hf(gptj)) == "Rope(32, base=10000.0, interleaved=True, rotary_dim=16)"


def test_each_type_of_layer_by_the_names_of_old() -> None:
    gemma3 = {
        **LLAMA,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"type": "linear", "factor": 8.0},
    }
    modernbert = {**LLAMA, "global_rope_theta": 1.6e5, "local_rope_theta": 1e4}
    for config, base, scaled in ((gemma3, 1e6, Linear(8.0)), (modernbert, 1.6e5, None)):
        whole, local = (Rope.from_hf(config, layer_type=f"{x}_attention") for x in ("full", "sliding"))
        assert (whole.base, whole.scaling, local.base, local.scaling) == (base, scaled, 1e4, None)
        with pytest.raises(CheckpointError, match="expected one of full_attention, sliding_attention"):
            Rope.from_hf(config)


def test_the_original_length_is_found_where_hugging_face_finds_it() -> None:
    dynamic = {**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    assert Rope.from_hf(dynamic).scaling == DynamicNTK(2.0, 4096)
    ignored = {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 1024}
    assert Rope.from_hf({**LLAMA, "rope_scaling": ignored}).scaling == DynamicNTK(2.0, 4096)
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert Rope.from_hf({**LLAMA, "rope_parameters": llama3}).scaling == Llama3(8.0, 1.0, 4.0, 4096)
    own = {**llama3, "original_max_position_embeddings": 1024}
    assert Rope.from_hf({**LLAMA, "rope_parameters": own}).scaling == Llama3(8.0, 1.0, 4.0, 1024)
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 1024}  # factor: 4096 / 1024
    assert Rope.from_hf({**LLAMA, "rope_parameters": yarn}).scaling == Yarn(4.0, 1024)


def test_deepseek_rotates_its_rope_dimensions_interleaved() -> None:
    from transformers import DeepseekV3Config

    rope = Rope.from_hf(DeepseekV3Config(qk_rope_head_dim=32))
    assert (rope.head_dim, rope.interleaved) == (32, True)
    assert not Rope.from_hf(DeepseekV3Config(qk_rope_head_dim=32, rope_interleave=False)).interleaved


def test_what_the_caller_says_counts() -> None:
    rope = Rope.from_hf(LLAMA, head_dim=8, interleaved=True)
    assert (rope.head_dim, rope.interleaved) == (8, True)


def test_a_rope_for_each_type_of_layer_must_be_chosen() -> None:
    from transformers import Gemma3TextConfig

    config = Gemma3TextConfig()
    assert Rope.from_hf(config, layer_type="sliding_attention").base == 10_000.0
    assert Rope.from_hf(config, layer_type="full_attention").base == 1_000_000.0
    with pytest.raises(CheckpointError, match=r"layer_type: .* expected one of .*sliding_attention"):
        Rope.from_hf(config)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "expected short_factor for rope_type 'longrope'"),
        ({"type": "mrope"}, "Received: rope_type='mrope'"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, "Received: also mrope_section"),
        ({"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0}, "Received: also alpha"),
        ({"rope_type": "linear"}, "expected factor for rope_type 'linear'. Received: a config without factor"),
        ({"rope_type": "llama3", "factor": 2.0}, "expected low_freq_factor"),
    ],
)
def test_what_is_not_known_is_refused(parameters: dict, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Rope.from_hf({**LLAMA, "rope_parameters": parameters})


def test_a_config_without_sizes_is_refused() -> None:
    with pytest.raises(CheckpointError, match="head_dim: expected it in the config"):
        Rope.from_hf({"rope_theta": 10_000.0})


@pytest.mark.slow
def test_transformers_is_not_imported() -> None:
    code = (
        "import sys; from headwise.nn.positions import Rope; Rope.from_hf({'head_dim': 8}); "
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
