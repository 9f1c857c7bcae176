"""Questions and answers, read from SQuAD and from columns; answers that are not in their context."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import ArgumentError, FileError
from headwise.tasks.options.answer import AnswerOptions
from headwise.tasks.rows.squad import Span, read_questions
from headwise.tasks.rows.tables import Data


def read(source: Any, **options: Any) -> Data:
    return read_questions(source, AnswerOptions(**options))


def flat(answer: Any, start: Any = None, context: str = "red, blue and red") -> dict[str, Any]:
    return {"question": "Which?", "context": context, "answer": answer, "answer_start": start}


def nested(*qas: dict[str, Any], context: str = "red, blue and red") -> dict[str, Any]:
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(qas)}]}]}


def test_squad_is_read_from_a_file_and_from_a_dict(tmp_path: Path) -> None:
    answers = [{"text": "red", "answer_start": 14}, {"text": "blue and red", "answer_start": 5}]
    whole = nested({"id": "1", "question": "Which?", "answers": answers})
    (tmp_path / "squad.json").write_text(json.dumps(whole), encoding="utf-8")
    for source in (whole, tmp_path / "squad.json"):
        data = read(source)
        assert data.columns["question"] == ["Which?"]
        assert data.columns["context"] == ["red, blue and red"]
        assert data.columns["answers"] == [(Span("red", 14), Span("blue and red", 5))]


def test_a_question_that_has_no_answer_has_none() -> None:
    guess = {"text": "red", "answer_start": 0}
    whole = nested(
        {"question": "a", "answers": []},
        {"question": "b", "answers": [guess], "is_impossible": True},
        {"question": "c", "answers": [guess], "is_impossible": False},
    )
    assert read(whole).columns["answers"] == [(), (), (Span("red", 0),)]


def test_columns_are_read_with_and_without_where_the_answer_begins() -> None:
    assert read([flat("red", 14)]).columns["answers"] == [(Span("red", 14),)]
    for start in ("14", 14.0, "14.0"):
        assert read([flat("red", start)]).columns["answers"] == [(Span("red", 14),)]
    without = [{name: cell for name, cell in flat("red").items() if name != "answer_start"}]
    assert read(without).columns["answers"] == [(Span("red", 0),)]
    assert read([{**flat("x"), "answers": {"text": ["blue"], "answer_start": [5]}}], answer="answers").columns[
        "answers"
    ] == [(Span("blue", 5),)]


def test_an_answer_that_is_not_in_its_context_is_counted_listed_and_skipped() -> None:
    data = read([flat("red", 0), flat("green", 0), flat("blue", 5), flat("yellow")])
    assert data.columns["answers"] == [(Span("red", 0),), (Span("blue", 5),)]
    assert data.left_out == ("2 rows left out: the answer is not in its context (rows 1, 3)",)


def test_an_answer_that_is_elsewhere_is_taken_from_the_nearest_place_and_said() -> None:
    data = read([flat("red", 11), flat("red", 2), flat("blue", 5)])
    assert data.columns["answers"] == [(Span("red", 14),), (Span("red", 0),), (Span("blue", 5),)]
    assert data.left_out == (
        "2 answers are not at answer_start; the nearest place in the context that has the answer is used: row 0, 1",
    )


def test_spaces_around_an_answer_do_not_belong_to_it() -> None:
    assert read([flat(" blue ", 4)]).columns["answers"] == [(Span("blue", 5),)]


def test_rows_without_a_question_or_a_context_are_left_out() -> None:
    rows = [flat("red", 0), {**flat("red", 0), "question": " "}, flat("", 0, context="")]
    assert read(rows).left_out == ("1 row left out: no question (row 1)", "1 row left out: no context (row 2)")


def test_what_is_not_as_squad_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"not in the SQuAD format: data\[0\]: no 'qas'"):
        read({"data": [{"paragraphs": [{"context": "x"}]}]})
    with pytest.raises(FileError, match=r"no 'answer_start'"):
        read(nested({"question": "a", "answers": [{"text": "red"}]}))


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ArgumentError, match="no column 'reply'"):
        read([flat("red", 0)], answer="reply")
    with pytest.raises(ArgumentError, match="no column 'begin'"):
        read([flat("red", 0)], answer_start="begin")


def test_a_beginning_that_is_no_number_is_refused() -> None:
    with pytest.raises(ArgumentError, match="row 0: expected the character at which the answer begins"):
        read([flat("red", "soon")])


def test_questions_to_predict_need_no_answers() -> None:
    rows = [{"question": "Which?", "context": "red"}]
    assert set(read_questions(rows, AnswerOptions(), targets=False).columns) == {"question", "context"}
