"""Positions and names of queries and keys, however the tokens reach the model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import headwise
from headwise import edits
from headwise.edits import Edit, Where
from headwise.errors import ArgumentError, EditRefused
from tests.edits.test_generate import PROMPT, REAL, SIZES, llama
from tests.versions import since

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])
ENCODER_DECODER = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "decoder_start_token_id": 1, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": 1,
    "forced_eos_token_id": None,
}  # fmt: skip


class Words:
    """A tokenizer whose token 7 is the word w7."""

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"▁w{i}" for i in ids]


def logits(model: Any, edit: Edit, *parts: Tensor, tokens: Any = None, cache: Any = None, **inputs: Any) -> Tensor:
    """Of the parts of a sequence, one pass after another with a cache."""
    cache = transformers.DynamicCache() if cache is None else copy.deepcopy(cache)
    with torch.no_grad(), headwise.edit(model, edit, tokens=tokens):
        return torch.cat([model(part, past_key_values=cache, **inputs).logits for part in parts], 1)


@pytest.mark.parametrize("parts", [[3, 5, 8], [4, 5, 6, 7, 8]], ids=["chunks", "steps"])
@pytest.mark.parametrize(("queries", "keys"), [(slice(5, None), [3, 4]), (7, 6), (range(4, 8), 0)])
def test_a_prompt_in_parts(parts: list[int], queries: Any, keys: Any) -> None:
    model, edit = llama("sdpa"), edits.block("*", queries=queries, keys=keys)
    cut = [IDS[:, a:b] for a, b in zip([0, *parts], parts, strict=False)]
    torch.testing.assert_close(logits(model, edit, *cut), logits(model, edit, IDS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [transformers.LlamaConfig, transformers.MistralConfig])
def test_a_cache_that_was_filled_before(kind: Any) -> None:
    torch.manual_seed(0)
    more = {"sliding_window": 4} if kind is transformers.MistralConfig else {}
    model = transformers.AutoModelForCausalLM.from_config(
        kind(**SIZES, num_key_value_heads=2, **more), attn_implementation="sdpa"
    ).eval()
    edit, cache = edits.block("*", queries=slice(5, None), keys=[4]), transformers.DynamicCache()
    with torch.no_grad():
        model(IDS[:, :5], past_key_values=cache)
    expected = logits(model, edit, IDS)[:, 5:]
    for parts in ([IDS[:, 5:]], [IDS[:, 5:6], IDS[:, 6:7], IDS[:, 7:]]):
        torch.testing.assert_close(logits(model, edit, *parts, cache=cache), expected, rtol=1e-4, atol=1e-4)


def test_the_texts_of_later_turns() -> None:
    model, cache = llama("sdpa"), transformers.DynamicCache()
    with torch.no_grad():
        model(IDS[:, :5], past_key_values=cache)
    by_text = logits(model, edits.block("*", keys="w11"), IDS[:, 5:], tokens=Words(), cache=cache)
    by_number = logits(model, edits.block("*", keys=6), IDS[:, 5:], cache=cache)
    assert torch.equal(by_text, by_number)
    whole = logits(model, edits.block("*", keys="w11", queries=7), IDS[:, :5], IDS[:, 5:], tokens=Words())
    assert torch.equal(whole, logits(model, edits.block("*", keys=6, queries=7), IDS[:, :5], IDS[:, 5:]))


BY_POSITION = [
    edits.block("*", keys=2),
    edits.block("*", queries=slice(3, None), keys=-2),
    edits.block("*", keys="w14"),
]
BY_STEP = [edits.ablate("*", heads=1, steps="prompt"), edits.ablate("*", heads=1, steps=range(1, 3))]


def generated(model: Any, edit: Edit, **kwargs: Any) -> Tensor:
    with torch.no_grad(), headwise.edit(model, edit, tokens=Words()):
        found: Tensor = model.generate(
            PROMPT, attention_mask=REAL, max_new_tokens=4, do_sample=False, pad_token_id=0, **kwargs
        )
    return found


@pytest.mark.parametrize("edit", [*BY_POSITION, *BY_STEP])
def test_generate_with_the_prompt_in_chunks(edit: Edit) -> None:
    since("transformers", "5.0")
    model = llama("sdpa")
    assert torch.equal(generated(model, edit, prefill_chunk_size=2), generated(model, edit))


@pytest.mark.parametrize("edit", BY_POSITION)
def test_beams_with_and_without_a_cache(edit: Edit) -> None:
    since("transformers", "5.0")
    model, more = llama("sdpa"), {"num_return_sequences": 2, "num_beams": 2}
    assert torch.equal(generated(model, edit, **more), generated(model, edit, use_cache=False, **more))


def test_drafts_of_later_tokens() -> None:
    since("transformers", "5.0")
    model, prompt = llama("sdpa"), torch.tensor([[5, 6, 7, 8, 5, 6, 7]])
    edit = edits.block("*", keys=-2)
    more = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}
    with torch.no_grad(), headwise.edit(model, edit):
        plain = model.generate(prompt, **more)
    with torch.no_grad(), headwise.edit(model, edit):
        drafted = model.generate(prompt, prompt_lookup_num_tokens=3, **more)
    assert torch.equal(drafted, plain)
    with (
        pytest.raises(EditRefused, match="reads the prompt and drafts of later tokens together"),
        headwise.edit(model, edits.block("*", keys=0, steps="prompt")),
    ):
        model.generate(prompt, prompt_lookup_num_tokens=3, **more)


def test_where_counts_the_passes_over_a_prompt_as_one_step() -> None:
    model, seen = llama("sdpa"), list[tuple[int, list[int], int]]()

    def keep(out: Tensor, at: Where) -> Tensor:
        seen.append((at.step, at.queries[0].tolist(), int(at.lengths[0])))
        return out

    logits(model, edits.output("layers.0", keep), IDS[:, :3], IDS[:, 3:5], IDS[:, 5:6], IDS[:, 6:7])
    assert seen == [(0, [0, 1, 2], 3), (0, [3, 4], 5), (1, [5], 5), (2, [6], 5)]


def bart() -> Any:
    torch.manual_seed(0)
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**ENCODER_DECODER)).eval()
    for p in model.parameters():
        p.data *= 3
    return model


SOURCE, TARGET = torch.tensor([[20, 21, 22, 23, 24]]), torch.tensor([[1, 30, 31, 32]])


@pytest.mark.parametrize(
    ("site", "text", "number"),
    [
        ("encoder.layers", {"keys": "w22"}, {"keys": 2}),
        ("encoder_attn", {"keys": "w22"}, {"keys": 2}),
        ("encoder_attn", {"queries": "w31", "keys": "w22"}, {"queries": 2, "keys": 2}),
        ("decoder.layers.0.self_attn", {"keys": "w30"}, {"keys": 1}),
    ],
)
def test_the_two_sequences_of_an_encoder_decoder(site: str, text: Any, number: Any) -> None:
    model, given = bart(), {"input_ids": SOURCE, "decoder_input_ids": TARGET}
    names = {"source": Words().convert_ids_to_tokens(SOURCE[0].tolist()), "target": ["a", "w30", "w31", "w32"]}
    with torch.no_grad(), headwise.edit(model, edits.block(f"*{site}*", **number)):
        expected = model(**given).logits
    for tokens in (Words(), names):
        with torch.no_grad(), headwise.edit(model, edits.block(f"*{site}*", **text), tokens=tokens):
            assert torch.equal(model(**given).logits, expected)


def test_the_source_in_generate_and_the_target_that_the_model_makes() -> None:
    model, more = bart(), {"max_new_tokens": 4, "do_sample": False}
    with torch.no_grad(), headwise.edit(model, edits.block("*encoder_attn", keys="w22"), tokens=Words()):
        found = model.generate(SOURCE, **more)
    with torch.no_grad(), headwise.edit(model, edits.block("*encoder_attn", keys=2)):
        assert torch.equal(model.generate(SOURCE, **more), found)
    # labels= are shifted by one inside of the model: the decoder reads 1 30 31 32.
    labels = torch.tensor([[30, 31, 32, 33]])
    with torch.no_grad(), headwise.edit(model, edits.block("*decoder*self_attn", keys="w30"), tokens=Words()):
        found = model(input_ids=SOURCE, labels=labels).logits
    with torch.no_grad(), headwise.edit(model, edits.block("*decoder*self_attn", keys=1)):
        assert torch.equal(model(input_ids=SOURCE, labels=labels).logits, found)
    with (
        pytest.raises(ArgumentError, match=r"tokens that .*decoder.* reads are not known.*\"target\""),
        headwise.edit(model, edits.block("*decoder*self_attn", keys="w22"), tokens={"source": ["w22"] * 5}),
    ):
        model(input_ids=SOURCE, decoder_input_ids=TARGET)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["a", "b"], r"example 0 has 8 tokens, with padding 8\. Received: 2 names"),
        ([["a"] * 8, ["b"] * 8, ["c"] * 8], r"the batch has 2 examples\. Received: tokens of 3"),
    ],
)
def test_names_that_are_not_those_of_the_input(tokens: Any, message: str) -> None:
    with (
        pytest.raises(ArgumentError, match=message),
        headwise.edit(llama("sdpa"), edits.block("*", keys="a"), tokens=tokens) as changed,
    ):
        changed.plan(IDS.repeat(2, 1))


def test_names_with_or_without_padding() -> None:
    model = llama("sdpa")
    names = [["…", "…", "a", "b", "c", "d"], ["p", "q", "r", "s", "t", "u"]]
    real = [names[0][2:], names[1]]
    with torch.no_grad(), headwise.edit(model, edits.block("*", keys=[1], queries=3, examples=0)):
        expected = model(PROMPT, attention_mask=REAL).logits
    for tokens in (names, real):
        with torch.no_grad(), headwise.edit(model, edits.block("*", keys="b", queries="d"), tokens=tokens):
            assert torch.equal(model(PROMPT, attention_mask=REAL).logits, expected)


@pytest.mark.parametrize("text", ["The", "CAFÉ", "didn't", "café didn't"])
def test_texts_as_the_tokenizer_reads_them(text: str) -> None:
    names = ["[CLS]", "the", "cafe", "didn", "'", "t", "open", "[SEP]"]
    places = {"The": [1], "CAFÉ": [2], "didn't": [3, 4, 5], "café didn't": [2, 3, 4, 5]}[text]
    model = llama("sdpa")
    with torch.no_grad(), headwise.edit(model, edits.block("*", keys=text, queries=7), tokens=names):
        found = model(IDS).logits
    with torch.no_grad(), headwise.edit(model, edits.block("*", keys=places, queries=7)):
        assert torch.equal(model(IDS).logits, found)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (edits.block("*", keys=8), r"longest prompt of .* has 8 tokens, numbered 0 … 7\. Received: 8"),
        (edits.block("*", keys=-9), r"numbered 0 … 7\. Received: -9"),
        (edits.block("*", keys=slice(9, 12)), r"Received: slice\(9, 12, None\)"),
        (edits.block("*", keys="w6", queries="w44"), r"'w44' is not among the tokens\. The nearest: "),
        (edits.ablate("*", steps="decode"), r"no pass was among its steps\. Received: steps='decode'"),
    ],
)
def test_what_was_in_no_call_is_an_error_at_the_end(edit: Edit, message: str) -> None:
    model = llama("sdpa")
    with pytest.raises(ArgumentError, match=message), headwise.edit(model, edit, tokens=Words()):
        model(IDS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: edits.block("*", keys=[]),
        lambda: edits.block("*", keys=""),
        lambda: edits.block("*", keys=range(3, 0, -1)),
        lambda: edits.steer("*", keys=0, by=torch.tensor(0.0)),
        lambda: edits.steer("*", keys=0, to=torch.tensor(0.5)),
        lambda: edits.temperature("*", float("inf")),
    ],
)
def test_positions_and_factors_that_make_no_sense(make: Any) -> None:
    with pytest.raises(ArgumentError):
        make()


@pytest.mark.parametrize("heads", [[1.5], "12", [True, False], []])
def test_heads_are_whole_numbers(heads: Any) -> None:
    with (
        pytest.raises(ArgumentError, match=r"heads of .* are numbered 0 … 3"),
        headwise.edit(llama("sdpa"), edits.ablate("*", heads=heads)) as changed,
    ):
        changed.plan(IDS)
