"""Rows come out as they were written, with the line they are found on; what cannot be read is told in one sentence."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from headwise.errors import ArgumentError, DtypeError, FileError
from headwise.tasks.rows.chunks import Reader, look_through
from headwise.tasks.rows.sources import open_table
from headwise.tasks.rows.tables import Data, as_text, join_turns, read_table
from headwise.tasks.rows.written import write_table

BOTH = {"text": "text", "label": "label"}


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def rows(data: Data) -> list[tuple[Any, ...]]:
    return list(zip(*data.columns.values(), strict=True))


# What is read.


def test_cells_of_a_csv_are_text_as_they_were_written(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nNA,01\nnull,1.0\nNone,N/A\nnan, x \n")
    data = read_table(path, BOTH, texts=("text",))
    assert rows(data) == [("NA", "01"), ("null", "1.0"), ("None", "N/A"), ("nan", " x ")]
    assert data.numbers == [2, 3, 4, 5]
    assert data.unit == "line"
    assert data.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()


def test_bytes_are_texts_where_they_are_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["un été".encode(), b"b"], "label": [b"x", b"y"]}), path)
    data = read_table(path, BOTH, texts=("text",))
    assert (rows(data), data.numbers) == ([("un été", "x"), ("b", "y")], [1, 2])
    parquet.write_table(pyarrow.table({"text": [b"a", b"\xff"]}), path)
    with pytest.raises(ArgumentError, match=r"a\.parquet: column 'text'"):
        read_table(path, {"text": "text"}, texts=("text",))


@pytest.mark.parametrize("name", ["a.parquet", "a.json"])
def test_rows_of_a_file_count_from_1(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_table(path, {"text": ["a", None, "c"]})
    data = read_table(path, {"text": "text"}, texts=("text",))
    assert (data.numbers, data.left_out) == ([1, 3], ("1 row left out: no text (row 2)",))


def test_a_quoted_cell_may_hold_lines_and_the_rows_after_it_keep_their_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\n"one, ""two""\nthree",a\nfour,b\n')
    data = read_table(path, BOTH)
    assert rows(data) == [('one, "two"\nthree', "a"), ("four", "b")]
    assert data.numbers == [2, 4]


def test_lone_quotes_of_a_tsv_are_characters(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"never closed\t0\nsay "hi"\t1\nplain, with a comma\t1\n')
    assert rows(read_table(path, BOTH)) == [('"never closed', "0"), ('say "hi"', "1"), ("plain, with a comma", "1")]


def test_quotes_of_a_tsv_that_a_spreadsheet_wrote_are_taken_off(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"say ""hi"""\t1\nplain\t0\n')
    assert rows(read_table(path, BOTH)) == [('say "hi"', "1"), ("plain", "0")]
    path = write(tmp_path / "b.tsv", 'text\tlabel\n"a\ttab"\t1\nplain\t0\n')
    assert rows(read_table(path, BOTH)) == [("a\ttab", "1"), ("plain", "0")]


def test_columns_asked_for_by_number_are_of_a_file_without_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "a film\t1\nno film\t0\n")
    data = read_table(path, {"text": "1", "label": "2"})
    assert rows(data) == [("a film", "1"), ("no film", "0")]
    assert data.numbers == [1, 2]
    counted = write(tmp_path / "b.csv", "0,1\na film,1\n")  # as a frame without names is written
    assert rows(read_table(counted, {"text": "0", "label": "1"})) == [("a film", "1")]


def test_a_csv_may_be_separated_by_semicolons(tmp_path: Path) -> None:
    assert rows(read_table(write(tmp_path / "a.csv", "text;label\na, b;1\n"), BOTH)) == [("a, b", "1")]


@pytest.mark.parametrize("separator", [";", "|", "\t"])
def test_a_csv_may_have_another_separator(tmp_path: Path, separator: str) -> None:
    path = write(tmp_path / "a.csv", f'"a, text"{separator}label\none, two{separator}1\n')
    assert read_table(path, {"text": "a, text", "label": "label"}).columns == {"text": ["one, two"], "label": ["1"]}


