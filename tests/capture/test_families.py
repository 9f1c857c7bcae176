"""Hugging Face models: sites and kinds, FlexAttention, registered functions, a real checkpoint.

Weights over all families are in `tests/capture/families`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import repeat_kv

import headwise
from headwise import text
from headwise.models import checkpoint
from tests.capture.parity import ENCODER_DECODER, IDS, REAL, SMALL, assert_all_seen, assert_weights, watched
from tests.versions import since

PADDED = {"input_ids": IDS, "attention_mask": REAL}
TWO = {**PADDED, "decoder_input_ids": IDS[:1, :5].expand(2, 5)}

Stack = tuple[str, str, str, bool]  # (path with {}, the reference's field, kind, causal)


@dataclasses.dataclass(frozen=True)
class Family:
    """A model of random weights, what it is given, and the stacks of attention that it has."""

    model: str
    config: dict[str, Any]
    inputs: dict[str, Any]
    stacks: tuple[Stack, ...]
    key_heads: int = 4
    how: tuple[str, ...] = ("sdpa", "eager")


def _one(path: str, causal: bool) -> tuple[Stack, ...]:
    return ((path, "attentions", "self", causal),)


def _bart(prefix: str, part: str) -> tuple[Stack, ...]:
    return (
        (f"{prefix}encoder.{part}.{{}}.self_attn", "encoder_attentions", "self", False),
        (f"{prefix}decoder.{part}.{{}}.self_attn", "decoder_attentions", "self", True),
        (f"{prefix}decoder.{part}.{{}}.encoder_attn", "cross_attentions", "cross", False),
    )


LAYERS = "model.layers.{}.self_attn"
FAMILIES = {
    "bert": Family(
        "BertModel",
        SMALL,
        PADDED,
        _one("encoder.layer.{}.attention.self", False),
        how=("sdpa", "eager", "flex_attention"),
    ),
    "llama": Family(
        "LlamaForCausalLM", {**SMALL, "num_key_value_heads": 2}, {"input_ids": IDS}, _one(LAYERS, True), key_heads=2
    ),
    "llama padded": Family(
        "LlamaForCausalLM",
        {**SMALL, "num_key_value_heads": 2, "head_dim": 16},
        PADDED,
        _one(LAYERS, True),
        key_heads=2,
        how=("sdpa", "flex_attention"),
    ),
    "mistral": Family(
        "MistralForCausalLM",
        {**SMALL, "num_key_value_heads": 2, "sliding_window": 3},
        PADDED,
        _one(LAYERS, True),
        key_heads=2,
        how=("sdpa",),
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        # Scores of the size of the cap, so that it matters.
        {**SMALL, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 3, "attn_logit_softcapping": 0.2}
        | {"initializer_range": 0.5},
        {"input_ids": IDS},
        _one(LAYERS, True),
        key_heads=2,
        how=("eager", "flex_attention"),
    ),
    "t5": Family(
        "T5ForConditionalGeneration",
        {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 4},
        TWO,
        (
            ("encoder.block.{}.layer.0.SelfAttention", "encoder_attentions", "self", False),
            ("decoder.block.{}.layer.0.SelfAttention", "decoder_attentions", "self", True),
            ("decoder.block.{}.layer.1.EncDecAttention", "cross_attentions", "cross", False),
        ),
    ),
    "bart": Family("BartForConditionalGeneration", ENCODER_DECODER, TWO, _bart("model.", "layers")),
}


def build(family: Family, how: str) -> Any:
    cls = getattr(transformers, family.model)
    model = cls(cls.config_class(**family.config)).eval()
    with torch.no_grad():  # weights of 0.02 make attention that looks everywhere alike
        for name, p in model.named_parameters():
            if p.ndim == 2 and "norm" not in name.lower():
                p.copy_(torch.randn_like(p) * 0.5 * min(1.0, (8 / p.shape[-1]) ** 0.5))
            elif "sinks" in name:
                p.copy_(torch.randn_like(p))
    model.set_attn_implementation(how)
    return model


def eager(model: Any, **inputs: Any) -> Any:
    """The model's outputs with its own weights, by its eager attention."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return model(**inputs, output_attentions=True)
    finally:
        model.set_attn_implementation(before)


# transformers asks for what torch has deprecated, torch's compiler too, and uncompiled FlexAttention says that it is.
@pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize(("name", "how"), [(name, how) for name, family in FAMILIES.items() for how in family.how])
def test_the_weights_are_those_of_the_models_own_eager_attention(name: str, how: str) -> None:
    family = FAMILIES[name]
    since("transformers", "5.0" if (name, how) == ("bert", "flex_attention") else "4.57")
    model = build(family, how)
    with torch.compiler.set_stance("force_eager"):  # no C++ compiler is needed for the run without the watch
        seen, _ = watched(model, **family.inputs)
    ref = eager(model, **family.inputs)
    layers = range(2)
    encoders = [stack for stack in family.stacks if not stack[1].startswith(("decoder", "cross"))]
    decoders = [stack for stack in family.stacks if stack[1].startswith(("decoder", "cross"))]
    order = [(stack, i) for stack in encoders for i in layers] + [(stack, i) for i in layers for stack in decoders]
    assert_all_seen(seen, [stack[0].format(i) for stack, i in order])
    real = family.inputs.get("attention_mask")
    for (path, field, kind, causal), i in order:
        record = seen[path.format(i)]
        assert (record.site.kind, record.site.causal, record.site.layer) == (kind, causal, i)
        assert (record.site.heads, record.site.key_heads) == (4, family.key_heads)
        of_padding = None if real is None or not causal or field != "attentions" else real == 0
        assert_weights(record, ref[field][i], empty=of_padding)
    notes = " ".join(seen.coverage().notes)
    assert ("FlexAttention ran uncompiled" in notes) == (how == "flex_attention")


