"""Every way of generating × every cache × left padding, over model families with different caches and masks.

The record of each layer is compared with the weights of one eager forward pass, in float32, over the sequences that
were returned. A part is a test (test_generate.py), `scripts/generations` runs all of it.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import itertools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import cache_utils

import headwise
from headwise.records import AttentionRecord, Seen
from tests.capture.parity import ENCODER_DECODER, IDS, REAL, SMALL

END = 49
GROUPED = {**SMALL, "num_key_value_heads": 2, "eos_token_id": END, "bos_token_id": 1, "pad_token_id": 0}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
PALIGEMMA = {
    "text_config": {**GROUPED, "model_type": "gemma", "head_dim": 8},
    "vision_config": {**SMALL, "model_type": "siglip_vision_model", "image_size": 4, "patch_size": 2},
    "projection_dim": 32,
}
#: Name -> (class, config): the second of each pair of layers of some is local.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": END},
    ),
    "llama": ("LlamaForCausalLM", GROUPED),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        {"vocab_size": 50, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4}
        | {"attention_types": [[["global", "local"], 1]], "bos_token_id": 1, "eos_token_id": END},
    ),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 4}),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, "head_dim": 16, "sliding_window": 3, "attn_logit_softcapping": 0.2}),
    "gpt-oss": ("GptOssForCausalLM", {**GROUPED, **EXPERTS, "head_dim": 8, "sliding_window": 3}),
    "llama4": (
        "Llama4ForCausalLM",
        {**GROUPED, **EXPERTS, "head_dim": 8, "intermediate_size_mlp": 16, "attention_chunk_size": 4}
        | {"layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0], "moe_layers": []},
    ),
    "mixtral": ("MixtralForCausalLM", {**GROUPED, **EXPERTS}),
    "deepseek": (
        "DeepseekV3ForCausalLM",
        {**GROUPED, "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 8, "qk_rope_head_dim": 4}
        | {"qk_nope_head_dim": 4, "v_head_dim": 6, "first_k_dense_replace": 2},
    ),
    "paligemma": ("PaliGemmaForConditionalGeneration", {**PALIGEMMA, "image_token_id": 48}),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0, "eos_token_id": END},
    ),
    "bart": ("BartForConditionalGeneration", {**ENCODER_DECODER, "forced_eos_token_id": None, "eos_token_id": END}),
}


@functools.cache
def model_of(family: str, implementation: str) -> Any:
    """A random model, with weights large enough that it prefers some tokens."""
    cls, config = FAMILIES[family]
    kind = getattr(transformers, cls)
    made = {key: transformers.AutoConfig.for_model(**value) for key, value in config.items() if key.endswith("_config")}
    torch.manual_seed(5)
    model = kind(kind.config_class(**{**config, **made})).eval()
    try:
        model.set_attn_implementation(implementation)
    except ValueError as error:
        raise NotRun(str(error)) from error
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.ndim == 2 and "norm" not in key:
                nn.init.normal_(p, std=0.3)
    model.generation_config.eos_token_id = END
    model.generation_config.pad_token_id = 0
    return model


@functools.cache
def assistant_of(family: str) -> Any:
    """A model that is often right about the next token of the other, and sometimes not."""
    assistant = copy.deepcopy(model_of(family, "eager"))
    torch.manual_seed(1)
    with torch.no_grad():
        for p in assistant.parameters():
            if p.ndim == 2:
                p.add_(torch.randn_like(p) * 0.1)
    assistant.generation_config.num_assistant_tokens = 3
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    return assistant


CACHES = ("default", "growing", "static", "quantised", "none")
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 1.5, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 3},
    "short-beams": {"num_beams": 3, "length_penalty": -9.0},
    "assisted": {},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "chunks": {"prefill_chunk_size": 3},
}
SINGLE = ("assisted", "lookup")  # these take one example
# What the model computes is not one forward pass: PaliGemma's prefix ends with each piece that is read at once, and
# transformers cuts the padding of an encoder with the chunks of the decoder.
PIECEWISE = {("paligemma", way) for way in (*SINGLE, "chunks")} | {("t5", "chunks"), ("bart", "chunks")}
IMPLEMENTATIONS = ("sdpa", "eager")


@dataclass(frozen=True)
class Case:
    """One generation."""

    family: str
    way: str
    cache: str
    padded: bool
    implementation: str
    length: int = 7  # of the prompts

    @property
    def beams(self) -> bool:
        """Whether several beams are followed."""
        return "num_beams" in WAYS[self.way]

    def __str__(self) -> str:
        side = "padded" if self.padded else "whole"
        return f"{self.family}-{self.implementation}-{self.cache}-{self.way}-{side}"


def cases() -> Iterator[Case]:
    """All of them."""
    for family, implementation, cache, way, padded in itertools.product(
        FAMILIES, IMPLEMENTATIONS, CACHES, WAYS, (False, True)
    ):
        if not (padded and way in SINGLE) and (family, way) not in PIECEWISE:
            yield Case(family, way, cache, padded, implementation)


@dataclass(frozen=True)
class Outcome:
    """What came of a case: "exact", "refused", "wrong", or "not run" where the model itself refuses."""

    case: Case
    status: str
    detail: str = ""


class NotRun(Exception):  # noqa: N818 (no failure)
    """transformers cannot generate in this way."""


def outcome(case: Case) -> Outcome:
    """Watch one generation and compare its records."""
    try:
        seen, out = generate(case)
    except NotRun as error:
        return Outcome(case, "not run", str(error))
    refused = [site for site in seen.coverage() if site.status != "seen"]
    try:
        problem = problems(case, seen, out)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if refused:
        return Outcome(case, "refused", f"{refused[0].name}: {refused[0].how}")
    return Outcome(case, "wrong", problem) if problem else Outcome(case, "exact")


def inputs_of(case: Case) -> dict[str, Tensor]:
    """The prompts: two, or one for what takes only one."""
    encoder = model_of(case.family, case.implementation).config.is_encoder_decoder
    count = 1 if case.way in SINGLE else 2
    ids, real = IDS[:count], REAL[:count] if case.padded else torch.ones_like(IDS)[:count]
    if case.length < ids.shape[1]:  # the second begins with padding
        ids, real = ids[:, -case.length :], real[:, -case.length :].clone()
        real[1:, 0] -= int(case.padded)
    if encoder:
        ids, real = ids.flip(1), real.flip(1)
    if case.way == "lookup":
        ids = torch.cat([ids, ids[:, :5]], 1)
        real = torch.ones_like(ids)
    given = {"input_ids": ids, "attention_mask": real}
    if case.family == "paligemma":
        given["token_type_ids"] = torch.zeros_like(ids)
    return given


def options_of(case: Case, model: Any) -> dict[str, Any]:
    """The arguments of `generate` beside the inputs; those of a cache are made anew each time."""
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 6, **WAYS[case.way]}
    if not case.beams:
        options["min_new_tokens"] = 6
    if case.way == "assisted":
        options["assistant_model"] = assistant_of(case.family)
    if case.cache == "growing":
        cache = cache_utils.DynamicCache()
        options["past_key_values"] = (
            cache_utils.EncoderDecoderCache(cache, cache_utils.DynamicCache())
            if model.config.is_encoder_decoder
            else cache
        )
    elif case.cache == "static":
        options["cache_implementation"] = "static"
    elif case.cache == "quantised":
        options |= {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
    elif case.cache == "none":
        options["use_cache"] = False
    return options


def generate(case: Case) -> tuple[Seen, Any]:
    """Watch a generation; what it returns must be what it returns without."""
    model, given = model_of(case.family, case.implementation), inputs_of(case)
    model.__dict__.pop("_previous_max_cache_length", None)  # of the last static cache
    ends = likely_to_end(model) if case.beams else contextlib.nullcontext()
    with ends, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(3)
        try:
            plain = model.generate(**given, **options_of(case, model))
        except Exception as error:
            raise NotRun(f"{type(error).__name__}: {error}") from error
        torch.manual_seed(3)
        with headwise.watch(model) as seen:
            out = model.generate(**given, **options_of(case, model))
    assert type(out) is type(plain)
    assert torch.equal(out, plain)
    return seen, out


@contextlib.contextmanager
def likely_to_end(model: Any) -> Iterator[None]:
    """Inside, the model's end token is about as likely as its most likely one."""

    def raise_end(_: Any, __: Any, logits: Tensor) -> Tensor:
        logits = logits.clone()
        logits[..., END] = logits.amax(-1) - 0.5
        return logits

    handle = model.get_output_embeddings().register_forward_hook(raise_end)
    try:
        yield
    finally:
        handle.remove()


