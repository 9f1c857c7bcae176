"""The rows of a table with the answers to them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from headwise.tasks import Answer, Translate
from headwise.tasks.bulk.answered import answer
from headwise.tasks.options.answer import AnswerOptions
from headwise.tasks.options.translate import TranslateOptions
from headwise.tasks.rows.chunks import Reader, look_through
from headwise.tasks.rows.sources import open_table


class Stub:
    """A task that reads as another does, and answers with the lengths of what it read."""

    def __init__(self, kind: Any, options: Any) -> None:
        self.read, self.options = kind.read, options
        self.asked, self.file_columns = partial(kind.asked, self), partial(kind.file_columns, self)

    def cut(self, data: Any) -> dict[int, str]:
        return {}

    def predict(self, data: Any) -> list[dict[str, Any]]:
        return [{"lengths": [len(cell) for cell in row]} for row in zip(*data.columns.values(), strict=True)]


def test_a_nameless_table_of_two_languages_is_read_by_numbers(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_text("two dogs\tzwei Hunde\na cat\teine Katze\n", encoding="utf-8")
    task: Any = Stub(Translate, TranslateOptions())
    assert task.file_columns(str(path)) == ("1", "2")
    with Reader(look_through(path, ("1", "2"), 1)) as reader:
        found = [answer(task, table, table, ("1", "2")).columns for table in (reader.read(0), reader.read(1))]
    assert found == [
        {"1": ["two dogs"], "2": ["zwei Hunde"], "lengths": [[8]]},
        {"1": ["a cat"], "2": ["eine Katze"], "lengths": [[5]]},
    ]
    path.write_text("source\ttarget\na\tb\n", encoding="utf-8")
    assert task.file_columns(str(path)) == ("source", "target")


def test_rows_without_an_answer_keep_their_place_and_names_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("question,context,lengths\n,a b,1\nwho,a b,2\nwho,,3\n", encoding="utf-8")
    task: Any = Stub(Answer, AnswerOptions())
    table = open_table(path)
    found = answer(task, table, table, task.file_columns(str(path)))
    assert found.columns == table.columns | {"predicted lengths": [None, [3, 3], None]}
    assert (found.count, found.left_out, found.unit) == (1, {"no question": [2], "no context": [4]}, "line")


def test_rows_with_a_column_of_objects_keep_all_columns() -> None:
    table = open_table([{"id": 1, "translation": {"en": "a cat", "de": "eine Katze"}}])
    task: Any = Stub(Translate, TranslateOptions(source="en", target="de"))
    found = answer(task, table, table, task.file_columns(table))
    assert found.columns == table.columns | {"lengths": [[5]]}


def test_questions_of_a_squad_file_are_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text(
        '{"data": [{"paragraphs": [{"context": "a b", "qas": [{"question": "x"}, {"question": "yy"}]}]}]}',
        encoding="utf-8",
    )
    task: Any = Stub(Answer, AnswerOptions())
    table = open_table(path)
    found = answer(task, table, table, task.file_columns(str(path)))
    assert found.columns == {"question": ["x", "yy"], "context": ["a b", "a b"], "lengths": [[1, 3], [2, 3]]}
