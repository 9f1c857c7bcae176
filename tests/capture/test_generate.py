"""A generation is one record a layer, whose rows are all positions: whatever the cache, and after a beam search."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import headwise
from headwise.errors import RecordError
from headwise.records import AttentionRecord, Seen
from headwise.records.statistics import STATISTICS
from tests.capture.parity import ENCODER_DECODER, IDS, REAL, SMALL, assert_weights, reachable

GROUPED = {**SMALL, "num_key_value_heads": 2, "eos_token_id": 49, "bos_token_id": 1, "pad_token_id": 0}
BART = {**ENCODER_DECODER, "forced_eos_token_id": None}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 49},
    ),
    "llama": ("LlamaForCausalLM", GROUPED),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        {"vocab_size": 50, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4}
        | {"attention_types": [[["global", "local"], 1]], "bos_token_id": 1, "eos_token_id": 49},
    ),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 4}),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, "head_dim": 16, "sliding_window": 3, "attn_logit_softcapping": 0.2}),
    "gpt-oss": (
        "GptOssForCausalLM",
        {**GROUPED, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 3},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0, "eos_token_id": 49},
    ),
    "bart": ("BartForConditionalGeneration", {**BART, "eos_token_id": 49}),
}
WINDOWS = {"mistral": (4, 4), "gemma2": (3, None), "gpt-oss": (3, None)}


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    """Random models, with weights large enough that they prefer some tokens."""
    made: dict[str, Any] = {}
    torch.manual_seed(5)
    for name, (cls, config) in MODELS.items():
        kind = getattr(transformers, cls)
        model = kind(kind.config_class(**config)).eval()
        if name == "gemma2":  # the sdpa of transformers before 5 leaves out its softcap
            model.set_attn_implementation("eager")
        with torch.no_grad():
            for key, p in model.named_parameters():
                if p.ndim == 2 and "norm" not in key:
                    nn.init.normal_(p, std=0.3)
        model.generation_config.eos_token_id = 49
        model.generation_config.pad_token_id = 0
        made[name] = model
    return made


def attentions(model: Any, how: str = "eager", **inputs: Any) -> Any:
    before = model.config._attn_implementation
    model.set_attn_implementation(how)
    try:
        with torch.no_grad():
            return model(**inputs, output_attentions=True, use_cache=False)
    finally:
        model.set_attn_implementation(before)


def generate(model: Any, ids: Tensor, real: Tensor | None = None, **options: Any) -> tuple[Seen, Any]:
    """Watch a generation; what it returns must be what it returns without."""
    real = torch.ones_like(ids) if real is None else real
    options = {"do_sample": False, "max_new_tokens": 6, **options}
    plain = model.generate(ids, attention_mask=real, **options)
    with headwise.watch(model) as seen:
        out = model.generate(ids, attention_mask=real, **options)
    assert type(out) is type(plain)
    assert torch.equal(sequences(out), sequences(plain))
    assert {site.status for site in seen.coverage()} == {"seen"}
    return seen, out


def sequences(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else out.sequences


def assert_decoder(model: Any, seen: Seen, tokens: Tensor, real: Tensor, pad: int = 0) -> None:
    """Every record is what the eager model gives for the whole sequence at once, its last token left out."""
    read = tokens[:, :-1]
    real = torch.cat([real, torch.ones(len(real), read.shape[1] - real.shape[1], dtype=real.dtype)], 1)
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    ref = attentions(model, input_ids=read, attention_mask=real, position_ids=positions).attentions
    for i, (record, weights) in enumerate(zip(seen, ref, strict=True)):
        assert record.site is not None
        assert (record.site.layer, record.site.kind) == (i, "self")
        rows = real.bool()
        # Rows of padding that are filled with a finite number attend to everything, later keys included.
        assert record.site.causal or not bool(rows.all())
        shown = _rows(record, rows)
        torch.testing.assert_close(shown, weights.transpose(1, 2)[rows], rtol=0, atol=1e-5)


def _rows(record: AttentionRecord, rows: Tensor) -> Tensor:
    return record.weights().transpose(1, 2)[rows]


STATIC = {"cache_implementation": "static"}
CACHES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("gpt2", "llama", "mistral", "gemma2", "gpt-oss")),
    *((name, STATIC) for name in ("gpt2", "llama", "mistral", "gemma2")),
    *(("gpt2", {"use_cache": True, "attn": "eager"}), ("llama", {"attn": "eager", **STATIC})),
]


def _eager_and_static(name: str, options: dict[str, Any]) -> bool:
    return "cache_implementation" in options and (name == "gemma2" or "attn" in options)


# Left padding beside the empty part of a static cache has a test of its own.
CASES = [(*case, padded) for case in CACHES for padded in (False, True) if not (padded and _eager_and_static(*case))]


@pytest.mark.parametrize("length", [2, 7])
@pytest.mark.parametrize(("name", "options", "padded"), CASES, ids=str)
def test_prefill_and_steps_are_one_record(
    models: dict[str, Any], name: str, options: dict[str, Any], length: int, padded: bool
) -> None:
    model, options = models[name], dict(options)
    before = model.config._attn_implementation
    ids, real = IDS[:, -length:], REAL[:, -length:] if padded else torch.ones(2, length, dtype=torch.long)
    if padded and length == 2:
        real = torch.tensor([[1, 1], [0, 1]])
    model.set_attn_implementation(options.pop("attn", before))
    try:
        seen, out = generate(model, ids, real, min_new_tokens=6, **options)
    finally:
        model.set_attn_implementation(before)
    assert len(seen) == 2
    assert_decoder(model, seen, out, real)
    if name in WINDOWS and not padded:
        shown = [record.mask for record in seen]
        assert [str(mask).startswith("window") for mask in shown] == [width is not None for width in WINDOWS[name]]


def test_left_padding_beside_the_empty_part_of_a_static_cache(models: dict[str, Any]) -> None:
    """Eager rows of padding attend to all keys alike, to the empty part of the buffer too, which can then not be cut
    off: the prompt is a record of its own."""
    model = models["gemma2"]
    seen, out = generate(model, IDS, REAL, min_new_tokens=6, cache_implementation="static")
    real = torch.cat([REAL, torch.ones(2, 5, dtype=torch.long)], 1)
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    ref = attentions(model, input_ids=out[:, :-1], attention_mask=real, position_ids=positions).attentions
    prompt, steps = seen.only(1)
    assert [record.site.kind for record in seen if record.site] == ["self"] * len(seen)
    rows = real.bool()
    shown = torch.cat([prompt.weights(), steps.weights()], 2).transpose(1, 2)[rows]
    torch.testing.assert_close(shown, ref[1].transpose(1, 2)[rows], rtol=0, atol=1e-5)


def test_the_cache_is_kept_once(models: dict[str, Any]) -> None:
    """Bytes grow with the number of tokens, not with its square."""
    model, sizes = models["llama"], []
    for count in (20, 40, 80):
        with headwise.watch(model) as seen:
            model.generate(IDS[:1], do_sample=False, max_new_tokens=count, min_new_tokens=count)
        tensors = [x for record in seen for x in (record.q, record.k)]
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
        masks = [getattr(record.mask, "nbytes", 0) for record in seen]
        sizes.append(sum(storages.values()) + sum(masks))
    per_token = 2 * (4 + 2) * 8 * 4  # layers, query and key heads, width, bytes
    assert all(size <= 2.2 * per_token * (count + 7) for size, count in zip(sizes, (20, 40, 80), strict=True))


def test_max_bytes_counts_what_a_generation_keeps(models: dict[str, Any]) -> None:
    with pytest.raises(headwise.errors.RecordError, match="max_bytes"), headwise.watch(models["llama"], max_bytes=9000):
        models["llama"].generate(IDS[:1], do_sample=False, max_new_tokens=40, min_new_tokens=40)
    with headwise.watch(models["llama"], max_bytes=80_000):
        models["llama"].generate(IDS[:1], do_sample=False, max_new_tokens=40, min_new_tokens=40)


def test_two_generations_are_two_records_a_layer(models: dict[str, Any]) -> None:
    model = models["llama"]
    with headwise.watch(model) as seen:
        outs = [
            model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=n, min_new_tokens=n
            )
            for ids, n in ((IDS[:1], 4), (IDS[:1, :3], 6), (IDS[:1], 4))
        ]
    assert len(seen) == 6
    assert len({record.site.call for record in seen.only(0) if record.site}) == 3
    for i, out in enumerate(outs):
        some = Seen(seen.records[2 * i : 2 * i + 2], seen.coverage())
        assert_decoder(model, some, out, torch.ones(1, out.shape[1] - (4, 6, 4)[i], dtype=torch.long))


@pytest.mark.parametrize("chunks", [(7, 1, 1, 1), (3, 2, 5), (1, 1, 1, 1), (4, 4)], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_a_loop_of_ones_own(models: dict[str, Any], name: str, chunks: tuple[int, ...]) -> None:
    """past_key_values by hand: a prompt in pieces, then token by token."""
    model = models[name]
    tokens = torch.cat([IDS, IDS.flip(1)], 1)[:, : sum(chunks) + 1]
    cache = None
    with torch.no_grad(), headwise.watch(model) as seen:
        for part in tokens[:, :-1].split(list(chunks), 1):
            cache = model(input_ids=part, past_key_values=cache, use_cache=True).past_key_values
    assert len(seen) == 2, seen
    assert_decoder(model, seen, tokens, torch.ones(2, 1, dtype=torch.long))


def test_passes_without_a_cache_stay_apart(models: dict[str, Any]) -> None:
    with torch.no_grad(), headwise.watch(models["gpt2"]) as seen:
        for length in (3, 4, 5):
            models["gpt2"](input_ids=IDS[:, :length], use_cache=False)
    assert [record.shape[2] for record in seen.only(0)] == [3, 4, 5]
    assert [record.site.call for record in seen.only(0) if record.site] == [0, 1, 2]


def test_the_same_pass_twice_is_two_records(models: dict[str, Any]) -> None:
    with torch.no_grad(), headwise.watch(models["llama"]) as seen:
        for _ in range(2):
            models["llama"](input_ids=IDS)
    assert len(seen) == 4


def test_a_generation_that_is_kept_is_kept_to_its_end(models: dict[str, Any]) -> None:
    with headwise.watch(models["llama"], every=100) as seen:
        models["llama"].generate(IDS, do_sample=False, max_new_tokens=4, min_new_tokens=4)
    assert [record.shape[2] for record in seen] == [10, 10]


@pytest.mark.parametrize("causal", [False, True])
def test_a_generation_is_causal_if_all_its_steps_are(causal: bool) -> None:
    class Step(nn.Module):
        def forward(self, x: Tensor, start: int) -> None:
            mask = headwise.masks.causal() if causal or not start else None
            headwise.attention(x[:, None, start:], x[:, None], x[:, None], mask=mask)

    x = torch.randn(1, 5, 8)
    with headwise.watch(model := Step()) as seen:
        model(x[:, :3], 0), model(x, 3)
    assert [record.site.causal for record in seen if record.site] == [causal]


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_encoder_decoders(models: dict[str, Any], name: str, padded: bool) -> None:
    model, ids, real = models[name], IDS.flip(1), REAL.flip(1) if padded else torch.ones_like(REAL)
    seen, out = generate(model, ids, real, min_new_tokens=6)
    assert len(seen) == 6
    ref = attentions(model, input_ids=ids, attention_mask=real, decoder_input_ids=out[:, :-1])
    _assert_encoder_decoder(seen, ref)


def _assert_encoder_decoder(seen: Seen, ref: Any, rows: Tensor | None = None) -> None:
    stacks = {"encoder": ref.encoder_attentions, "self": ref.decoder_attentions, "cross": ref.cross_attentions}
    for record in seen:
        assert record.site is not None
        stack = "encoder" if "encoder." in record.site.name and "decoder" not in record.site.name else record.site.kind
        expected = stacks[stack][record.site.layer]
        assert record.site.causal == (stack == "self")
        if rows is None or stack == "encoder":
            assert_weights(record, expected)
        else:
            real = rows[:, : record.shape[2]]
            shown, expected = (x.transpose(1, 2)[real] for x in (record.weights(), expected))
            torch.testing.assert_close(shown, expected, rtol=0, atol=1e-5)


BEAMS: list[dict[str, Any]] = [
    {"num_beams": 3},
    {"num_beams": 3, "num_return_sequences": 2},
    {"num_beams": 4, "num_return_sequences": 4, "return_dict_in_generate": True},
    {"num_beams": 3, "min_new_tokens": 6},
    {"num_beams": 3, "length_penalty": -5.0, "num_return_sequences": 3},
    {"num_beams": 3, "length_penalty": -9.0},
]


# Statistics of a generation whose queries and keys are not kept.


def assert_same_statistics(
    whole: Seen, alone: Seen, rows: Tensor, *, lack: Collection[str] = (), differ: str = ""
) -> None:
    """The records of one run, kept as a whole and as statistics alone, have the same numbers in these rows [B, Q].

    `lack`: the statistics that are not known, beside the pictures; `differ`: the one that depends on the other rows.
    """
    assert [(each.site, each.shape) for each in alone] == [(each.site, each.shape) for each in whole]
    for expected, record in zip(whole, alone, strict=True):
        real = rows[:, : record.shape[2]]
        found = dict(record.statistics())
        assert found.keys() == STATISTICS.keys() - {"pooled_mean", "pooled_max", *lack}
        for name, answer in found.items():
            reference = getattr(expected.statistics(name), name)
            if name == differ:
                continue
            if name == "received":
                torch.testing.assert_close(answer, reference, rtol=0, atol=1e-4)
                continue
            if name == "top":
                assert bool(((answer.keys >= 0) & (answer.keys < record.shape[3])).all())
                of_rows = answer.keys.transpose(1, 2)[real].flatten(0, 1).tolist()
                assert all(len(set(keys)) == len(keys) for keys in of_rows)
                at_keys = expected.weights().gather(3, answer.keys).transpose(1, 2)[real]
                answer, reference = answer.weights, reference.weights
                torch.testing.assert_close(at_keys, answer.transpose(1, 2)[real], rtol=0, atol=1e-5)
            answer, reference = (x.transpose(1, 2)[real] for x in (answer, reference))
            torch.testing.assert_close(answer, reference, rtol=0, atol=2e-5)


def generate_twice_watched(model: Any, ids: Tensor, real: Tensor, **options: Any) -> tuple[Seen, Seen, Tensor]:
    with headwise.watch(model) as whole, headwise.watch(model, statistics="all", keep=False) as alone:
        out = model.generate(ids, attention_mask=real, do_sample=False, max_new_tokens=6, **options)
    return whole, alone, sequences(out)


@pytest.mark.parametrize("length", [2, 7])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in ("gpt2", "llama", "mistral", "gemma2", "gpt-oss")),
        ("llama", STATIC),
        ("mistral", STATIC),
    ],
    ids=str,
)
def test_statistics_of_a_generation(
    models: dict[str, Any], name: str, options: dict[str, Any], padded: bool, length: int
) -> None:
    real = REAL[:, -length:] if padded else torch.ones(2, length, dtype=torch.long)
    if padded and length == 2:
        real = torch.tensor([[1, 1], [0, 1]])
    whole, alone, out = generate_twice_watched(models[name], IDS[:, -length:], real, min_new_tokens=6, **options)
    # Eager rows of padding attend to all keys alike, and when they were computed there were fewer.
    rows, differ = torch.cat([real, torch.ones(2, out.shape[1] - length)], 1).bool(), "received" * (name == "gemma2")
    assert_same_statistics(whole, alone, rows, differ=differ if padded else "")


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_statistics_of_an_encoder_decoder(models: dict[str, Any], name: str) -> None:
    whole, alone, _ = generate_twice_watched(models[name], IDS.flip(1), REAL.flip(1), min_new_tokens=6)
    for number, kind in enumerate(["self", "cross"]):
        some = [Seen([each for each in seen if "decoder." in each.site.name][number::2]) for seen in (whole, alone)]
        assert [record.site.kind for record in some[1] if record.site] == [kind, kind]
        # Each step of cross-attention would count its rows from the last key.
        lack = ["distance", "offset_mass"] if kind == "cross" else []
        assert_same_statistics(*some, torch.ones(2, 9, dtype=torch.bool), lack=lack)
    assert str(Seen(alone.records).summary()) == str(Seen(whole.records).summary())


@pytest.mark.parametrize("chunks", [(7, 1, 1, 1), (3, 2, 5), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_statistics_of_a_loop_of_ones_own(models: dict[str, Any], name: str, chunks: tuple[int, ...]) -> None:
    tokens, cache = torch.cat([IDS, IDS.flip(1)], 1)[:, : sum(chunks)], None
    watches = headwise.watch(models[name]), headwise.watch(models[name], statistics="all", keep=False)
    with torch.no_grad(), watches[0] as whole, watches[1] as alone:
        for part in tokens.split(list(chunks), 1):
            cache = models[name](input_ids=part, past_key_values=cache, use_cache=True).past_key_values
    assert_same_statistics(whole, alone, torch.ones_like(tokens).bool())


@pytest.mark.parametrize("options", BEAMS, ids=str)
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_statistics_of_beams(models: dict[str, Any], name: str, options: dict[str, Any]) -> None:
    with _likely_to_end(models[name]):
        whole, alone, out = generate_twice_watched(models[name], IDS, torch.ones_like(IDS), **options)
    rows = torch.cat([torch.ones(len(out), 7), (out[:, 7:] == 49).cumsum(1) == 0], 1).bool()
    assert_same_statistics(whole, alone, rows, lack=["received"])
    for record in alone:
        ended = ~rows[:, : record.shape[2]]
        assert bool((record.lse.transpose(1, 2)[ended] == -torch.inf).all())
        assert not bool(record.entropy().transpose(1, 2)[ended].any())


def test_what_does_not_follow_from_the_steps_is_said(models: dict[str, Any]) -> None:
    statistics = {"pooled_mean": {"size": 2}, "first_visible": {"first_keys": 2}, "top": {"top": 2}}
    options = {"statistics": statistics}
    with headwise.watch(models["llama"], keep=False, **options) as alone:
        models["llama"].generate(IDS, do_sample=False, max_new_tokens=6, min_new_tokens=6)
    for name, own in list(statistics.items())[:2]:
        with pytest.raises(RecordError, match=f"layers.0.self_attn: {name} of a generation does not follow from its s"):
            alone[0].statistics(name, **own)
    assert dict(alone[0].statistics()).keys() == {"lse", "top"}
    with headwise.watch(models["llama"], **options) as whole:  # then it is computed from the queries and keys
        models["llama"].generate(IDS, do_sample=False, max_new_tokens=6, min_new_tokens=6)
    assert whole[0].pooled(2).shape == (2, 4, 2, 2)
    torch.testing.assert_close(whole[0].pooled(1)[..., 0, 0], whole[0].weights().mean((2, 3)))


def test_bytes_of_the_statistics_grow_with_the_length(models: dict[str, Any]) -> None:
    options: dict[str, Any] = {"statistics": {"entropy": {}, "received": {}, "pooled_max": {"size": 7}}, "keep": False}

    def run(count: int, max_bytes: int) -> int:
        with headwise.watch(models["llama"], **options, max_bytes=max_bytes) as seen:
            models["llama"].generate(IDS[:1], do_sample=False, max_new_tokens=count, min_new_tokens=count)
            kept = reachable(seen._watcher.entries)  # type: ignore[attr-defined]
            assert not any(x.shape[2:] == (7, 7) for x in kept)  # the pictures of the prompts
            return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}.values())

    per_token = 2 * (3 * 4 * 4 + 8)  # layers: three statistics of 4 heads, and the number of a key
    for count in (20, 40, 80):
        assert run(count, 100_000) <= 3 * per_token * (count + 7)
    with pytest.raises(RecordError, match="max_bytes"):
        run(80, per_token * 80)


# Beam search: the beams that were returned, not those that were running.


def assert_beams(model: Any, seen: Seen, out: Any, ids: Tensor, real: Tensor, returned: int) -> None:
    tokens = sequences(out)
    assert len(tokens) == len(ids) * returned
    many_ids, many_real = (x.repeat_interleave(returned, 0) for x in (ids, real))
    decoder = not model.config.is_encoder_decoder
    start = ids.shape[1] if decoder else 1
    ended = torch.zeros(tokens.shape, dtype=torch.bool)
    ended[:, start:] = (tokens[:, start:] == 49).cumsum(1).bool()
    rows = ~ended[:, :-1]  # what came after a beam's end was never read
    if decoder:
        rows = rows & torch.cat([many_real, torch.ones_like(tokens[:, start:-1])], 1).bool()
        attended = torch.cat([many_real, torch.ones_like(tokens[:, start:-1])], 1)
        positions = (attended.cumsum(-1) - 1).clamp(min=0)
        ref = attentions(model, input_ids=tokens[:, :-1], attention_mask=attended, position_ids=positions).attentions
        for record, weights in zip(seen, ref, strict=True):
            q_len = record.shape[2]
            assert record.shape[0] == len(tokens)
            assert bool((record.weights().sum((1, 2))[ended[:, :q_len]] == 0).all())
            real_rows = rows[:, :q_len]
            shown, expected = (x.transpose(1, 2)[real_rows] for x in (record.weights(), weights[:, :, :q_len, :q_len]))
            torch.testing.assert_close(shown, expected, rtol=0, atol=1e-5)
        return
    for record in seen:
        assert record.site is not None
        if "decoder" not in record.site.name:
            continue
        given = {"input_ids": many_ids, "attention_mask": many_real, "decoder_input_ids": tokens[:, : record.shape[2]]}
        ref = attentions(model, **given)
        expected = (ref.decoder_attentions if record.site.kind == "self" else ref.cross_attentions)[record.site.layer]
        real_rows = rows[:, : record.shape[2]]
        shown, expected = (x.transpose(1, 2)[real_rows] for x in (record.weights(), expected))
        torch.testing.assert_close(shown, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", BEAMS, ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "t5", "bart"])
def test_beams(models: dict[str, Any], name: str, options: dict[str, Any], padded: bool) -> None:
    model = models[name]
    encoder = model.config.is_encoder_decoder
    ids = IDS.flip(1) if encoder else IDS
    real = (REAL.flip(1) if encoder else REAL) if padded else torch.ones_like(REAL)
    with _likely_to_end(model):
        seen, out = generate(model, ids, real, **options)
    assert len(seen) == (6 if encoder else 2)
    assert_beams(model, seen, out, ids, real, options.get("num_return_sequences", 1))


@pytest.mark.parametrize("returned", [1, 3])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt-neo"])
def test_beams_of_eager_models(models: dict[str, Any], name: str, padded: bool, returned: int) -> None:
    """Their rows of padding have a mask and a bias of their own, and the local layers of GPT-Neo two masks in one."""
    model, real = models[name], REAL if padded else torch.ones_like(REAL)
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with _likely_to_end(model):
            seen, out = generate(model, IDS, real, num_beams=3, num_return_sequences=returned)
    finally:
        model.set_attn_implementation(before)
    assert len(seen) == 2
    assert_beams(model, seen, out, IDS, real, returned)


def test_some_beams_end_early(models: dict[str, Any]) -> None:
    """So that the test above is about beams that are not the running ones."""
    with _likely_to_end(models["llama"]):
        _, out = generate(models["llama"], IDS, num_beams=4, num_return_sequences=4)
    new = out[:, 7:]
    ended = (new == 49).any(1)
    assert bool(ended.any())
    assert not bool(((new == 49).int().argmax(1)[ended] == new.shape[1] - 1).all())


class _likely_to_end:  # noqa: N801 (used like a function)
    """Inside, the model's end token is about as likely as its most likely one."""

    def __init__(self, model: Any) -> None:
        self._head = model.get_output_embeddings()

    def __enter__(self) -> None:
        def raise_end(_: Any, __: Any, logits: Tensor) -> Tensor:
            logits = logits.clone()
            logits[..., 49] = logits.amax(-1) - 0.5
            return logits

        self._handle = self._head.register_forward_hook(raise_end)

    def __exit__(self, *_: object) -> None:
        self._handle.remove()