def problems(case: Case, seen: Seen, out: Tensor) -> str:
    """Why the records are not the weights of the returned sequences; "" if they are."""
    model, given = model_of(case.family, "eager"), inputs_of(case)
    read, count = out[:, :-1], len(out) // len(given["input_ids"])
    given = {name: x.repeat_interleave(count, 0) for name, x in given.items()}
    start = given["input_ids"].shape[1]
    if model.config.is_encoder_decoder:
        with torch.no_grad():
            ref = model(**given, decoder_input_ids=read, output_attentions=True, use_cache=False)
        real = torch.ones_like(read).bool()
        stacks = {"encoder": ref.encoder_attentions, "self": ref.decoder_attentions, "cross": ref.cross_attentions}
        start = 1
    else:
        more = torch.ones_like(read[:, start:])
        mask = torch.cat([given["attention_mask"], more], 1)
        inputs = {"input_ids": read, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
        if "token_type_ids" in given:
            inputs["token_type_ids"] = torch.cat([given["token_type_ids"], more], 1)
            inputs["position_ids"] = inputs["position_ids"] + 1
        with torch.no_grad():
            stacks = {"self": model(**inputs, output_attentions=True, use_cache=False).attentions}
        real = mask.bool()
    # What a beam read after its end was never computed.
    ended = torch.zeros_like(read).bool()
    if case.beams:
        ended[:, start:] = (read[:, start:] == END).cumsum(1).bool()
    expected = sum(map(len, stacks.values()))
    if len(seen) != expected:
        return f"{len(seen)} records of {expected} layers: {[record.shape for record in seen]}"
    worst = ""
    for record in seen:
        worst = worst or _difference(record, stacks, real & ~ended, count)
        if record.site.kind == "self" and not _is_encoder(record):
            received = record.weights().sum((1, 2))
            if bool(received[ended[:, : received.shape[1]]].any()):
                return f"{record.site.name}: what is behind the end of a beam is attended to"
    return worst


def _is_encoder(record: AttentionRecord) -> bool:
    return "encoder" in record.site.name.split(".")


def _difference(record: AttentionRecord, stacks: dict[str, Any], rows: Tensor, count: int) -> str:
    name = record.site.name
    stack = "encoder" if _is_encoder(record) else record.site.kind
    expected = stacks[stack][record.site.layer]
    if stack == "encoder" and len(record.weights()) * count == len(expected):
        expected = expected[::count]
    shown = record.weights()
    if stack != "encoder":
        if shown.shape[2] > expected.shape[2]:
            return f"{name}: {tuple(shown.shape)}, expected {tuple(expected.shape)}"
        longest = int(rows.any(0).nonzero().max()) + 1  # all beams may have ended before the last step
        if shown.shape[2] < longest or len(shown) != len(expected):
            return f"{name}: {tuple(shown.shape)}, expected {tuple(expected.shape)}"
        q_len = shown.shape[2]
        expected = expected[:, :, :q_len, : shown.shape[3]]
        if record.site.kind == "self" and shown.shape[3] != q_len:
            return f"{name}: {tuple(shown.shape)} has other keys than queries"
        chosen = rows[:, :q_len]
        shown, expected = (x.transpose(1, 2)[chosen] for x in (shown, expected))
    if shown.shape != expected.shape:
        return f"{name}: {tuple(shown.shape)}, expected {tuple(expected.shape)}"
    worst = float((shown - expected).abs().max())
    return f"{name}: off by {worst:.2g}" if not worst < 1e-5 else ""


def tell(some: Iterable[Case], outcome: Callable[[Case], Outcome]) -> None:
    """Print all outcomes with something to say of them, and how many there were of each; exit with 1 if one is wrong.

    Words of the command line choose cases.
    """
    transformers.logging.set_verbosity_error()
    counts, reasons = collections.Counter[str](), collections.defaultdict[str, list[str]](list)
    for case in some:
        parts = (case.family, case.way, case.cache, case.implementation, "padded" if case.padded else "whole")
        if set(sys.argv[1:]) <= set(parts):
            found = outcome(case)
            counts[found.status] += 1
            if found.detail:
                reasons[f"{found.status}: {found.detail.splitlines()[0][:200]}"].append(str(case))
    for reason, those in sorted(reasons.items()):
        print(f"{reason}\n    {len(those)}: {', '.join(those[:4])}{', …' * (len(those) > 4)}")
    print(", ".join(f"{count} {status}" for status, count in counts.most_common()))
    sys.exit(1 if counts["wrong"] else 0)


if __name__ == "__main__":
    tell(cases(), outcome)
