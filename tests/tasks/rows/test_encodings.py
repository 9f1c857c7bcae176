"""Text files that are not UTF-8: refused with the likely encodings, and read when one is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from headwise.errors import ArgumentError, FileError
from headwise.tasks import Classify
from headwise.tasks.rows.aligned_lines import read_aligned
from headwise.tasks.rows.chunks import Found, Reader, look_through
from headwise.tasks.rows.encodings import decode, encoded_as, guess_encodings, recode
from headwise.tasks.rows.tables import read_table

TEXTS = {
    "gbk": "这部电影很好看，演员的表演也不错",
    "big5": "這部電影很好看，演員的表演也不錯",
    "cp1252": "un café très agréable et “bon”",
    "cp1251": "Это был очень хороший фильм",
    "shift_jis": "この映画はとても面白かった",
    "utf-16": "这部 café",
    "utf-16-be": "plain words",
}


@pytest.mark.parametrize("encoding", TEXTS)
def test_the_refusal_names_the_likeliest_encoding_first(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(f"text\n{TEXTS[encoding]}\n".encode(encoding))
    said = rf"is not UTF-8: received byte 0x.*probably {encoding}: name it by --encoding {encoding} .*iconv"
    with pytest.raises(FileError, match=said):
        read_table(path, {"text": "text"})
    with pytest.raises(FileError, match=said):
        look_through(path, ("text",), 1)
    with encoded_as(encoding):
        assert read_table(path, {"text": "text"}).columns["text"] == [TEXTS[encoding]]


def test_only_encodings_that_decode_the_whole_file_are_named() -> None:
    data = TEXTS["gbk"].encode("gbk")
    assert guess_encodings(data)[:3] == ["gbk", "gb18030", "euc_kr"]
    assert not {"gbk", "big5"} & {*guess_encodings(data + b"\n\xff\xff")}
    with pytest.raises(FileError, match=r"line 2 \(offset 3\)\. Save it as UTF-8"):
        decode(b"ok\n\xff\x98\x81", "a.csv")
    assert guess_encodings("一部好电影".encode() + b"\xff") == []


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.jsonl", "a.txt"])
@pytest.mark.parametrize("encoding", ["gbk", "utf-16"])
def test_chunks_are_read_in_the_encoding_in_which_they_were_found(tmp_path: Path, name: str, encoding: str) -> None:
    cells = ["好", "坏", "电影"]
    lines = [json.dumps({"text": cell}, ensure_ascii=False) for cell in cells] if "jsonl" in name else cells
    content = "".join(f"{line}\n" for line in (["text", *lines] if "csv" in name else lines)).encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with encoded_as(encoding):
        found = look_through(tmp_path / name, ("text",), 2)
    with Reader(Found.from_json(tmp_path / name, found.to_json())) as reader:  # as in another process
        assert reader.read(1).columns == {"text": ["电影"]}
        assert reader.read(0).columns == {"text": ["好", "坏"]}


def test_aligned_files_are_read_in_it_too(tmp_path: Path) -> None:
    (tmp_path / "a.zh").write_bytes("好\n".encode("gbk"))
    (tmp_path / "a.en").write_bytes(b"good\n")
    with encoded_as("gbk"):
        assert read_aligned(f"{tmp_path / 'a.zh'},{tmp_path / 'a.en'}").columns["source"] == ["好"]


def test_a_training_reads_its_data_and_its_validation_in_it(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(("text,label\n" + "很好,好\n很差,差\n" * 4).encode("gbk"))
    small = {"model": "scratch", "dim": 16, "heads": 2, "epochs": 1, "monitor_every": 0}
    task = Classify.fit(tmp_path / "a.csv", validation=tmp_path / "b.csv", encoding="gbk", **small)
    assert set(task.labels) == {"好", "差"}
    assert (task.scores.count, task.options.encoding) == (8, "gbk")


@pytest.mark.parametrize("encoding", ["none", "base64"])
def test_a_name_that_is_none_is_refused(encoding: str) -> None:
    with (
        pytest.raises(ArgumentError, match=f"such as utf-8, gbk or cp1252. Received: '{encoding}'"),
        encoded_as(encoding),
    ):
        pass


def test_another_encoding_than_the_named_is_refused() -> None:
    with encoded_as("ascii"), pytest.raises(FileError, match=r"a\.csv is not ASCII: received byte 0xba"):
        recode("好".encode("gbk"), "a.csv")