def test_a_byte_order_mark_and_other_line_ends_do_no_harm(tmp_path: Path) -> None:
    data = read_table(write(tmp_path / "a.csv", "\ufefftext,label\r\nü,1\r\n二,2\r\n"), BOTH)
    assert rows(data) == [("ü", "1"), ("二", "2")]
    assert data.numbers == [2, 3]
    lines = write(tmp_path / "a.jsonl", '\ufeff{"text": "ü", "label": 1}\r\n')
    assert rows(read_table(lines, BOTH)) == [("ü", 1)]


def test_json_keeps_the_types_it_has_and_dates_stay_text(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        '{"text": "2016-07-01", "label": 1}\n\n{"text": "b", "label": "01"}\n{"label": {"start": 3}}\n',
    )
    data = read_table(path, BOTH)
    assert rows(data) == [("2016-07-01", 1), ("b", "01"), (None, {"start": 3})]
    assert data.numbers == [1, 3, 4]
    for text in (
        '[{"text": "a", "label": 1}]',
        '{"data": [{"text": "a", "label": 1}]}',
        '{"text": ["a"], "label": [1]}',
    ):
        assert rows(read_table(write(tmp_path / "a.json", text), BOTH)) == [("a", 1)]


def test_a_text_file_is_a_column_of_lines(tmp_path: Path) -> None:
    data = read_table(write(tmp_path / "a.txt", "one\n\ntwo\n"), {"text": "text"}, texts=("text",))
    assert data.columns == {"text": ["one", "two"]}
    assert data.left_out == ("1 row left out: no text (line 2)",)


def test_parquet_and_a_frame_and_a_dataset_and_dicts_give_the_same(tmp_path: Path) -> None:
    import datasets
    import pandas

    columns = {"text": ["a", "b"], "label": [1, 2]}
    frame = pandas.DataFrame(columns, index=[7, 8])
    frame.to_parquet(tmp_path / "a.parquet")
    listed = [{"text": "a", "label": 1}, {"text": "b", "label": 2}]
    found = [read_table(each, BOTH) for each in (frame, columns, listed, datasets.Dataset.from_dict(columns))]
    assert [each.columns for each in found] == [columns] * 4
    assert {each.fingerprint for each in found} == {found[0].fingerprint}
    assert found[0].fingerprint != read_table({"text": ["a", "b"], "label": [1, 3]}, BOTH).fingerprint
    stored = read_table(str(tmp_path / "a.parquet"), BOTH)
    assert (stored.columns, stored.numbers, stored.unit) == (columns, [1, 2], "row")


def test_no_column_takes_the_place_of_another_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_arrays([["a"], ["b"]], names=["text", "text"]), path)
    frame = pandas.DataFrame([["a", "b"]], columns=["text", "text"])
    for source in (frame, path, write(tmp_path / "a.csv", "text,text\na,b\n")):
        table = open_table(source)
        assert table.columns == {"text": ["a"], "text.2": ["b"]}
        assert table.notes == ("column 'text' is there more than once: the later one is called 'text.2'",)
    with Reader(look_through(path, ("text",), 1)) as reader:
        (table,) = (reader.read(0),)
        assert table.columns == {name: cells.to_pylist() for name, cells in table.arrow.items()}
        assert table.columns == {"text": ["a"], "text.2": ["b"]}
    assert open_table({1: ["a"], "1": ["b"]}).columns == {"1": ["a"], "1.2": ["b"]}
    assert open_table([{1: "a", "1": "b"}]).columns == {"1": ["a"], "1.2": ["b"]}
    with pytest.raises(FileError, match=r"line 1: .* different names in an object\. Received: ..text., .text."):
        open_table(write(tmp_path / "a.jsonl", '{"text": "a", "text": "b"}\n'))


def test_classes_of_a_dataset_are_their_names() -> None:
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features=features)
    assert read_table(data, BOTH).columns["label"] == ["yes", "no", None]


def test_data_that_was_read_is_given_back() -> None:
    data = read_table({"text": ["a"]}, {"text": "text"})
    assert read_table(data, BOTH) is data


def test_a_list_is_no_text() -> None:
    data = read_table([{"text": ["a", "b"]}, {"text": "a"}, {"text": {"a": 1}}], {"text": "text"}, texts=["text"])
    assert data.columns["text"] == ["a"]
    assert data.left_out == (
        "1 row left out: a list in place of the text (row 0)",
        "1 row left out: an object in place of the text (row 2)",
    )


