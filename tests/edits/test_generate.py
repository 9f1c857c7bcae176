"""Edits while a model generates: positions stay those of the prompt, in every cache and with padding."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import headwise
from headwise import edits
from headwise.edits import Edit, Where
from tests.capture import generations
from tests.edits import oracle
from tests.edits.parity import KINDS
from tests.versions import since

SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
NEW = 5


@pytest.fixture(params=["sdpa", "eager"])
def how(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def llama(how: str, **more: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, max_position_embeddings=64, **more)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation=how).eval()
    for p in model.parameters():
        p.data *= 3
    return model


def t5(how: str) -> Any:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=1, pad_token_id=0,
        eos_token_id=None,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration._from_config(config, attn_implementation=how).eval()


PROMPT = torch.tensor([[0, 0, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])
REAL = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
EDITS: dict[str, Edit] = {
    "block": edits.block("*", queries=slice(2, None), keys=1),
    "block the last of the prompt": edits.block("*", queries=slice(5, None), keys=-1),
    "steer": edits.steer("*", keys=[0, 1], by=8.0),
    "ablate": edits.ablate("layers.1", heads=[0, 3]),
    "window": edits.window("*", 2, first=1),
    "one example": edits.block("*", keys=0, queries=slice(1, None), examples=1),
}


def logits_of_each_step(model: Any, edit: Edit, **more: Any) -> tuple[Tensor, Tensor]:
    """(the sequences, the scores of each step [B, NEW, V])."""
    with torch.no_grad(), headwise.edit(model, edit):
        out = model.generate(
            PROMPT, attention_mask=REAL, max_new_tokens=NEW, do_sample=False, output_scores=True, pad_token_id=0,
            return_dict_in_generate=True, **more,
        )  # fmt: skip
    return out.sequences, torch.stack(out.scores, 1)


@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
@pytest.mark.parametrize("name", EDITS)
def test_generating_is_one_pass_over_all_tokens(how: str, name: str, cache: str) -> None:
    since("transformers", "5.0")
    model, edit = llama(how), EDITS[name]
    more = {"use_cache": False} if cache == "none" else {"cache_implementation": cache}
    sequences, found = logits_of_each_step(model, edit, **more)
    # In one pass the last token of the prompt is another one: it is named by its number.
    if name == "block the last of the prompt":
        edit = edits.block("*", queries=slice(5, None), keys=[3], examples=0)
        both = [edit, edits.block("*", queries=slice(5, None), keys=[5], examples=1)]
    else:
        both = [edit]
    real = torch.cat([REAL, torch.ones(2, NEW, dtype=torch.long)], 1)
    with torch.no_grad(), headwise.edit(model, both):
        logits = model(sequences, attention_mask=real).logits[:, -NEW - 1 : -1]
    with torch.no_grad():
        plain = model(sequences, attention_mask=real).logits[:, -NEW - 1 : -1]
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)
    assert float((plain - logits).abs().max()) > 1e-3


def test_steps(how: str) -> None:
    model = llama(how)
    prompt, decode = (edits.ablate("*", heads=[0, 1, 2], steps=steps) for steps in ("prompt", "decode"))
    first = logits_of_each_step(model, prompt)[1]
    later = logits_of_each_step(model, decode)[1]
    with torch.no_grad():
        plain = model(PROMPT, attention_mask=REAL).logits[:, -1]
    assert float((first[:, 0] - plain).abs().max()) > 1e-3
    torch.testing.assert_close(later[:, 0], plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cache", [True, False])
def test_cross_attention_alone_knows_the_positions_of_its_queries(how: str, cache: bool) -> None:
    since("transformers", "5.0")
    model = t5(how)
    edit = edits.block("*.EncDecAttention", queries=slice(2, None), keys=[0, 1])
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad(), headwise.edit(model, edit):
        out = model.generate(
            ids, max_new_tokens=NEW, do_sample=False, use_cache=cache, output_scores=True, return_dict_in_generate=True
        )
    with torch.no_grad(), headwise.edit(model, edit):
        logits = model(ids, decoder_input_ids=out.sequences[:, :-1]).logits
    torch.testing.assert_close(torch.stack(out.scores, 1), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cache", [True, False])
def test_cross_attention_alone_counts_its_steps(how: str, cache: bool) -> None:
    since("transformers", "5.0")
    model = t5(how)
    for p in model.parameters():
        p.data *= 3
    seen: list[tuple[int, int]] = []

    def keep(out: Tensor, at: Where) -> Tensor:
        seen.append((at.step, int(at.queries[0, -1])))
        return out

    ids = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 8, 9]])
    with torch.no_grad(), headwise.edit(model, edits.output("*block.0*EncDecAttention", keep)):
        model.generate(ids, max_new_tokens=3, do_sample=False, use_cache=cache)
        model.generate(ids, max_new_tokens=3, do_sample=False, use_cache=cache)
    assert seen == [(0, 0), (1, 1), (2, 2)] * 2


# Each family with each cache, and each kind of edit with three families or more.
CACHES, CHANGES = ("dynamic", "static", "none"), ("ablate", "block", "steer", "temperature", "topk", "window")
SOME = [
    (family, cache, CHANGES[(i + j + 3 * half) % len(CHANGES)])
    for i, family in enumerate(("gpt2", "llama", "mistral", "gemma2", "deepseek", "mixtral"))
    for j, cache in enumerate(CACHES)
    for half in range(2)
]


@pytest.mark.parametrize(("family", "cache", "kind"), SOME)
def test_families_generate_as_one_eager_pass_that_is_changed_by_hand(family: str, cache: str, kind: str) -> None:
    since("transformers", "5.0")
    if (family, kind) == ("gemma2", "topk"):
        pytest.skip("its cap makes scores equal, of which any may be the largest")
    eager = generations.model_of(family, "eager")
    edit, by_hand = KINDS[kind].edit, KINDS[kind].by_hand
    more = {"use_cache": False} if cache == "none" else {"cache_implementation": cache}
    for how in ("sdpa", "eager"):
        try:
            model = generations.model_of(family, how)
        except generations.NotRun:
            continue
        sequences, found = logits_of_each_step(model, edit, **more)
        count = found.shape[1]
        real = torch.cat([REAL, torch.ones(2, sequences.shape[1] - 6, dtype=torch.long)], 1)
        places = (real.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad(), oracle.changed(**by_hand([2, 0])) as calls:
            expected = eager(sequences, attention_mask=real, position_ids=places).logits[:, 5 : 5 + count]
        assert calls
        # Behind its end a sequence is filled with another token.
        alive = (sequences[:, 6:] == generations.END).cumsum(1).cumsum(1)[:, :count] <= 1
        torch.testing.assert_close(found[alive], expected[alive], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("more", [{"num_beams": 3}, {"num_return_sequences": 2, "num_beams": 2}])
def test_all_beams_of_an_example_are_one_example(how: str, more: dict[str, int]) -> None:
    since("transformers", "5.0")
    model = llama(how)
    each = more.get("num_return_sequences", 1)

    def generated(edit: Edit | None) -> Tensor:
        with torch.no_grad(), headwise.edit(model, edit) if edit is not None else contextlib.nullcontext():
            found: Tensor = model.generate(
                PROMPT, attention_mask=REAL, max_new_tokens=NEW, do_sample=False, pad_token_id=0, **more
            )
        return found.unflatten(0, (2, each))

    plain, whole = generated(None), generated(edits.ablate("*"))
    found = generated(edits.ablate("*", examples=1))
    assert torch.equal(found[0], plain[0])
    assert torch.equal(found[1], whole[1])
    assert not torch.equal(plain[1], whole[1])
