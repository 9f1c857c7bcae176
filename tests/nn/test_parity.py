"""MultiHeadAttention against Hugging Face's attention layers, with copied random weights, loaded by their own names.

Outputs agree within 1e-5, gradients of inputs and weights within 1e-4; with left padding. Steps: test_decoding.py.
DeepSeek is in test_multi_head_latent.py, Perceiver in test_latent.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.bert import BertConfig
from transformers.models.bert import modeling_bert as bert
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gpt2 import GPT2Config
from transformers.models.gpt2 import modeling_gpt2 as gpt2
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama import LlamaConfig
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral import MistralConfig
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.qwen3 import Qwen3Config
from transformers.models.qwen3 import modeling_qwen3 as qwen3
from transformers.models.t5 import T5Config
from transformers.models.t5 import modeling_t5 as t5
from transformers.models.vit import ViTConfig
from transformers.models.vit import modeling_vit as vit

from headwise import masks
from headwise.masks import Mask
from headwise.nn import Cache, MultiHeadAttention
from headwise.nn.positions import Rope, T5Buckets
from tests.versions import rope_options, since

BATCH, LENGTH, DIM = 3, 11, 32
PADDING = torch.arange(LENGTH) >= torch.tensor([0, 2, 5])[:, None]  # True = real; on the left
WINDOW = 4  # Hugging Face counts the token itself


@dataclasses.dataclass
class Case:
    """One row of the table: how to build theirs and ours, and how theirs is called."""

    name: str
    theirs: Callable[[], nn.Module]
    ours: Callable[[], MultiHeadAttention]
    call: Callable[..., Tensor]  # (theirs, x, additive mask [B, 1, Q, K], position ids [B, Q]) -> output
    mask: Mask | None = dataclasses.field(default_factory=masks.causal)
    since: str = "4.57"  # the transformers whose modules are called so


def eager(config: Any) -> Any:
    config._attn_implementation = "eager"
    return config


def tiny(config: type, **options: Any) -> Any:
    """A decoder's config: 4 heads of 8 over 2 key heads."""
    common = {"hidden_size": DIM, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    return eager(config(**{**common, "num_hidden_layers": 2, "max_position_embeddings": 64, **options}))


def rotary(rotation: type, config: Any) -> Callable[..., Tensor]:
    """How decoders with RoPE are called: cos and sin are made outside of the attention layer."""
    made = rotation(config)

    def call(theirs: nn.Module, x: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
        out, _ = theirs(x, position_embeddings=made(x, ids), attention_mask=mask)
        return out

    return call


def call_bert(theirs: nn.Module, x: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
    attended, _ = theirs.self(x, attention_mask=mask)
    return theirs.output.dense(attended)  # their module adds x and normalises after this


def call_t5(theirs: nn.Module, x: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
    return theirs(x, mask=mask)[0]


def call_plainly(theirs: nn.Module, x: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
    return theirs(x, attention_mask=mask)[0]


def ours(**options: Any) -> Callable[[], MultiHeadAttention]:
    return lambda: MultiHeadAttention(DIM, 4, **options)


def ours_with_rope(config: Any, **options: Any) -> Callable[[], MultiHeadAttention]:
    return lambda: MultiHeadAttention(
        DIM, 4, num_kv_heads=2, head_dim=8, positions=Rope.from_hf(config), **{"bias": False, **options}
    )


BERT = eager(BertConfig(hidden_size=DIM, num_attention_heads=4))
GPT2 = eager(GPT2Config(n_embd=DIM, n_head=4))
VIT = eager(ViTConfig(hidden_size=DIM, num_attention_heads=4, qkv_bias=False))
LLAMA = tiny(LlamaConfig, **rope_options(rope_type="default", rope_theta=500.0))
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 = tiny(
    LlamaConfig,
    **rope_options(**LLAMA3_ROPE, high_freq_factor=4.0, original_max_position_embeddings=16),
)
MISTRAL = tiny(MistralConfig, sliding_window=WINDOW)
QWEN3 = tiny(Qwen3Config, rms_norm_eps=1e-6)
GEMMA2 = tiny(
    Gemma2Config,
    sliding_window=WINDOW,
    query_pre_attn_scalar=20,
    attn_logit_softcapping=1.5,
    layer_types=["sliding_attention", "full_attention"],
)
YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}
GPT_OSS = tiny(
    GptOssConfig,
    sliding_window=WINDOW,
    layer_types=["sliding_attention", "full_attention"],
    **rope_options(**YARN, truncate=False, original_max_position_embeddings=16),
)
T5 = {"d_model": DIM, "d_kv": 8, "num_heads": 4, "relative_attention_num_buckets": 8}
T5_ENCODER = eager(T5Config(**T5, relative_attention_max_distance=10))
T5_DECODER = eager(T5Config(**T5, relative_attention_max_distance=10, is_decoder=True))
for_t5 = {"head_dim": 8, "bias": False, "scale": 1.0}


def sliding() -> Mask:
    return masks.window(WINDOW - 1, 0)


DECODERS = [
    Case("GPT-2", lambda: gpt2.GPT2Attention(GPT2, layer_idx=0), ours(), call_plainly),
    Case(
        "Llama: GQA, RoPE",
        lambda: llama.LlamaAttention(LLAMA, 0),
        ours_with_rope(LLAMA),
        rotary(llama.LlamaRotaryEmbedding, LLAMA),
    ),
    Case(
        "Llama 3: its RoPE",
        lambda: llama.LlamaAttention(LLAMA3, 0),
        ours_with_rope(LLAMA3),
        rotary(llama.LlamaRotaryEmbedding, LLAMA3),
    ),
    Case(
        "Mistral: window",
        lambda: mistral.MistralAttention(MISTRAL, 0),
        ours_with_rope(MISTRAL),
        rotary(mistral.MistralRotaryEmbedding, MISTRAL),
        sliding(),
    ),
    Case(
        "Qwen 3: QK-norm",
        lambda: qwen3.Qwen3Attention(QWEN3, 0),
        ours_with_rope(QWEN3, qk_norm="rms"),
        rotary(qwen3.Qwen3RotaryEmbedding, QWEN3),
    ),
    Case(
        "Gemma 2: softcap, scale, window",
        lambda: gemma2.Gemma2Attention(GEMMA2, 0),
        ours_with_rope(GEMMA2, softcap=1.5, scale=20**-0.5),
        rotary(gemma2.Gemma2RotaryEmbedding, GEMMA2),
        sliding(),
    ),
    Case(
        "gpt-oss: sinks, biases, YaRN, window",
        lambda: gpt_oss.GptOssAttention(GPT_OSS, 0),
        ours_with_rope(GPT_OSS, bias=True, sinks=True),
        rotary(gpt_oss.GptOssRotaryEmbedding, GPT_OSS),
        sliding(),
    ),
    Case(
        "T5's decoder: buckets, scale 1",
        lambda: t5.T5Attention(T5_DECODER, has_relative_attention_bias=True, layer_idx=0),
        lambda: ours(positions=T5Buckets(4, 8, 10, bidirectional=False), **for_t5)(),
        call_t5,
        since="5.20",
    ),
]
ENCODERS = [
    Case("BERT", lambda: bert.BertAttention(BERT), ours(), call_bert, None),
    Case(
        "ViT: no QKV bias",
        lambda: vit.ViTAttention(VIT),
        ours(bias=False, output_bias=True),
        call_plainly,
        None,
        since="5.20",
    ),
    Case(
        "T5's encoder: buckets, scale 1",
        lambda: t5.T5Attention(T5_ENCODER, has_relative_attention_bias=True),
        lambda: ours(positions=T5Buckets(4, 8, 10), **for_t5)(),
        call_t5,
        None,
        since="5.20",
    ),
]
names = {"ids": lambda case: case.name}


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left padding"])
@pytest.mark.parametrize("case", DECODERS + ENCODERS, **names)
def test_outputs_and_gradients_are_those_of_hugging_face(case: Case, padded: bool) -> None:
    theirs, mine = pair(case)
    padding = PADDING if padded else None
    x = torch.randn(BATCH, LENGTH, DIM)
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool) if padding is None else padding
    weight = torch.randn(BATCH, LENGTH, DIM) * real[..., None]  # what comes out at padding is nobody's business

    x_theirs, x_mine = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected = case.call(theirs, x_theirs, additive(case.mask, padding), places(padding))
    out = mine(x_mine, mask=case.mask, real=padding)
    torch.testing.assert_close(out[real], expected[real], atol=1e-5, rtol=0)

    (expected * weight).sum().backward()
    (out * weight).sum().backward()
    torch.testing.assert_close(x_mine.grad, x_theirs.grad, atol=1e-4, rtol=0)
    compare_weight_gradients(case, theirs, mine)


@pytest.mark.parametrize("model", ["BERT", "T5", "GPT-2"])
def test_cross_attention_is_that_of_hugging_face(model: str) -> None:
    def call_cross(theirs: nn.Module, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        if model == "T5":
            return theirs(x, mask=mask, key_value_states=memory)[0]
        if model == "BERT":
            attended, _ = theirs.self(x, encoder_hidden_states=memory, attention_mask=mask)
            return theirs.output.dense(attended)
        return theirs(x, encoder_hidden_states=memory, encoder_attention_mask=mask)[0]

    build = {
        "BERT": lambda: bert.BertAttention(BERT, is_cross_attention=True),
        "T5": lambda: t5.T5Attention(T5_DECODER, layer_idx=0),
        "GPT-2": lambda: gpt2.GPT2Attention(GPT2, is_cross_attention=True, layer_idx=0),
    }
    newer = {"BERT": "5.0", "T5": "5.20"}.get(model, "4.57")
    case = Case(model, build[model], ours(**for_t5) if model == "T5" else ours(), call_cross, None, newer)
    theirs, mine = pair(case)
    x, memory = torch.randn(BATCH, 4, DIM, requires_grad=True), torch.randn(BATCH, LENGTH, DIM, requires_grad=True)
    real = PADDING.flip(1)  # a memory is padded on the right
    weight = torch.randn(BATCH, 4, DIM)

    expected = call_cross(theirs, x, memory, additive(None, real)[:, :, -4:])
    out = mine(x, memory, real=real)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)
    theirs_found = torch.autograd.grad((expected * weight).sum(), (x, memory), retain_graph=True)
    found = torch.autograd.grad((out * weight).sum(), (x, memory), retain_graph=True)
    torch.testing.assert_close(found, theirs_found, atol=1e-4, rtol=0)
    (expected * weight).sum().backward()
    (out * weight).sum().backward()
    compare_weight_gradients(case, theirs, mine)
    cache = Cache()
    for i in range(4):  # their memory is projected at every step here; ours once
        step = mine(x[:, i : i + 1], memory, real=real, cache=cache)
        torch.testing.assert_close(step, expected[:, i : i + 1], atol=1e-5, rtol=0)


def pair(case: Case) -> tuple[nn.Module, MultiHeadAttention]:
    """Theirs with random weights, and ours with the same."""
    since("transformers", case.since)
    theirs, mine = case.theirs().eval(), case.ours().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.25)
    mine.load_state_dict(attention_only(case, theirs.state_dict()))
    return theirs, mine


def compare_weight_gradients(case: Case, theirs: nn.Module, mine: MultiHeadAttention) -> None:
    """Their gradients, renamed and joined as their weights are by loading, are ours."""
    found = {name: x.grad for name, x in theirs.named_parameters() if x.grad is not None}
    expected = case.ours()
    expected.load_state_dict(attention_only(case, found))
    for (name, wanted), parameter in zip(expected.named_parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(
            parameter.grad, wanted.detach(), atol=1e-4, rtol=0, msg=lambda m, n=name: f"{n}: {m}"
        )


def attention_only(case: Case, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What is no attention (BERT's norm) left out, and what has no common name said in ours."""
    state = {name: x for name, x in state.items() if "LayerNorm" not in name}
    if "q_attn.weight" in state:  # GPT-2's cross attention: [in, out], queries apart
        state["qkv.weight"] = torch.cat((state.pop("q_attn.weight"), state.pop("c_attn.weight")), 1).T
        state["qkv.bias"] = torch.cat((state.pop("q_attn.bias"), state.pop("c_attn.bias")))
        state["out.weight"] = state.pop("c_proj.weight").T
    return state


def additive(mask: Mask | None, padding: Tensor | None) -> Tensor:
    """[B, 1, Q, K], 0 where a query may attend and the lowest number elsewhere."""
    allowed = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
    if mask is not None:
        allowed &= mask.to_bool(LENGTH)
    if padding is not None:
        allowed &= padding[:, None, None]
    return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)


def places(padding: Tensor | None) -> Tensor:
    """Position ids [B, S]: each row counts its real tokens, as `generate` does."""
    if padding is None:
        return torch.arange(LENGTH).expand(BATCH, -1)
    return (padding.long().cumsum(1) - 1).clamp(min=0)
