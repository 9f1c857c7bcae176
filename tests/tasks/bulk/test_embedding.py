"""Vectors of a file in chunks are those of its texts, in their order, whatever stops it on the way."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from headwise.errors import ArgumentError, FileError
from headwise.models import Bert
from headwise.models.checkpoint import default_model
from headwise.models.sentence import Embedded, SentenceEncoder
from headwise.tasks.bulk.embedding import embed_file
from headwise.tasks.bulk.parts import Work
from headwise.tasks.rows.chunks import Reader

TEXTS = ["a good film", "", "no, a bad one", "07", "a film, and then another one", "bad", "the end"]


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return Bert.from_pretrained(default_model()).sentences


def write(path: Path) -> None:
    """TEXTS and a column of numbers, in the file's own form."""
    rows = [{"id": at, "text": text} for at, text in enumerate(TEXTS)]
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix == ".parquet":
        ids = pyarrow.array(range(len(TEXTS)), pyarrow.int16())
        parquet.write_table(pyarrow.table({"id": ids, "text": TEXTS}), path)
        return
    lines = {
        ".jsonl": [json.dumps(row) for row in rows],
        ".csv": ["id,text", *(f'{row["id"]},"{row["text"]}"' for row in rows)],
        ".tsv": ["id\ttext", *(f"{row['id']}\t{row['text']}" for row in rows)],
        ".txt": TEXTS,
    }[suffix]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.jsonl.gz", "in.parquet", "in.txt", "in.txt.gz"])
def test_each_row_has_its_vector_and_keeps_its_columns(tmp_path: Path, encoder: SentenceEncoder, name: str) -> None:
    write(tmp_path / name)
    expected = encoder.embed(TEXTS).vectors.numpy()
    for out in (tmp_path / "out.npy", tmp_path / "out.parquet"):
        written = embed_file(encoder, tmp_path / name, out, chunk=3)
        assert (written.rows, written.before, written.notes) == (7, 0, ())
        assert written.tokens == encoder.embed(TEXTS).tokens
    vectors = np.load(tmp_path / "out.npy")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    table = parquet.read_table(tmp_path / "out.parquet")
    columns = {"text", "vector"} if ".txt" in name else {"id", "text", "vector"}
    assert set(table.column_names) == columns
    assert table["text"].to_pylist() == TEXTS
    assert table.schema.field("vector").type == pyarrow.list_(pyarrow.float32(), 384)
    np.testing.assert_array_equal(np.stack(table["vector"].to_numpy()), vectors)
    if name == "in.parquet":
        assert table.schema.field("id").type == pyarrow.int16()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "out.npy", "out.parquet"])


def test_only_one_chunk_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next chunk is read when the part of the one before it lies on the disk."""
    write(tmp_path / "in.jsonl")
    events: list[Any] = []
    stub = Stub()
    read = Reader.read

    def reading(reader: Reader, number: int) -> Any:
        events.append(("read", number, len(list(tmp_path.glob(".out.npy.parts/0*.npy")))))
        return read(reader, number)

    monkeypatch.setattr(Reader, "read", reading)
    embed_file(stub.encoder, tmp_path / "in.jsonl", tmp_path / "out.npy", chunk=2)
    looked, computed = events[:4], events[4:]
    assert looked == [("read", number, 0) for number in range(4)]  # for rows without a text
    assert computed == [("read", number, number) for number in range(4)]
    assert stub.sizes == [2, 2, 2, 1]


def test_progress_is_told_within_a_chunk(tmp_path: Path, encoder: SentenceEncoder) -> None:
    write(tmp_path / "in.parquet")
    told: list[tuple[int, int, str]] = []
    out = tmp_path / "out.npy"
    embed_file(encoder, tmp_path / "in.parquet", out, chunk=4, batch_tokens=1, tell=lambda *now: told.append(now))
    assert [done for done, _, _ in told] == [0, 0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 7]
    assert {total for _, total, _ in told} == {7}
    assert told[-1][2].endswith(" tokens/s")


class Stub:
    """An encoder without a model, so that a process can be forked while it is used."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.encoder: Any = SimpleNamespace(
            settings=SimpleNamespace(folder=default_model()), max_tokens=256, embed=self.embed
        )

    def embed(self, texts: list[str], prompt: str, **_: Any) -> Embedded:
        self.sizes.append(len(texts))
        vectors = np.array([[len(prompt + text), ord((text or "?")[0])] for text in texts], np.float32)
        return Embedded(torch.from_numpy(vectors), len(texts), [])