def test_an_entry_of_objects_is_a_column(tmp_path: Path) -> None:
    rows = [{"id": 1, "translation": {"en": "a dog", "de": "ein Hund"}}, {"id": 2, "translation": None}]
    write_table(tmp_path / "a.jsonl", {name: [row[name] for row in rows] for name in ("id", "translation")})
    write_table(tmp_path / "a.parquet", {name: [row[name] for row in rows] for name in ("id", "translation")})
    for source in (rows, tmp_path / "a.jsonl", tmp_path / "a.parquet"):
        for names in ({"source": "en", "target": "de"}, {"source": "translation.en", "target": "translation.de"}):
            assert read_table(source, names).columns == {"source": ["a dog", None], "target": ["ein Hund", None]}
    with pytest.raises(ArgumentError, match=r"'en'\. The columns are: 'a', 'b', 'a\.en', 'b\.en'"):
        read_table([{"a": {"en": "x"}, "b": {"en": "y"}}], {"text": "en"})


def test_a_list_of_turns_is_a_dialogue() -> None:
    turns = ["hi", "how are\nyou?"]
    as_objects = [{"role": "user", "content": turns[0]}, {"role": "assistant", "content": turns[1]}]
    as_values = [{"from": "human", "value": turns[0]}, {"from": "gpt", "value": turns[1]}]
    for cell in (turns, tuple(turns), numpy.array(turns, object), as_objects, as_values):
        assert join_turns(cell) == "hi\nhow are you?"
    for cell in ("a\nb", None, [], ["a", None], [{"role": "user", "content": [{"type": "image"}]}]):
        assert join_turns(cell) is cell


def test_numbers_become_text_where_text_is_expected() -> None:
    assert [as_text(cell) for cell in (3, 3.0, 2.5, True, None, float("nan"), "3.0")] == [
        *("3", "3", "2.5", "True", "", "", "3.0")
    ]


