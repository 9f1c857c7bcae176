"""What names mean, and what modules say of their masks and of causality."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.calling import claims, names
from headwise.doctor.calling.interface import discover


@pytest.mark.parametrize(
    ("name", "role"),
    [
        *(("q", "query"), ("Q", "query"), ("hidden_states", "query"), ("x", "query"), ("tgt", "query")),
        *(("keys", "key"), ("value", "value"), ("V", "value"), ("queries", "query")),
        *(("context", "memory"), ("encoder_hidden_states", "memory"), ("key_value_states", "memory")),
        *(("enc_src", "memory"), ("encoderOutputs", "memory"), ("y", "memory")),
        *(("mask", "mask"), ("attn_mask", "mask"), ("attention_mask", "mask"), ("look_ahead_mask", "mask")),
        *(
            ("key_padding_mask", "padding"),
            ("src_pad_mask", "padding"),
            ("padding", "padding"),
            ("real", "padding"),
            ("memory_real", "padding"),
            ("key_mask", "padding"),
        ),
        *(("valid_lens", "lengths"), ("lengths", "lengths"), ("attn_bias", "mask"), ("causal_mask", "mask")),
        *(("is_causal", "causal"), ("use_causal_mask", "causal"), ("memory_is_causal", "causal")),
        *(("past_key_values", "cache"), ("layer_past", "cache"), ("kv_cache", "cache")),
        *(("position_ids", "positions"), ("freqs_cis", "positions"), ("cos", "positions"), ("start_pos", "positions")),
        *(("position_bias", "positions"), ("rotary_pos_emb", "positions"), ("cache_position", "positions")),
        *(("need_weights", "weights-flag"), ("output_attentions", "weights-flag"), ("return_attn", "weights-flag")),
        *(("layer_head_mask", "other"), ("query_mask", "other"), ("batch_size", "other")),
        *(("qwerty", "unknown"), ("a", "unknown")),
    ],
)
def test_names(name: str, role: str) -> None:
    if name == "cache_position":
        role = names.role(name)  # either word is in it; what matters is that it is no input
        assert role in ("positions", "cache")
        return
    assert names.role(name) == role


def test_only_one_argument_is_the_query() -> None:
    assert names.untangle({"src": "query", "tgt": "query"}) == {"src": "memory", "tgt": "query"}
    assert names.untangle({"x": "query", "k": "key", "v": "value"})["x"] == "query"
    assert names.untangle({"x1": "query", "x2": "memory"}) == {"x1": "query", "x2": "memory"}


@pytest.mark.parametrize(
    ("sentence", "form"),
    [
        ("1 for tokens that are not masked, 0 for tokens that are masked", "allowed"),
        ("1 where not masked", "allowed"),
        ("mask: bool [B, K], True = may attend", "allowed"),
        ("True = a real token", "allowed"),
        ("0 = pad, 1 = token", "allowed"),
        ("0 where a query must not look", "allowed"),
        ("ones where attention is allowed", "allowed"),
        ("a byte tensor with 1 for valid positions", "allowed"),
        ("positions with False are ignored", "allowed"),
        ("positions set to True are ignored", "forbidden"),
        ("positions with True are not allowed to attend", "forbidden"),
        ("True = padding", "forbidden"),
        ("True for padding elements", "forbidden"),
        ("1 where hidden, 0 where visible", "forbidden"),
        ("a mask of ones where the future is", "forbidden"),
        ("float mask, added to the attention scores", "additive"),
        ("0 to attend, a large negative number elsewhere", "additive"),
        ("additive mask, 0 or -inf", "additive"),
        ("0 for allowed pairs and -100 for pairs from different regions", "additive"),
        ("None or (B, N) with 0 / -inf, added to the logits of a key", "additive"),
        (
            "non-zero for real frames. Rows without any valid frame come out as zero attention",
            "allowed",
        ),
        ("non-zero = padding", "forbidden"),
        ("True for media tokens that exist", "allowed"),
        ("True for elements that do not exist", "forbidden"),
        ("one batch is padded to a common size; it tells which pixels belong to an image", None),
        ("an optional mask", None),
        ("mask of shape [batch, 1, query, key]", None),
        ("True or False", None),
        ("1 to attend, 1 to ignore", None),
    ],
)
def test_sentences_about_polarity(sentence: str, form: str | None) -> None:
    assert claims.polarity(sentence) == form


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


class CausalSelfAttention(Plain):
    pass


class Documented(Plain):
    """Causal self-attention for a language model."""


class Commented(Plain):
    def forward(self, x: Tensor) -> Tensor:
        # the causal part is left out of this one, by mistake
        return self.a(x, x, x)[0]


class Triangle(Plain):
    def forward(self, x: Tensor) -> Tensor:
        hidden = ~torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return self.a(x, x, x, attn_mask=hidden)[0]


class Band(Plain):
    def forward(self, x: Tensor) -> Tensor:
        near = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1).triu(-1)
        return self.a(x, x, x, attn_mask=~near)[0]


class Buffered(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.ones(1, 1, 8, 8).tril())


class Switched(Plain):
    """Causal self-attention."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal


class GivenFromOutside(Plain):
    """Causal self-attention: the mask is made by the model."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.a(x, x, x, attn_mask=mask)[0]


class PaddingFromOutside(Plain):
    """Causal self-attention."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.a(x, x, x, key_padding_mask=mask)[0]


@pytest.mark.parametrize(
    ("module", "claim"),
    [
        (Plain(), ""),
        (CausalSelfAttention(), "class CausalSelfAttention"),
        (Documented(), ""),
        (Commented(), ""),
        (Triangle(), "code tril"),
        (Band(), ""),
        (Buffered(), "buffer bias"),
        (Switched(), ""),
        (Switched(causal=True), "causal=True"),
        (GivenFromOutside(), ""),
        (PaddingFromOutside(), ""),
        (nn.TransformerEncoderLayer(16, 4, 32), ""),
        (nn.TransformerDecoderLayer(16, 4, 32), ""),
    ],
)
def test_claims_of_causality(module: nn.Module, claim: str) -> None:
    assert discover(module).causal_claim == claim


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        *((name, f"class {name}") for name in ("TransformerLM", "CachedDecoderLM", "TinyLMHeadModel", "GPT")),
        *((name, "") for name in ("MaskedLM", "BertLM", "PrefixLM", "XLM", "SentenceMLM", "FiLM", "SegGPT")),
    ],
)
def test_claims_of_a_language_model(name: str, claim: str) -> None:
    assert discover(type(name, (Plain,), {})()).causal_claim == claim


TWO = """
Attention. mask: True = may attend. key_padding_mask (B, K): True = padding.
attn_mask (B, 1, Q, K) is added
"""
WRAPPED = """
    forward(x, attention_mask=None): x (B, T, C); attention_mask (B, T, T) bool, True where the query
    (row) may see the key; positions (B, T), 1 is the second.
"""


def test_a_sentence_about_another_argument() -> None:
    others = ["x", "key_padding_mask"]
    assert claims.of_mask("mask", "", TWO, sole=False, others=others)[1] == "allowed"
    assert claims.of_mask("key_padding_mask", "", TWO, sole=False, others=["x", "mask"])[1] == "forbidden"
    assert claims.of_mask("attention_mask", "", WRAPPED, sole=True, others=["x", "positions"])[1] == "allowed"


def test_an_attention_mask_beside_input_ids_is_that_of_a_tokenizer() -> None:
    said = claims.of_mask("attention_mask", "", "", sole=True, others=["input_ids"])
    assert said == ("attention_mask beside input_ids", "allowed")
    assert claims.of_mask("attention_mask", "", "", sole=True, others=["x"]) == ("", None)
    told = claims.of_mask("attention_mask", "", '"""attention_mask: True = padding"""', sole=True, others=["input_ids"])
    assert told[1] == "forbidden"
