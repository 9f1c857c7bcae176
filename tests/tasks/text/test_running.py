"""Texts that are written side by side: each is what the model writes for it alone, whatever joins and leaves."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from headwise.errors import ArgumentError
from headwise.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from headwise.models.language_model import CausalConfig, CausalLanguageModel
from headwise.models.packed_decoder import pack_writer
from headwise.tasks.language import After
from headwise.tasks.text.decoding import draw_numbers, write
from headwise.tasks.text.likeliest import likeliest
from headwise.tasks.text.running.batch import RunningBatch
from headwise.tasks.text.running.passes import Continuing, Translating
from headwise.tasks.text.searches import Asked, Choosing, search_for
from headwise.tasks.text.steps import Decoding, Written
from headwise.tasks.text.writing import Stepped, Writing
from headwise.tasks.text.writing import written as written_for

BEGIN, END, V = 0, 1, 40
CPU = torch.device("cpu")
Model = EncoderDecoder | CausalLanguageModel


def decoding(**options: Any) -> Decoding:
    return Decoding(BEGIN, END, (BEGIN,), **options)


def translator(**options: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    shape = {"dim": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2, "ffn_dim": 16, "vocab_size": V}
    return roughened(EncoderDecoder(EncoderDecoderConfig(**shape | options)))


def language_model() -> CausalLanguageModel:
    torch.manual_seed(0)
    return roughened(CausalLanguageModel(CausalConfig(V, 16, 2, 2)))


def roughened(model: Any) -> Any:
    """With biases too, and logits that differ enough to end some texts."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.2
    return model.eval()


def texts(how: Decoding, count: int = 10) -> list[Asked]:
    draw = random.Random(0)
    found = []
    for _ in range(count):
        limit = draw.randint(1, 20)
        draws = draw_numbers(how, [limit])
        source = [draw.randrange(2, V) for _ in range(draw.randint(1, 15))]
        found.append(Asked(source, limit, None if draws is None else draws[0]))
    return found


def alone(model: Model, asked: Asked, how: Decoding) -> Written:
    if isinstance(model, EncoderDecoder):
        return write(model, [asked.source], [asked.limit], how)[0]
    run = Stepped(lambda sources: After(model, sources[0]), how, CPU)
    writing = Writing(run, search_for(how, CPU))
    writing.join([asked])
    return written_for(writing)[0]


def running(model: Model, how: Decoding, most: int = 4) -> RunningBatch[Written]:
    def begin() -> Writing:
        is_translator = isinstance(model, EncoderDecoder)
        run = Translating(model, how.beams, how.begin) if is_translator else Continuing(model)
        return Writing(run, search_for(how, CPU))

    return RunningBatch(begin, lambda asked: asked, lambda asked, written: written, most)


def written(batch: RunningBatch[Written]) -> dict[int, Written | Exception]:
    found = {}
    while len(batch):
        found.update(batch.step())
    return found


CASES = {
    "greedy": (translator, decoding()),
    "beams": (translator, decoding(beams=3)),
    "beams without repeats": (lambda: translator(positions="learned"), decoding(beams=2, no_repeat=2)),
    "sampled": (lambda: translator(positions="sinusoidal"), decoding(sample=True, top_k=9)),
    "copies": (lambda: translator(copies=True), decoding(beams=3)),
    "a continuation": (language_model, decoding(no_repeat=3)),
    "a sampled continuation": (language_model, decoding(sample=True)),
}


