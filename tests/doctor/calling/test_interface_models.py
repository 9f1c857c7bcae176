"""Attention of other libraries, each layer constructed alone: how it is called, with no adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from headwise.doctor.calling.interface import discover

transformers = pytest.importorskip("transformers")


def config(name: str, implementation: str, **sizes: Any) -> Any:
    return getattr(transformers, f"{name}Config")(attn_implementation=implementation, **sizes)


def bert(part: str, implementation: str) -> nn.Module:
    from transformers.models.bert import modeling_bert

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    return getattr(modeling_bert, part)(config("Bert", implementation, **sizes))


def gpt2(implementation: str, **options: Any) -> nn.Module:
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    return GPT2Attention(config("GPT2", implementation, n_embd=32, n_head=4, n_positions=64), layer_idx=0, **options)


def llama(implementation: str) -> nn.Module:
    from transformers.models.llama.modeling_llama import LlamaAttention

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    return LlamaAttention(config("Llama", implementation, **sizes), 0)


def vit(implementation: str) -> nn.Module:
    from transformers.models.vit.modeling_vit import ViTAttention

    return ViTAttention(config("ViT", implementation, hidden_size=32, num_attention_heads=4, intermediate_size=64))


def t5(implementation: str, **options: Any) -> nn.Module:
    from transformers.models.t5.modeling_t5 import T5Attention

    return T5Attention(config("T5", implementation, d_model=32, d_kv=8, num_heads=4, d_ff=64), layer_idx=0, **options)


def deepseek(implementation: str) -> nn.Module:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 16}
    widths = {"kv_lora_rank": 16, "qk_rope_head_dim": 4, "v_head_dim": 8, "qk_nope_head_dim": 8}
    return DeepseekV3Attention(config("DeepseekV3", implementation, **sizes, **widths), 0)


LAYERS: list[tuple[Callable[[str], nn.Module], str, str]] = [
    (lambda how: bert("BertSelfAttention", how), "self", "attention_mask"),
    (lambda how: bert("BertLayer", how), "self", "attention_mask"),
    (gpt2, "self", "attention_mask"),
    (lambda how: gpt2(how, is_cross_attention=True), "memory", "encoder_attention_mask"),
    (llama, "self", "attention_mask"),
    (t5, "self", "mask"),
    (deepseek, "self", "attention_mask"),
]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(("make", "takes", "mask"), LAYERS)
def test_layers_of_hugging_face(make: Callable[[str], nn.Module], takes: str, mask: str, implementation: str) -> None:
    found = discover(make(implementation))
    assert (found.takes, found.width, found.heads, found.batch_first) == (takes, 32, 4, True)
    assert found.masks
    assert all(m.parameter == mask and m.works for m in found.masks)
    assert found.masks[0].shape == "B1QK"
    assert found.masks[0].form == ("additive" if implementation == "eager" else "allowed")
    assert found.causal_claim == ""  # the model makes the mask
    inputs = found.inputs(batch=2, length=8)
    assert found.run(inputs).output.shape == (2, 8, 32)
    cells = torch.ones(8, 8 if inputs.key is None else inputs.key.shape[1], dtype=torch.bool).tril()
    weights = found.run(inputs, allowed=cells).weights
    if implementation == "eager" and weights is not None:
        assert weights[:, :, ~cells].abs().max() == 0


def test_an_example_of_the_model_s_own_call() -> None:
    layer = llama("sdpa")
    cos, sin = torch.randn(1, 11, 8), torch.randn(1, 11, 8)
    found = discover(layer, example=((), {"hidden_states": torch.randn(1, 11, 32), "position_embeddings": (cos, sin)}))
    assert found.kv_heads == 2
    assert found.run(found.inputs()).output.shape == (3, 5, 32)
