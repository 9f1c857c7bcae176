"""MRope against Qwen2-VL and Qwen3-VL, and against RoPE for plain text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headwise.errors import ArgumentError, CheckpointError, DtypeError, ShapeError
from headwise.nn.positions import MRope, Rope

IDS = torch.randint(0, 30, (2, 7, 3), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_it_equals_the_models(family: str) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.5")
    from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2
    from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3

    options: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    options["rope_parameters"] = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
    if family == "qwen2_vl":
        config = transformers.Qwen2VLTextConfig(**options)
        embedding: Any = qwen2.Qwen2VLRotaryEmbedding(config)
    else:
        options["rope_parameters"]["mrope_section"] = [4, 2, 2]
        config = transformers.Qwen3VLTextConfig(**options)
        embedding = qwen3.Qwen3VLTextRotaryEmbedding(config)
    rope = MRope.from_hf(config)
    x = torch.randn(2, 4, 7, 16, generator=torch.Generator().manual_seed(1))
    cos, sin = embedding(x, IDS.permute(2, 0, 1))
    expected, _ = qwen2.apply_rotary_pos_emb(x, x, cos, sin)
    torch.testing.assert_close(rope.rotate(x, IDS), expected, atol=1e-5, rtol=0)
    assert repr(MRope.from_hf(config.to_dict())) == repr(rope)


@pytest.mark.parametrize("alternate", [False, True])
def test_a_text_has_the_positions_of_rope(alternate: bool) -> None:
    x, ids = torch.randn(2, 4, 7, 16), torch.arange(7)
    rotated = MRope(16, (2, 3, 3), alternate=alternate).rotate(x, ids[:, None].expand(7, 3))
    torch.testing.assert_close(rotated, Rope(16).rotate(x, ids))


def test_pairs_and_their_axes() -> None:
    assert MRope(16, (2, 3, 3)).axes.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    assert MRope(16, (4, 2, 2), alternate=True).axes.tolist() == [0, 1, 2, 0, 1, 2, 0, 0]


def test_what_does_not_fit() -> None:
    with pytest.raises(ArgumentError, match=r"sum head_dim / 2 = 8. Received: sections=\(2, 3\)"):
        MRope(16, (2, 3))
    with pytest.raises(CheckpointError, match="expected mrope_section"):
        MRope.from_hf({"head_dim": 16})
    with pytest.raises(ShapeError, match=r"\[7, 3\] or \[2, 7, 3\]"):
        MRope(16, (2, 3, 3)).rotate(torch.randn(2, 4, 7, 16), torch.zeros(7, 2, dtype=torch.long))
    with pytest.raises(DtypeError, match="expected an integer tensor"):
        MRope(16, (2, 3, 3)).rotate(torch.randn(2, 4, 7, 16), torch.zeros(7, 3))
