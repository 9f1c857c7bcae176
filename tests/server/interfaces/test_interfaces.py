"""What holds for every task: the example can be answered, a bad row fails alone, heads can be looked at."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from headwise.errors import ArgumentError, HeadwiseError, RequestRefused
from headwise.server.interfaces.answering import Answering
from headwise.server.pool.answering import answer_all, ask_model
from headwise.tasks.columns import DTYPES, Column
from headwise.tasks.text.subwords import Subwords
from headwise.tasks.text.vocabulary import Vocabulary
from tests.server.interfaces.conftest import RUNS, asked

Opened = Callable[[str], Answering[Any]]


def fits(column: Column, value: Any) -> bool:
    """Whether a cell is what the contract says of its column."""
    if column.datatype == "BYTES" and column.shape:
        return value.dtype == object and all(isinstance(each, str) for each in value.flat)
    if column.datatype == "BYTES":
        return isinstance(value, str)
    if not column.shape:
        return isinstance(value, int if column.datatype == "INT64" else float)
    sizes = zip(column.shape, value.shape, strict=True)
    return value.dtype == DTYPES[column.datatype] and all(want in (-1, size) for want, size in sizes)


@pytest.mark.parametrize("name", RUNS)
def test_each_task_answers_its_own_example_in_the_columns_that_it_promises(opened: Opened, name: str) -> None:
    interface = opened(name)
    told = interface.description
    assert told.platform == "headwise_torch"
    assert interface.tokens(interface.read(told.example)) > 0
    (row,) = asked(interface, [told.example])
    columns = {column.name: column for column in told.outputs}
    assert set(row) <= set(columns)
    assert {column.name for column in told.outputs if not column.optional} <= set(row)
    for column, value in row.items():
        assert fits(columns[column], value), column


def test_an_answer_comes_with_the_rows_of_attention_that_are_asked_for(opened: Opened) -> None:
    interface = opened("classify")
    read = interface.read({"text": "a warm, funny film"})
    found = interface.attend(read, [0, -1])
    (answer,) = interface.answer([read])
    assert found["answer"]["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-6)
    seen, _ = interface.task.look_at(read)  # type: ignore[attr-defined]
    count = len(found["tokens"])
    assert (found["rows"], found["tokens"]) == ([0, count - 1], list(seen.tokens[0].labels))
    for layer, name in zip(found["layers"], seen.layers, strict=True):
        assert layer == pytest.approx(seen[name].weights(rows=[0, count - 1])[0].numpy(), abs=1e-6)
    with pytest.raises(ArgumentError, match=f"rows: expected -{count} to {count - 1}, for .* Received: 99"):
        interface.attend(read, [0, 99])
    with pytest.raises(ArgumentError, match=r"rows: expected at most [\d,]+ of them \(1,048,576 weights in one answer"):
        interface.attend(read, [0] * 100_000)


@pytest.mark.parametrize("name", [name for name in RUNS if name not in ("classify", "pairs")])
def test_answers_of_several_passes_have_no_rows(opened: Opened, name: str) -> None:
    interface = opened(name)
    with pytest.raises(ArgumentError, match="not one pass over the tokens"):
        interface.attend(interface.read(interface.description.example or {}), [0])


@pytest.mark.parametrize("name", RUNS)
def test_a_row_that_cannot_be_used_fails_alone(opened: Opened, name: str) -> None:
    interface = opened(name)
    example = interface.description.example
    (alone,) = asked(interface, [example])
    first = interface.description.inputs[0].name
    given = [example, {}, {**example, "other": 1}, {**example, first: 3.5}, example]
    good, missing, unknown, wrong, last = answer_all(interface, given, 4096, never)
    for error in (missing, unknown, wrong):
        assert isinstance(error, RequestRefused)
        assert error.kind == "bad_input"
    assert first in str(wrong)
    for row in (good, last):
        assert not isinstance(row, HeadwiseError)
        for column, value in alone.items():  # type: ignore[union-attr]
            np.testing.assert_array_equal(row[column], value) if isinstance(value, str) else None
            if column not in ("time", "best") and not isinstance(value, str):
                np.testing.assert_allclose(row[column], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in RUNS if name not in ("forecast", "series")])
@pytest.mark.parametrize("text", ["", " \n\t ", "half \ud83d of a pair", None, b"bytes"])
def test_a_text_that_is_none_is_told_by_its_column(opened: Opened, name: str, text: Any) -> None:
    interface = opened(name)
    column = interface.description.inputs[-1].name
    row = {**(interface.description.example or {}), column: text}
    if name == "match" and text is None:
        return  # it may lack one of its two
    with pytest.raises((ArgumentError, TypeError), match=f"^{column}: "):
        interface.read(row)


@pytest.mark.parametrize("name", RUNS)
def test_the_statistics_of_every_head_are_plain_json_with_names_of_tokens(opened: Opened, name: str) -> None:
    interface = opened(name)
    assert interface.description.explains
    told = json.loads(
        json.dumps(interface.explain(interface.read(interface.description.example or {})), allow_nan=False)
    )
    assert {"entropy", "distance", "first_visible", "strongest"} <= {each["key"] for each in told["statistics"]}
    layers = 0
    for shown in told["inputs"]:
        for stack in shown["stacks"]:
            assert all(isinstance(label, str) for label in stack["rows"] + stack["columns"])
            for layer in stack["layers"]:
                layers += 1
                assert len(layer["statistics"]["entropy"]) == layer["heads"]
                assert all(
                    0 <= value <= math.log(len(stack["columns"])) + 1e-3 for value in layer["statistics"]["entropy"]
                )
    assert layers


@pytest.mark.parametrize("name", ["classify", "answer", "translate", "forecast", "match"])
def test_the_page_is_that_of_the_viewer(opened: Opened, name: str) -> None:
    interface = opened(name)
    page = interface.page(interface.read(interface.description.example or {}))
    assert page.startswith("<!doctype html>") or page.lower().startswith("<!doctype html>")
    assert 'id="facts"' in page
    assert "input0-stack0-layer0-group0" in page


@pytest.mark.parametrize("name", [name for name in RUNS if name not in ("forecast", "series")])
def test_a_row_is_tokenized_once(opened: Opened, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interface, counted = opened(name), []  # type: Any, list[str]
    holder = vars(interface.task)
    for vocabulary in {id(each): each for each in holder.values() if isinstance(each, Subwords | Vocabulary)}.values():
        for part in (vocabulary, vars(vocabulary).get("tokenizer") or vocabulary._tokenizer):
            monkeypatch.setattr(part, "_backend", Counting(part._backend, counted))
    row = interface.description.example or {}
    texts = sorted(cell for cell in row.values() if isinstance(cell, str))
    (answer,) = answer_all(interface, [row], 4096, never)
    assert isinstance(answer, dict)
    assert sorted(counted) == texts
    counted.clear()
    assert not isinstance(ask_model(interface.explain, interface, row, 4096, never), RequestRefused)
    assert sorted(counted) == texts
    if interface.description.streams:
        counted.clear()
        pieces = ask_model(interface.stream, interface, row, 4096, never)
        assert not isinstance(pieces, RequestRefused)
        assert "".join(pieces) == answer[interface.description.written]
        assert counted == texts


class Counting:
    """A tokenizer that adds each text that it encodes to a list."""

    def __init__(self, backend: Any, texts: list[str]) -> None:
        self._backend, self._texts = backend, texts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode(self, first: str, second: str | None = None, **options: Any) -> Any:
        self._texts += [first] if second is None else [first, second]
        return self._backend.encode(first, second, **options)

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        self._texts += texts
        return self._backend.encode_batch(texts, **options)

    encode_batch_fast = encode_batch


def never(what: str, error: BaseException) -> None:
    """A log of nothing unexpected."""
    raise AssertionError(what) from error


def test_one_that_fails_for_a_reason_of_its_own_is_found_by_halving(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface, passes, logged = opened("classify"), [], []
    answer = interface.answer

    def fail(asked: Sequence[Any]) -> Any:
        passes.append(len(asked))
        if ("poison",) in [each.texts for each in asked]:
            raise RuntimeError("secret poison")
        return answer(asked)

    monkeypatch.setattr(interface, "answer", fail)
    texts = ("ant", "bee", "poison", "cat", "dog", "elk", "fox", "gnu")
    rows = [{"text": text} for text in texts]
    answers = answer_all(interface, rows, None, lambda what, error: logged.append((what, error)))
    assert [isinstance(answer, RequestRefused) for answer in answers] == [text == "poison" for text in texts]
    assert isinstance(answers[2], RequestRefused)
    assert answers[2].kind == "failed"
    assert "secret" not in str(answers[2])
    assert passes == [8, 4, 2, 2, 1, 1, 4]  # halves, not each by itself
    ((what, error),) = logged
    assert what == "the model failed on a row"
    assert isinstance(error, RuntimeError)


def test_nothing_is_answered_with_nothing(opened: Opened) -> None:
    assert answer_all(opened("classify"), [], 4096, never) == []


def test_the_threads_that_were_asked_for_are_those_of_whoever_calls(opened: Opened) -> None:
    interface, before = opened("classify"), torch.get_num_threads()
    try:
        interface.threads = before + 1
        interface.read({"text": "ant"})
        assert torch.get_num_threads() == before + 1
    finally:
        interface.threads = 0
        torch.set_num_threads(before)
