"""Chunks together are the whole file, each can be read by itself, and no more is read than it has."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import ArgumentError, FileError
from headwise.tasks.rows import chunks
from headwise.tasks.rows.chunks import Found, Reader, look_through
from headwise.tasks.rows.sources import Table, open_table

QUOTED = 'id,text\n1,"one\ntwo"\n2,"a ""b"", c"\n3\n\n4,"\r\n\n"\n5,end'
FILES: dict[str, bytes] = {
    "quoted.csv": QUOTED.encode(),
    "bom.csv": b"\xef\xbb\xbfid;text\r\n1;\xc3\xbc\r\n2;\xe4\xba\x8c\r\n",
    "returns.csv": b"id,text\r1,a\r2,b\r3,c\r",
    "lone.tsv": b'id\ttext\n1\t"never closed\n2\tsay "hi"\n3\tx\n',
    "written.tsv": b'id\ttext\n1\t"a\ttab"\n2\t"a\nline"\n3\tx\n',
    "packed.csv.gz": gzip.compress(QUOTED.encode()),
    "late.jsonl": '{"id": 1}\n\n{"text": "a\u2028b", "id": "01"}\r\n{"x": [1], "id": null}\n{}\n'.encode(),
    "lines.txt": b"\xef\xbb\xbfone\r\n\ntwo, \xc3\xbc\rthree\n\n",
    "packed.txt.gz": gzip.compress(b"one\ntwo"),
    "packed.jsonl.gz": gzip.compress(b'\xef\xbb\xbf{"id": 1}\n{"id": 2}\n'),
}


def read(found: Found, order: list[int] | None = None) -> list[Table]:
    with Reader(found) as reader:
        numbers = list(range(len(found.chunks)))
        tables = {number: reader.read(number) for number in order or numbers}
    return [tables[number] for number in numbers]


def joined(tables: list[Table]) -> tuple[dict[str, list[Any]], list[int]]:
    columns = {name: [cell for table in tables for cell in table.columns[name]] for name in tables[0].columns}
    return columns, [number for table in tables for number in table.numbers]


@pytest.mark.parametrize("name", FILES)
def test_chunks_are_the_whole_file_in_any_order(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name])
    whole = open_table(path, ("text",))
    for rows in (1, 2, 3, 100):
        found = look_through(path, ("text",), rows)
        assert found == Found.from_json(path, found.to_json())
        assert found.rows == len(whole.numbers)
        assert {chunk.rows for chunk in found.chunks[:-1]} <= {rows}
        for order in (None, list(range(len(found.chunks)))[::-1]):
            tables = read(found, order)
            assert joined(tables) == (whole.columns, whole.numbers)
            assert {(table.unit, table.name) for table in tables} == {(whole.unit, whole.name)}


def test_a_file_without_header_has_columns_by_number(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a film\t1\nno film\t0\nfilm\t1\n", encoding="utf-8")
    tables = read(look_through(tmp_path / "a.tsv", ("1", "2"), 2))
    assert joined(tables) == ({"1": ["a film", "no film", "film"], "2": ["1", "0", "1"]}, [1, 2, 3])
    assert not tables[0].headed


@given(
    cells=st.lists(
        st.tuples(*[st.text('a",\n\r;é ', max_size=5)] * 2).filter(lambda row: row != ("", "")), min_size=1, max_size=9
    ),
    rows=st.integers(1, 4),
)
def test_any_cells_come_out_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, str]], rows: int
) -> None:
    path = tmp_path_factory.mktemp("cells") / "a.csv"
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("first", "second"), *cells])
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    columns, _ = joined(read(look_through(path, ("first",), rows)))
    assert list(zip(*columns.values(), strict=True)) == cells


def test_chunks_of_parquet_go_across_row_groups_and_keep_types(tmp_path: Path) -> None:
    import datasets
    import pyarrow
    from pyarrow import parquet

    features = datasets.Features({"n": datasets.Value("int16"), "label": datasets.ClassLabel(names=["no", "yes"])})
    data = datasets.Dataset.from_dict({"n": [*range(10)], "label": [0, 1, -1, 1, 0] * 2}, features=features)
    parquet.write_table(data.data.table, tmp_path / "a.parquet", row_group_size=4)
    whole = open_table(tmp_path / "a.parquet")
    for rows in (1, 3, 4, 9, 20):
        found = look_through(tmp_path / "a.parquet", (), rows)
        for order in (None, list(range(len(found.chunks)))[::-1]):
            tables = read(found, order)
            assert joined(tables) == (whole.columns, whole.numbers)
    assert tables[0].arrow["n"].type == pyarrow.int16()
    assert set(tables[0].arrow) == {"n"}  # classes are written by their names
    assert whole.columns["label"][:3] == ["no", "yes", None]


def test_no_more_of_a_text_is_read_than_a_chunk_has(tmp_path: Path) -> None:
    for name, line in (("a.csv", "text\n"), ("a.jsonl", '{"text": 1}\n')):
        (tmp_path / name).write_text(line + line * 5000, encoding="utf-8")
        found = look_through(tmp_path / name, ("text",), 10)
        with Reader(found) as reader:
            for number in (0, 1, 300):
                reader.read(number)
                assert reader._file.tell() == found.chunks[number + 1].offset


def test_no_more_of_parquet_is_unpacked_than_a_chunk_and_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"n": [*range(100)]}), tmp_path / "a.parquet")
    monkeypatch.setattr(chunks, "_BATCH", 4)
    unpacked = []
    batches = chunks._batches

    def counted(*given: Any) -> Any:
        for batch in batches(*given):
            unpacked.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(chunks, "_batches", counted)
    with Reader(look_through(tmp_path / "a.parquet", (), 10)) as reader:
        for number in range(4):
            assert reader.read(number).columns["n"] == [*range(10 * number, 10 * number + 10)]
            assert sum(unpacked) < 10 * (number + 1) + 4


@pytest.mark.parametrize(
    ("name", "content", "error", "says"),
    [
        ("a.csv", b"text,label\na,1\nb,2,3\n", FileError, "line 3 has 3 cells, the first line 2"),
        ("a.csv", b'text,label\na,1\n"b,2\n', FileError, "line 3: a quote is never closed"),
        ("a.csv", b"text,label\nok,1\n\xff,1\n", FileError, "not UTF-8: received byte 0xff in line 3"),
        ("a.csv", b"text,label\n", ArgumentError, "no rows"),
        ("a.jsonl", b'{"text": 1}\n\n{"text": \n', FileError, "line 3 is not JSON: expecting value"),
        ("a.jsonl", b'{"text": "\\ud83d\\ude00"}\n{"x": "\\uD800"}\n', FileError, r"line 2: \\ud800 is half"),
        ("a.jsonl", b'{"text": 1}\n3\n', FileError, "line 2: expected an object, .* Received: 3"),
        ("a.csv.gz", b"text,label\n", FileError, "not a whole gzip file"),
        ("a.csv.gz", gzip.compress(b"text\na\n", mtime=0)[:-4], FileError, "not a whole gzip file"),
        ("a.parquet", b"text,label\n", FileError, "cannot be read as parquet"),
        ("a.txt", b"ok\n\xff\n", FileError, "not UTF-8: received byte 0xff in line 2"),
        ("a.txt", b"", ArgumentError, "no rows"),
        ("a.json", b"[]", ArgumentError, "a name that ends in .csv"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_any_row_is_found_before_the_first_is_read(
    tmp_path: Path, name: str, content: bytes, error: type, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=says):
        look_through(tmp_path / name, ("text",), 1)


def test_a_file_that_is_not_what_it_was_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with pytest.raises(FileError, match=r"a.csv: no such file"):
        look_through(path, (), 1)
    path.write_text("text\na\nb\n", encoding="utf-8")
    found = look_through(path, ("text",), 2)
    path.write_text("text\na\n", encoding="utf-8")
    with pytest.raises(FileError, match="has changed while it was read"):
        read(found)