# The real MiniLM.


@pytest.fixture(scope="module")
def minilm() -> dict[str, Tensor]:
    tokenizer = text.Tokenizer.from_pretrained(checkpoint.default_model())
    ids = tokenizer.encode("The animal didn't cross the street because it was too tired.").ids
    real = torch.ones(2, len(ids), dtype=torch.long)
    real[1, 9:] = 0
    return {"input_ids": torch.tensor([ids, ids]) * real, "attention_mask": real}


@pytest.fixture(scope="module")
def minilm_weights(minilm: dict[str, Tensor]) -> tuple[Tensor, ...]:
    model = transformers.BertModel.from_pretrained(checkpoint.default_model(), attn_implementation="eager")
    with torch.no_grad():
        return model(**minilm, output_attentions=True).attentions


def test_minilm_in_headwise(minilm: dict[str, Tensor], minilm_weights: tuple[Tensor, ...]) -> None:
    model = headwise.Bert.from_pretrained(checkpoint.default_model()).eval()
    seen, _ = watched(model, minilm["input_ids"], minilm["attention_mask"].bool())
    assert len(seen) == 6
    assert {site.how for site in seen.coverage()} == {"headwise.attention"}
    for record, weights in zip(seen, minilm_weights, strict=True):
        assert_weights(record, weights)


# Names that somebody registered.


def by_torch(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    k, v = (repeat_kv(x, getattr(module, "num_key_value_groups", 1)) for x in (k, v))
    s = torch.einsum("bhqd,bhkd->bhqk", q, k) * scaling
    s = s if mask is None else s + mask
    return torch.einsum("bhqk,bhkd->bqhd", torch.softmax(s, dim=-1), v), None


class _InNumpy(torch.autograd.Function):
    """Attention that no torch function is called for."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float) -> Tensor:
        a, b, c = (x.detach().double().numpy() for x in (q, k, v))
        b, c = (x.repeat(a.shape[1] // x.shape[1], axis=1) for x in (b, c))
        s = np.where(allowed.numpy(), a @ b.swapaxes(-1, -2) * scale, -np.inf)
        w = np.exp(s - np.nan_to_num(s.max(-1, keepdims=True), neginf=0.0))
        w = w / np.maximum(w.sum(-1, keepdims=True), 1e-30)
        return torch.from_numpy((w @ c).swapaxes(1, 2).astype(np.float32)).contiguous()


def opaque(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scaling: float,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """As flash attention is given its arguments: a mask [B, K] for padding or none, causal by the module's own flag."""
    i, j = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2], torch.arange(k.shape[2])
    allowed = (j <= i) if getattr(module, "is_causal", True) else torch.ones(len(i), len(j), dtype=torch.bool)
    if sliding_window is not None:
        allowed = allowed & (i - j < sliding_window)
    allowed = allowed[None, None]
    if mask is not None:
        allowed = allowed & (mask[:, None, None].bool() if mask.ndim == 2 else mask)
    return _InNumpy.apply(q, k, v, allowed.expand(len(q), 1, -1, -1), scaling), None


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    added: list[str] = []

    def add(name: str, function: Callable[..., Any], mask: Callable[..., Any] | None = None) -> None:
        transformers.AttentionInterface.register(name, function)
        if mask is not None:
            transformers.AttentionMaskInterface.register(name, mask)
        added.append(name)

    yield add
    for name in added:
        transformers.AttentionInterface._global_mapping.pop(name)
        transformers.AttentionMaskInterface._global_mapping.pop(name, None)


def only_padding(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> Tensor | None:
    """As flash attention wants its mask."""
    return None if attention_mask is None or bool(attention_mask.all()) else attention_mask


@pytest.mark.parametrize("name", ["llama padded", "llama", "mistral", "bert"])
@pytest.mark.parametrize("function", [by_torch, opaque])
def test_a_registered_function(name: str, function: Callable[..., Any], register: Callable[..., None]) -> None:
    since("transformers", "5.0" if name == "bert" else "4.57")
    masking = transformers.masking_utils
    register("mine", function, masking.eager_mask if function is by_torch else only_padding)
    family = FAMILIES[name]
    model = build(family, "mine")
    seen, _ = watched(model, **family.inputs)
    assert_all_seen(seen, [family.stacks[0][0].format(i) for i in range(2)])
    assert {site.how for site in seen.coverage()} == {"mine" if function is opaque else "matmul and softmax"}
    ref = eager(model, **family.inputs).attentions
    padding = None if "attention_mask" not in family.inputs else REAL == 0
    for record, weights in zip(seen, ref, strict=True):
        assert_weights(record, weights, empty=padding)
        # A row of padding that is filled with a finite number attends to everything, later keys included.
        assert record.site.causal == family.stacks[0][3] or (function is by_torch and padding is not None)


def test_a_registered_function_that_does_something_else_is_refused(register: Callable[..., None]) -> None:
    def doubled(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        kwargs["scaling"] *= 2
        return opaque(*args, **kwargs)

    register("doubled", doubled, only_padding)
    seen, _ = watched(build(FAMILIES["llama"], "doubled"), input_ids=IDS)
    assert len(seen) == 0
    assert [site.status for site in seen.coverage()] == ["refused"] * 2
    assert all("could not be explained" in site.how for site in seen.coverage())
