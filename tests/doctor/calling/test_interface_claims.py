"""What names mean, and what modules say of their masks and of causality."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.calling import claims, names
from headwise.doctor.calling.interface import discover

NAMES = {
    "query": "q Q hidden_states x tgt queries",
    "key": "keys",
    "value": "value V",
    "memory": "context encoder_hidden_states key_value_states enc_src encoderOutputs y",
    "mask": "mask attn_mask attention_mask look_ahead_mask attn_bias causal_mask",
    "padding": "key_padding_mask src_pad_mask padding real memory_real key_mask",
    "lengths": "valid_lens lengths",
    "causal": "is_causal use_causal_mask memory_is_causal",
    "cache": "past_key_values layer_past kv_cache",
    "positions": "position_ids freqs_cis cos start_pos position_bias rotary_pos_emb",
    "weights-flag": "need_weights output_attentions return_attn",
    "other": "layer_head_mask query_mask batch_size",
    "unknown": "qwerty a",
}


def test_names() -> None:
    assert {role: [names.role(x) for x in text.split()] for role, text in NAMES.items()} == {
        role: [role] * len(text.split()) for role, text in NAMES.items()
    }
    assert names.role("cache_len") == "lengths"
    assert names.role("cache_len", 0) == names.role("cache_len", annotation="int") == "other"  # of all examples


SENTENCES = {
    "allowed": """
        1 for tokens that are not masked, 0 for tokens that are masked
        mask: bool [B, K], True = may attend
        True = a real token
        0 = pad, 1 = token
        0 where a query must not look
        positions with False are ignored
        non-zero for real frames. Rows without any valid frame come out as zero attention
        True for media tokens that exist""",
    "forbidden": """
        positions set to True are ignored
        positions with True are not allowed to attend
        True for padding elements
        1 where hidden, 0 where visible
        a mask of ones where the future is
        True for elements that do not exist""",
    "additive": """
        float mask, added to the attention scores
        0 to attend, a large negative number elsewhere
        0 for allowed pairs and -100 for pairs from different regions
        None or (B, N) with 0 / -inf, added to the logits of a key""",
    None: """
        one batch is padded to a common size; it tells which pixels belong to an image
        mask of shape [batch, 1, query, key]
        True or False
        1 to attend, 1 to ignore""",
}


@pytest.mark.parametrize("form", SENTENCES)
def test_sentences_about_polarity(form: str | None) -> None:
    for sentence in SENTENCES[form].strip().splitlines():
        assert claims.polarity(sentence) == form, sentence


CHINESE = {
    "allowed": """
        mask: 1 表示有效位置，0 表示 padding（需要遮住）
        mask: True 表示可以看，False 表示不能看
        mask：掩码，0 表示被屏蔽的位置，1 表示保留
        mask 中 1 表示有效位置，0 表示 padding，把 padding 位置填成负无穷
        mask: [batch, seq_len]，1代表真实词，0代表填充
        mask 里非填充位置为 1，0的位置会被 mask 掉""",
    "forbidden": """
        mask：为1的位置会被mask掉
        mask 为 True 的位置被忽略
        mask: 填充位置为1，其余为0
        mask：True表示该位置不参与注意力计算
        掩码里为真的位置需要遮住""",
    "additive": """
        mask: 加到分数上的掩码，0 或 -inf""",
    None: """
        mask: 掩码矩阵，形状 [batch, seq_len]
        mask: 可选的掩码，True 或 False""",
}


@pytest.mark.parametrize("form", CHINESE)
def test_docstrings_in_chinese(form: str | None) -> None:
    for sentence in CHINESE[form].strip().splitlines():
        assert claims.of_mask("mask", "", f'"""{sentence.strip()}"""', sole=True)[1] == form, sentence


def test_where_claims_are_read() -> None:
    text = '''
class A(nn.Module):
    """Attention.

    Args:
        mask: which keys count.
            1 = may attend
        other_mask: True = hidden
    """

    def forward(self, x, mask, pad):  # 0 in pad is padding
        hidden = mask == 0
'''
    assert claims.of_mask("mask", "", text, sole=False) == ("mask: which keys count. 1 = may attend", "allowed")
    assert claims.of_mask("other_mask", "", text, sole=False) == ("other_mask: True = hidden", "forbidden")
    assert claims.of_mask("pad", "", text, sole=False) == ("0 in pad is padding", "allowed")
    assert claims.of_mask("third", "", text, sole=False) == ("", None)
    assert claims.of_mask("key_padding_mask", "", text, sole=False) == ("the name key_padding_mask", "forbidden")
    assert claims.of_mask("non_pad_mask", "", text, sole=False) == ("the name non_pad_mask", "allowed")
    assert claims.of_mask("m", "Annotated[Tensor, 'True = hidden']", "", sole=False)[1] == "forbidden"


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x, x, x)[0]


class Triangle(Plain):
    def forward(self, x: Tensor) -> Tensor:
        hidden = ~torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return self.a(x, x, x, attn_mask=hidden)[0]


class Buffered(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.ones(1, 1, 8, 8).tril())


class Switched(Plain):
    """Causal self-attention for a language model."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal


class GivenFromOutside(Plain):
    """Causal self-attention: the mask is made by the model."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        # the causal part is left out of this one, by mistake
        return self.a(x, x, x, attn_mask=mask)[0]


def named(name: str) -> nn.Module:
    return type(name, (Plain,), {})()


@pytest.mark.parametrize(
    ("module", "claim"),
    [
        *((named(name), f"class {name}") for name in ("CausalSelfAttention", "TinyLanguageModel", "GPT")),
        *((named(name), "") for name in ("Plain", "MaskedLM", "ProteinLM", "SegGPT")),
        (Triangle(), "code tril"),
        (Buffered(), "buffer bias"),
        (Switched(), ""),
        (Switched(causal=True), "causal=True"),
        (GivenFromOutside(), ""),
        (nn.TransformerDecoderLayer(16, 4, 32), ""),
    ],
)
def test_claims_of_causality(module: nn.Module, claim: str) -> None:
    assert discover(module).causal_claim == claim


def test_an_attention_mask_beside_input_ids_is_that_of_a_tokenizer() -> None:
    said = claims.of_mask("attention_mask", "", "", sole=True, others=["input_ids"])
    assert said == ("attention_mask beside input_ids", "allowed")
    assert claims.of_mask("attention_mask", "", "", sole=True, others=["x"]) == ("", None)
    told = claims.of_mask("attention_mask", "", "attention_mask: True = padding", sole=True, others=["input_ids"])
    assert told[1] == "forbidden"
