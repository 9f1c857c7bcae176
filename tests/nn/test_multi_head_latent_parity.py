"""Multi-head latent attention against Hugging Face's DeepSeek-V2 and DeepSeek-V3, with their own random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

from headwise import masks
from headwise.nn.multi_head_latent import MultiHeadLatentAttention
from tests.versions import rope_options, since

SIZES: dict[str, Any] = {
    **{"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "attention_bias": False},
    **{"q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6},
    **{"max_position_embeddings": 1024, "num_hidden_layers": 1, "attn_implementation": "eager"},
}
YARN = {
    **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 64},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707},
}
V2 = (DeepseekV2Config, v2.DeepseekV2Attention, v2.DeepseekV2RotaryEmbedding)
V3 = (DeepseekV3Config, v3.DeepseekV3Attention, v3.DeepseekV3RotaryEmbedding)
CASES = {
    "v2": (V2, {}),
    "v2-lite": (V2, {"q_lora_rank": None}),
    "v2-yarn": (V2, rope_options(**YARN)),
    "v3": (V3, {}),
    "v3-no-q-rank": (V3, {"q_lora_rank": None}),
    "v3-bias": (V3, {"attention_bias": True}),
    "v3-yarn": (V3, rope_options(**YARN)),
    "v3-yarn-two-mscales": (V3, rope_options(**{**YARN, "mscale": 1.0})),
    "v3-yarn-amplitude": (V3, rope_options(**{**YARN, "mscale": None, "mscale_all_dim": None})),
    "v3-half-split": (V3, {"rope_interleave": False}),
}


class Theirs(nn.Module):
    """Hugging Face's attention, called as its decoder does."""

    def __init__(self, name: str) -> None:
        super().__init__()
        (config, attention, rotary), options = CASES[name]
        if name == "v2-yarn":  # before, theirs left out mscale_all_dim
            since("transformers", "5.20")
        self.config = config(**{**SIZES, **options})
        self.attention = attention(self.config, layer_idx=0)
        self.rotary = rotary(self.config)
        for parameter in self.attention.parameters():
            nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 else 0.0, 0.2)

    def forward(self, x: Tensor, allowed: Tensor, ids: Tensor, cache: Any = None) -> tuple[Tensor, Tensor]:
        """Output and weights. allowed: bool [B, 1, Q, K]; ids: [B, Q]."""
        additive = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
        return self.attention(
            x, attention_mask=additive, past_key_values=cache, position_embeddings=self.rotary(x, ids)
        )


def both(name: str, **options: Any) -> tuple[Theirs, MultiHeadLatentAttention]:
    theirs = Theirs(name)
    ours = MultiHeadLatentAttention.from_hf(theirs.config, **options)
    ours.load_state_dict(theirs.attention.state_dict())
    return theirs.eval(), ours.eval()


def causal(q_len: int, k_len: int) -> Tensor:
    return torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)[None, None]


@pytest.mark.parametrize("path", ["expand", "absorb"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_weights_and_gradients(name: str, path: Any) -> None:
    theirs, ours = both(name, path=path)
    x = torch.randn(2, 9, 32, requires_grad=True)
    expected, weights = theirs(x, causal(9, 9), torch.arange(9)[None])
    out, record = ours(x, mask=masks.causal(), record=True)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(record.weights(), weights, atol=1e-5, rtol=0)

    expected.pow(2).sum().backward()
    x_grad, x.grad = x.grad, None
    out.pow(2).sum().backward()
    torch.testing.assert_close(x.grad, x_grad, atol=1e-4, rtol=1e-4)
    # Their gradients under our names, by the same way that the weights came.
    grads = MultiHeadLatentAttention.from_hf(theirs.config)
    grads.load_state_dict({key: p.grad for key, p in theirs.attention.named_parameters()})
    found = {key: parameter.grad for key, parameter in ours.named_parameters()}
    torch.testing.assert_close(found, dict(grads.state_dict()), atol=1e-4, rtol=1e-4)


def test_a_config_as_written_to_config_json_makes_the_same_module() -> None:
    theirs, ours = both("v3-yarn")
    again = MultiHeadLatentAttention.from_hf(theirs.config.to_dict())
    assert repr(again) == repr(ours)
