"""Reads questions, contexts and answers, from a SQuAD file or from columns of a table.

SQuAD 1.1 (Rajpurkar et al. 2016), and 2.0 with questions that have no answer (Rajpurkar et al. 2018). An answer is its
text and the character of the context at which it begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from headwise.errors import ArgumentError, FileError, brief
from headwise.language import Sentence
from headwise.tasks.options.answer import AnswerOptions
from headwise.tasks.rows.labels import read_number
from headwise.tasks.rows.sources import Table, open_table
from headwise.tasks.rows.tables import Data, as_text, as_texts, check_different, take_column

_START = "answer_start"
_LISTED = 5


Answers = list[tuple[str, int | None]]  # texts, and their stated beginnings


class Span(NamedTuple):
    """An answer in a context: context[start : start + len(text)]."""

    text: str
    start: int


def read_questions(source: Any, options: AnswerOptions, *, targets: bool = True) -> Data:
    """Read a table: "question", "context" and, with `targets`, "answers": the answers found in the context, or ().

    A row whose answers do not occur in its context is left out and reported. If an answer occurs in the context, but
    not at its answer_start, the nearest occurrence is used, and this is reported too.

    Args:
        source: a SQuAD file (JSON), or a source for `read_table`, with the columns that the options name. The column of
            answers may also have objects, {"text": [...], "answer_start": [...]}, as in data sets of the hub.

    Raises:
        FileError, ArgumentError, DtypeError: the source cannot be read, or lacks these columns.
    """
    if isinstance(source, Mapping) and isinstance(source.get("data"), list):
        source = source["data"]
    table = open_table(source, (options.question, options.context))
    data = _nested(table) if "paragraphs" in table.columns else _flat(table, options, targets)
    data = data.without(
        {row: why for row, why in enumerate(map(_lacks, *_columns(data, "question", "context"))) if why}
    )
    if not targets:
        columns = {name: cells for name, cells in data.columns.items() if name != "answers"}
        return replace(data, columns=columns)
    return _with_places(data)


def _nested(table: Table) -> Data:
    """Read the questions of a SQuAD file, one row each."""
    rows = list(_questions(table))
    columns = {name: [row[i] for row in rows] for i, name in enumerate(("question", "context", "answers"))}
    return Data(table.name, columns, list(range(len(rows))), fingerprint=table.fingerprint, unit="question")


def _questions(table: Table) -> Iterator[tuple[str, str, Answers]]:
    number = 0
    try:
        for number, paragraphs in enumerate(table.columns["paragraphs"]):  # noqa: B007 (the error says it)
            for paragraph in paragraphs:
                for each in paragraph["qas"]:
                    found = [] if each.get("is_impossible") else each.get("answers", [])
                    answers: Answers = [(str(one["text"]), int(one[_START])) for one in found]
                    yield str(each["question"]), str(paragraph["context"]), answers
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        why = Sentence("no {name}").format(name=cause) if isinstance(cause, KeyError) else str(cause)
        raise FileError(
            "{name} is not in the SQuAD format: data[{number}]: {why}. Expected paragraphs with context and qas, "
            "those with question and answers, and those with text and answer_start",
            name=table.name,
            number=number,
            why=why,
        ) from cause


def _flat(table: Table, options: AnswerOptions, targets: bool) -> Data:
    """Read the questions from columns of a table."""
    names = {"question": options.question, "context": options.context}
    columns: dict[str, list[Any]] = {
        name: as_texts(table, column, take_column(table, column)) for name, column in names.items()
    }
    if targets:
        check_different({**names, "answer": options.answer})
        answers = take_column(table, options.answer)
        begins = options.answer_start or (_START if _START in table.columns else None)
        starts = [None] * len(answers) if begins is None else take_column(table, begins)
        columns["answers"] = [
            _read_answers(cell, start, f"{table.name}, {table.unit} {number}")
            for cell, start, number in zip(answers, starts, table.numbers, strict=True)
        ]
    if not table.numbers:
        raise ArgumentError("{name}: there are no rows in it", name=table.name)
    return Data(table.name, columns, table.numbers, table.notes, table.fingerprint, table.unit)


def _read_answers(cell: Any, start: Any, where: str) -> Answers:
    """Read the answers of one row as (text, stated start or None). An empty cell is a question without an answer."""
    if isinstance(cell, Mapping):
        texts, starts = cell.get("text"), cell.get(_START)
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ArgumentError(
                f"{where}: expected answers with text and {_START}, lists alike. Received: {brief(cell)}"
            )
        return [(as_text(text), _number(at, where)) for text, at in zip(texts, starts, strict=True)]
    text = as_text(cell)
    return [(text, _number(start, where))] if text.strip() else []


def _number(start: Any, where: str) -> int | None:
    written = as_text(start).strip()
    if not written:
        return None
    try:
        return int(read_number(written))
    except ValueError:
        raise ArgumentError(
            f"{where}: expected the character at which the answer begins, a whole number. Received: {brief(written)}"
        ) from None


def _lacks(question: str, context: str) -> str | None:
    return "no question" if not question.strip() else "no context" if not context.strip() else None


def _with_places(data: Data) -> Data:
    """Find the position of each answer in its context. Rows whose answers do not occur there are left out."""
    found: list[tuple[Span, ...]] = []
    wrong: dict[int, str] = {}
    moved = []
    for row, (context, answers) in enumerate(zip(*_columns(data, "context", "answers"), strict=True)):
        spans = [span for text, start in answers if (span := _place(context, text, start)) is not None]
        found.append(tuple(spans))
        if answers and not spans:
            wrong[row] = "the answer is not in its context"
        elif any(start is not None and Span(text, start) not in spans for text, start in answers):
            moved.append(data.numbers[row])
    data = replace(data, columns={**data.columns, "answers": found}).without(wrong)
    if moved:
        shown = ", ".join(map(str, moved[:_LISTED])) + (", …" if len(moved) > _LISTED else "")
        note = Sentence(
            "{count} answer{s} not at answer_start; the nearest place in the context that has the answer is used: "
            "{unit} {rows}"
        ).format(count=len(moved), s="s are" if len(moved) > 1 else " is", unit=Sentence(data.unit), rows=shown)
        data = replace(data, left_out=(*data.left_out, note))
    return data


def _place(context: str, text: str, start: int | None) -> Span | None:
    """Find an answer in its context: at `start`, else the occurrence nearest to `start`; None if there is none."""
    kept = text.strip()
    if not kept:
        return None
    if start is None:
        start = 0
    elif context[start : start + len(text)] == text and start >= 0:
        return Span(kept, start + text.index(kept))
    places = [at for at in range(len(context)) if context.startswith(kept, at)]
    return Span(kept, min(places, key=lambda at: abs(at - start))) if places else None


def _columns(data: Data, *names: str) -> list[list[Any]]:
    return [data.columns[name] for name in names]