@pytest.mark.parametrize("harm", ["cut", "emptied", "note"])
@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_a_damaged_part_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, harm: str
) -> None:
    write(tmp_path / "in.csv")
    stub, out = Stub(), tmp_path / f"out{suffix}"
    embed_file(stub.encoder, tmp_path / "in.csv", tmp_path / f"whole{suffix}", chunk=2)
    _stopped_at(3, monkeypatch, stub, tmp_path / "in.csv", out)
    part = out.parent / f".{out.name}.parts" / f"000001{suffix}"
    if harm == "note":
        part.with_suffix(".json").write_text("{", encoding="utf-8")
    else:
        os.truncate(part, 0 if harm == "emptied" else part.stat().st_size - 3)
    stub.sizes.clear()
    written = embed_file(stub.encoder, tmp_path / "in.csv", out, chunk=2)
    assert written.before == 4
    assert written.notes == (f"2 of the rows were computed again, because their parts were damaged: 000001{suffix}",)
    assert stub.sizes == [2, 1]
    assert out.read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()


def test_parts_that_are_damaged_before_they_are_joined_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in.csv")
    stub, out = Stub(), tmp_path / "out.npy"
    do = Work.do

    def harming(work: Work, number: int, *given: Any) -> None:
        do(work, number, *given)
        if number == 2:
            os.truncate(work.part(0), 9)

    monkeypatch.setattr(Work, "do", harming)
    with pytest.raises(FileError, match=r"000000\.npy: is damaged\. Delete it, and run the same command again"):
        embed_file(stub.encoder, tmp_path / "in.csv", out, chunk=2)
    assert not out.exists()
    monkeypatch.setattr(Work, "do", do)
    assert embed_file(stub.encoder, tmp_path / "in.csv", out, chunk=2).before == 5
    assert np.load(out).shape == (7, 2)


def test_what_is_said_to_be_finished_lies_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is synced before it gets its name, so that a crash of the machine leaves no empty one under it."""
    write(tmp_path / "in.csv")
    synced: set[int] = set()
    fsync, replace = os.fsync, os.replace

    def syncing(file: int) -> None:
        synced.add(os.fstat(file).st_ino)
        fsync(file)

    def renaming(old: Path, new: Path) -> None:
        assert os.stat(old).st_ino in synced, new
        replace(old, new)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", renaming)
    embed_file(Stub().encoder, tmp_path / "in.csv", tmp_path / "out.npy", chunk=3)
    embed_file(Stub().encoder, tmp_path / "in.csv", tmp_path / "out.parquet", chunk=3)


def _stopped_at(place: int, monkeypatch: pytest.MonkeyPatch, stub: Stub, path: Path, out: Path, **given: Any) -> None:
    """Embed in chunks of 2 rows until this chunk, which Ctrl-C stops."""
    do = Work.do

    def stopping(work: Work, number: int, *given: Any) -> None:
        if number == place:
            raise KeyboardInterrupt
        do(work, number, *given)

    monkeypatch.setattr(Work, "do", stopping)
    with pytest.raises(KeyboardInterrupt):
        embed_file(stub.encoder, path, out, chunk=2, **given)
    monkeypatch.setattr(Work, "do", do)


def test_what_was_begun_with_something_else_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in.csv")
    stub, out = Stub(), tmp_path / "out.npy"
    _stopped_at(2, monkeypatch, stub, tmp_path / "in.csv", out, prompt="query: ")
    with pytest.raises(ArgumentError, match=r"computed with prompt='query: '\. Resume with that, or add --restart"):
        embed_file(stub.encoder, tmp_path / "in.csv", out, chunk=2)
    other = Stub()
    shutil.copytree(default_model(), tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    other.encoder.settings.folder = tmp_path / "model"
    with pytest.raises(ArgumentError, match=r"computed with other weights or settings than .*model has now"):
        embed_file(other.encoder, tmp_path / "in.csv", out, chunk=2, prompt="query: ")
    assert embed_file(stub.encoder, tmp_path / "in.csv", out, chunk=2, prompt="query: ").before == 4


def test_every_module_of_the_checkpoint_is_the_one_of_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder may have any name: modules.json says which."""
    write(tmp_path / "in.csv")
    stub, model = Stub(), tmp_path / "model"
    shutil.copytree(default_model(), model, ignore=shutil.ignore_patterns("*.safetensors"))
    (model / "1_Pooling").rename(model / "pooling")
    stub.encoder.settings.folder = model
    _stopped_at(2, monkeypatch, stub, tmp_path / "in.csv", tmp_path / "out.npy")
    (model / "pooling" / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ArgumentError, match="computed with other weights or settings"):
        embed_file(stub.encoder, tmp_path / "in.csv", tmp_path / "out.npy", chunk=2)