def by_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there are no native kernels."""
    monkeypatch.setattr("headwise.tasks.text.running.passes.pack_writer", lambda *_: None)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("seed", "native"), [(0, True), (1, True), (2, False)])
def test_a_text_among_others_is_what_it_is_alone(
    case: str, seed: int, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, how = CASES[case]
    if not native:
        by_modules(monkeypatch)
    model, draw = make(), random.Random(seed)
    asked = texts(how)
    batch, places, found = running(model, how, most=draw.choice([2, 4, 10])), {}, {}
    late = draw.sample(range(len(asked)), len(asked))
    while late or len(batch):
        while late and draw.random() < 0.4:
            i = late.pop()
            places[batch.add(asked[i])] = i
        for ticket, each in batch.step():
            found[places[ticket]] = each
    for i, each in enumerate(asked):
        expected = alone(model, each, how)
        assert found[i].ids == expected.ids
        assert found[i].is_finished == expected.is_finished
        assert found[i].score == pytest.approx(expected.score, rel=1e-4)
    assert len({len(each.ids) for each in found.values()}) > 2  # they left at different steps


def test_many_keys_take_the_native_kernel_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, how = translator(), decoding(beams=2)
    asked = texts(how, 3)
    expected = [alone(model, each, how).ids for each in asked]
    by_modules(monkeypatch)
    monkeypatch.setattr("headwise.tasks.text.running.passes.NATIVE_KEYS", 1)
    batch = running(model, how)
    tickets = [batch.add(each) for each in asked]
    found = written(batch)
    assert [found[ticket].ids for ticket in tickets] == expected


def test_a_cancelled_text_makes_room_and_is_not_answered() -> None:
    model, how = translator(), decoding(beams=2)
    batch = running(model, how, most=1)
    first, second, third = (batch.add(each) for each in texts(how, 3))
    batch.cancel(second)  # which waits
    assert batch.step() == []
    batch.cancel(first)  # which is being written
    batch.cancel(99)
    assert len(batch) == 1
    assert written(batch)[third].ids == alone(model, texts(how, 3)[2], how).ids


def test_only_the_text_that_cannot_be_read_fails() -> None:
    model, how = translator(), decoding()
    batch = running(model, how)
    good = texts(how, 2)
    tickets = [batch.add(each) for each in (good[0], Asked([V + 7], 5), good[1])]
    found = written(batch)
    assert isinstance(found[tickets[1]], ArgumentError)
    assert [found[i].ids for i in tickets[::2]] == [alone(model, each, how).ids for each in good]


@pytest.mark.parametrize("native", [True, False])
def test_numbers_that_are_none_stay_in_their_text(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        by_modules(monkeypatch)
    model, how = translator(source_vocab_size=V), decoding(beams=2)
    with torch.no_grad():
        model.source_embedding.weight[9] = torch.nan
    batch = running(model, how, most=2)
    good = [Asked([3, 4, 5], 12), Asked([6, 7], 15), Asked([8], 9)]
    tickets = [batch.add(each) for each in (good[0], Asked([9] * 6, 12), *good[1:])]  # one takes its place later
    found = written(batch)
    assert "not numbers" in str(found.pop(tickets[1]))
    assert [each.ids for _, each in sorted(found.items())] == [alone(model, each, how).ids for each in good]


def test_an_error_of_a_whole_step_ends_those_that_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, how = translator(), decoding()
    batch = running(model, how, most=1)
    first, second = (batch.add(each) for each in texts(how, 2))
    with monkeypatch.context() as patched:
        patched.setattr(Choosing, "choose", lambda *_: 1 / 0)
        [(ticket, error)] = batch.step()
    assert ticket == first
    assert isinstance(error, ZeroDivisionError)
    assert written(batch)[second].ids == alone(model, texts(how, 2)[1], how).ids


def test_the_kernels_give_each_text_the_same_bits_among_others() -> None:
    """What a text gets from them depends on no other text, nor on when these come and go."""
    model, how = translator(), decoding(beams=3)
    with torch.inference_mode():
        if pack_writer(model) is None:
            pytest.skip("there are no native kernels here")
    asked = texts(how, 6)
    batch = running(model, how, most=4)
    tickets = [batch.add(each) for each in asked]
    found = written(batch)
    for ticket, each in zip(tickets, asked, strict=True):
        single = running(model, how)
        single.add(each)
        assert list(written(single).values()) == [found[ticket]]


def test_what_looks_into_a_model_sees_its_modules() -> None:
    model, seen = translator(), []
    layer: Any = model.decoder.layers[1]

    def writer() -> Any:
        with torch.inference_mode():
            return pack_writer(model)

    hook = layer.mlp.register_forward_hook(lambda *_: seen.append(1))
    assert writer() is None
    batch = running(model, decoding())
    batch.add(texts(decoding(), 1)[0])
    assert written(batch)
    assert seen
    hook.remove()
    before = writer()
    with torch.no_grad():
        layer.mlp.up.weight.mul_(2.0)
    assert before is None or writer() is not before  # packed again


@pytest.mark.parametrize("size", [100, 2048, 5003])
def test_the_likeliest_are_those_of_topk(size: int) -> None:
    logits = torch.randn(7, size, generator=torch.Generator().manual_seed(0))
    values, tokens = likeliest(logits, 8)
    expected = logits.topk(8, -1)
    assert torch.equal(values, expected.values)
    assert torch.equal(tokens, expected.indices)