def test_the_hub_is_asked_for_name_config_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub

    asked: list[tuple[Any, ...]] = []

    def load(name: str, config: str | None = None, *, split: str) -> datasets.Dataset:
        asked.append((name, config, split))
        if config is None and name == "glue/sst2":
            raise datasets.exceptions.DatasetNotFoundError("no glue/sst2")
        return datasets.Dataset.from_dict({"text": ["a"]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)
    for name in ("imdb", "stanfordnlp/imdb:test", "nyu-mll/glue/sst2:validation", "glue/sst2"):
        assert read_table(name, {"text": "text"}).name == name
    assert asked == [
        ("imdb", None, "train"),
        ("stanfordnlp/imdb", None, "test"),
        ("nyu-mll/glue", "sst2", "validation"),
        ("glue/sst2", None, "train"),
        ("glue", "sst2", "train"),
    ]


# Rows that are left out.


def test_empty_rows_are_counted_and_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\na,1\n,1\n  ,2\nb,2\n\nc\n")
    data = read_table(path, BOTH, texts=("text",))
    assert rows(data) == [("a", "1"), ("b", "2"), ("c", "")]
    assert data.numbers == [2, 5, 7]
    assert data.left_out == ("3 rows left out: no text (lines 3, 4, 6)",)


def test_rows_are_left_out_with_a_sentence_for_each_reason() -> None:
    data = Data("d", {"text": list("abcd")}, [2, 3, 4, 5], unit="line")
    kept = data.without({3: "no label", 0: "too long", 1: "no label"})
    assert kept.columns == {"text": ["c"]}
    assert kept.left_out == ("1 row left out: too long (line 2)", "2 rows left out: no label (lines 3, 5)")
    assert kept.numbers == [4]
    many = Data("d", {"x": list(range(30))}, list(range(30))).without(dict.fromkeys(range(1, 30), "empty"))
    assert many.left_out == ("29 rows left out: empty (rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 17 more)",)
    with pytest.raises(ArgumentError, match=r"no row can be used: 1 row left out: no text \(row 7\)"):
        Data("d", {"x": [1]}, [7]).without({0: "no text"})


def test_a_split_is_drawn_by_the_seed_and_loses_nothing() -> None:
    data = Data("d", {"x": list(range(10))}, list(range(10)), ("1 row left out: no text (row 10)",))
    first, second = data.split(0.3, seed=0)
    assert len(second) == 3
    assert sorted(first.columns["x"] + second.columns["x"]) == list(range(10))
    assert first.numbers == first.columns["x"] == sorted(first.numbers)
    assert data.split(0.3, seed=0)[1].numbers == second.numbers != data.split(0.3, seed=1)[1].numbers
    assert [len(part) for part in data.split(0.0, seed=0)] == [9, 1]
    assert [len(part) for part in data.split(1.0, seed=0)] == [1, 9]
    assert (first.left_out, second.left_out) == (data.left_out, ())
    with pytest.raises(ArgumentError, match="at least 2 rows"):
        data.take([0]).split(0.5, seed=0)


# What cannot be read.


@pytest.mark.parametrize(
    ("name", "content", "error", "says"),
    [
        ("a.csv", b"txt,label\na,1\n", ArgumentError, r"The columns are: 'txt', 'label'. Did you mean 'txt'"),
        ("a.tsv", b"good\t1\nbad\t0\n", ArgumentError, "not a header, give columns by number"),
        ("a.csv", b"text,label\na,1\nb,2,3\n", FileError, "line 3 has 3 cells, the first line 2"),
        ("a.csv", b'text,label\na,1\n"b,2\n', FileError, "line 3: a quote is never closed"),
        ("a.csv", b'text,label\na,1\n"b" c,2\n', FileError, "line 3: a quote within a quoted cell"),
        ("a.csv", b"text,label\nok,1\n\xff,1\n", FileError, "not UTF-8: received byte 0xff in line 3"),
        ("a.csv", b"text,label\n", ArgumentError, "no rows"),
        ("a.csv", b"", ArgumentError, "a.csv: there are no rows in it"),
        ("a.jsonl", b'{"text": 1}\n{"text": \n', FileError, "line 2 is not JSON: expecting value"),
        ("a.jsonl", b'{"text": 1}\n' + b"[" * 100_000, FileError, "line 2: cannot be read: it is nested too deeply"),
        ("a.json", b'[{"text": ' + b"9" * 5000 + b"}]", FileError, "line 1: cannot be read: Exceeds the limit"),
        ("a.jsonl", b'{"text": 1}\n3\n', FileError, "line 2: expected an object, .* Received: 3"),
        ("a.json", b'"text"', FileError, "expected a list of objects. Received: str"),
        ("a.csv.gz", b"text,label\n", FileError, "not a whole gzip file"),
        ("a.parquet", b"text,label\n", FileError, "cannot be read as parquet"),
        ("a.xlsx", b"PK", ArgumentError, r"a name that ends in .csv, .*Received: .xlsx"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file(tmp_path: Path, name: str, content: bytes, error: type, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=says) as found:
        read_table(tmp_path / name, BOTH)
    assert "\n" not in str(found.value)


def test_what_is_wrong_with_a_source(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none.csv: no such file"):
        read_table("none.csv", BOTH)
    with pytest.raises(FileError, match="is a directory"):
        read_table(tmp_path, BOTH)
    with pytest.raises(ArgumentError, match="the list: there are no rows in it"):
        read_table([], BOTH)
    with pytest.raises(DtypeError, match="Received: int"):
        read_table(3, BOTH)
    with pytest.raises(DtypeError, match="Received: list with str"):
        read_table(["a text"], BOTH)
    with pytest.raises(DtypeError, match=r"expected a list for 'text'. Received: str"):
        read_table({"text": "abc"}, BOTH)
    with pytest.raises(ArgumentError, match=r"one length. Received: text 2, label 1"):
        read_table({"text": ["a", "b"], "label": [1]}, BOTH)


def test_without_the_hub_a_name_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(FileError, match=r"reviews: there is no such file, and the hub .* cannot be reached from here"):
        read_table("reviews", BOTH)


def test_local_files_leave_no_cache_and_need_no_network(tmp_path: Path) -> None:
    """In a process of its own, whose home is empty."""
    import pandas

    (tmp_path / "home").mkdir()
    write(tmp_path / "a.csv", "text,label\na,1\n")
    pandas.DataFrame({"text": ["a"], "label": ["1"]}).to_parquet(tmp_path / "a.parquet")
    code = """
import socket
def refuse(*_): raise SystemExit("the network was used")
socket.socket.connect = refuse
from headwise.tasks.rows.tables import read_table
for name in ("a.csv", "a.parquet"):
    assert read_table(name, {"text": "text", "label": "label"}).columns == {"text": ["a"], "label": ["1"]}
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    environment = kept | {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [*(tmp_path / "home").rglob("*")] == []


# --- In two parts -----------------------------------------------------------------------------------------------------


def labelled(**counts: int) -> Data:
    """So many rows of each label, in turns."""
    labels = [label for turn in range(max(counts.values())) for label, count in counts.items() if turn < count]
    return Data("rows", {"label": labels}, list(range(len(labels))))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("counts", "share", "held"),
    [
        ({"a": 24, "b": 24}, 0.1, {"a": 3, "b": 2}),  # 4.8 rows are 5, and rounding gives the odd one to the first
        ({"a": 90, "b": 10}, 0.1, {"a": 9, "b": 1}),
        ({"a": 97, "b": 3}, 0.1, {"a": 9, "b": 1}),
        ({"a": 50, "b": 30, "c": 20}, 0.25, {"a": 12, "b": 8, "c": 5}),  # 12.5, 7.5 and 5
        ({"a": 2, "b": 2}, 0.1, {"a": 1, "b": 1}),  # more than the share, so that both have both
        ({"a": 2, "b": 2}, 0.9, {"a": 1, "b": 1}),
        ({"a": 19, "b": 1}, 0.1, {"a": 2}),  # what is there once is learned from
    ],
)
def test_each_label_has_its_share_in_both_parts(
    counts: dict[str, int], share: float, held: dict[str, int], seed: int
) -> None:
    first, second = labelled(**counts).split(share, seed, by="label")
    found = Counter(second.columns["label"])
    assert sum(found.values()) == sum(held.values())
    assert all(abs(found[label] - count) <= (label in "ab" and len(held) > 1) for label, count in held.items())
    assert Counter(first.columns["label"]) + found == counts
    assert first.numbers == sorted(first.numbers)
    assert second.numbers == sorted(second.numbers)


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=6), share=st.floats(0.01, 0.99), seed=st.integers(0, 9))
def test_a_label_of_two_rows_is_in_both_parts(counts: list[int], share: float, seed: int) -> None:
    given = {f"label {i}": count for i, count in enumerate(counts)}
    data = labelled(**given)
    if len(data) < 2:
        return
    first, second = data.split(share, seed, by="label")
    assert sorted(first.numbers + second.numbers) == data.numbers
    assert first.numbers
    assert second.numbers
    if max(counts) > 1:
        assert all(label in second.columns["label"] for label, count in given.items() if count > 1)
        assert all(label in first.columns["label"] for label in given)
    again = data.split(share, seed, by="label")
    assert again[1].numbers == second.numbers


def test_lone_quotes_beside_a_short_row_join_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('text\tid\n"one\t1\nshort\ntwo"\t2\n', encoding="utf-8")
    assert open_table(tmp_path / "a.tsv").columns == {"text": ['"one', "short", 'two"'], "id": ["1", "", "2"]}


def test_a_heading_with_a_comma_between_semicolons_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("date;load, kW\n2024-01-01;1,5\n", encoding="utf-8")
    with pytest.raises(FileError, match="commas or by semicolons"):
        open_table(tmp_path / "a.csv")


@pytest.mark.parametrize("dtype", ["string", "Int64", "boolean"])
def test_missing_values_of_nullable_types_are_empty(dtype: str) -> None:
    cells: list[Any] = {"string": ["a"], "Int64": [1], "boolean": [True]}[dtype]
    frame = pandas.DataFrame({"text": pandas.array([*cells, None], dtype)})
    assert len(read_table(frame, {"text": "text"}, texts=("text",))) == 1


def test_lines_of_a_text_file_end_where_they_do_in_chunks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("a\u2028b\x0cc\r\nd\re\n".encode())
    with Reader(look_through(tmp_path / "a.txt", (), 9)) as reader:
        assert open_table(tmp_path / "a.txt").columns == reader.read(0).columns == {"text": ["a\u2028b\x0cc", "d", "e"]}


def test_an_index_of_dates_is_not_left_out_without_a_word() -> None:
    frame = pandas.DataFrame({"text": ["a"]}, index=pandas.date_range("2024", periods=1))
    assert "index" in " ".join(read_table(frame, {"text": "text"}).left_out)