@pytest.mark.parametrize("cells", [[None, "a", float("nan")], [[], "a", None]])
def test_rows_without_a_text_are_told_before_anything_is_computed(tmp_path: Path, cells: list[Any]) -> None:
    lines = "".join(json.dumps({"text": cell}) + "\n" for cell in cells)
    (tmp_path / "in.jsonl").write_text(lines, encoding="utf-8")
    stub = Stub()
    says = r"expected a text in each row of the column 'text'. Received: 2 without one \(lines 1, 3\)"
    with pytest.raises(ArgumentError, match=says):
        embed_file(stub.encoder, tmp_path / "in.jsonl", tmp_path / "out.npy", chunk=1)
    assert stub.sizes == []
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_bytes_of_parquet_are_texts_where_they_are_utf_8(tmp_path: Path, encoder: SentenceEncoder) -> None:
    texts = ["a good film", "une soirée"]
    cells = pyarrow.array([text.encode() for text in texts], pyarrow.binary())
    parquet.write_table(pyarrow.table({"text": cells}), tmp_path / "in.parquet")
    embed_file(encoder, tmp_path / "in.parquet", tmp_path / "out.npy")
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), encoder.embed(texts).vectors.numpy(), atol=1e-5)
    embed_file(encoder, tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert parquet.read_table(tmp_path / "out.parquet")["text"].chunk(0) == cells  # as the file has them
    parquet.write_table(pyarrow.table({"text": [b"a", b"b", b"soir\xe9e"]}), tmp_path / "in.parquet")
    stub = Stub()
    says = (
        r"column 'text', row 3: expected a text in UTF-8\. Received: b'soir\\xe9e', with byte 0xe9 at offset 4\. Write"
    )
    with pytest.raises(ArgumentError, match=says):
        embed_file(stub.encoder, tmp_path / "in.parquet", tmp_path / "none.npy", chunk=2)
    assert stub.sizes == []


def test_vectors_of_another_model_are_kept(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("vector,text\n1,a\n", encoding="utf-8")
    for source, out in (("in.csv", "one.parquet"), ("one.parquet", "two.parquet")):
        embed_file(Stub().encoder, tmp_path / source, tmp_path / out)
    first, second = (parquet.read_table(tmp_path / name) for name in ("one.parquet", "two.parquet"))
    assert first.column_names == ["vector", "text", "vector.2"]
    assert second.drop_columns("vector.3").equals(first)


@pytest.mark.parametrize(
    ("name", "out", "error", "says"),
    [
        ("in.json", "out.npy", ArgumentError, r"a name that ends in .csv, .*\.parquet, \.txt\. Received: in.json"),
        ("in.csv", "out.csv", ArgumentError, r"a name that ends in \.npy or \.parquet\. Received: out.csv"),
        ("in.csv", "out.npy", ArgumentError, "there is no column 'text'. The columns are: 'vector', 'words'"),
        ("none.csv", "out.npy", FileError, "no such file"),
    ],
)
def test_what_cannot_be_done_leaves_nothing(tmp_path: Path, name: str, out: str, error: type, says: str) -> None:
    (tmp_path / "in.csv").write_text("vector,words\n1,a\n", encoding="utf-8")
    with pytest.raises(error, match=says):
        embed_file(Stub().encoder, tmp_path / name, tmp_path / out)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]
