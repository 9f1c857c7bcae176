"""A file in chunks is the file at once, whatever stops it on the way; and what is begun is gone on with, or refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from headwise import tasks
from headwise.errors import ArgumentError, FileError
from headwise.tasks.bulk import parts
from headwise.tasks.bulk.answered import answer, sum_up
from headwise.tasks.bulk.parts import Work
from headwise.tasks.bulk.streaming import predict_file, why_whole
from headwise.tasks.rows.sources import open_table
from headwise.tasks.task import Task

ROWS = [
    {"id": row, "sentence": f"a {('good', 'bad')[row % 2]} film {row}" if row % 4 != 2 else ""} for row in range(11)
]


@pytest.fixture(scope="module")
def task(reviews_run: Path) -> Task[Any]:
    return tasks.load(reviews_run)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_chunks_give_what_the_whole_file_gives(
    tmp_path: Path, task: Task[Any], reviews_run: Path, lines: Path, suffix: str
) -> None:
    table = open_table(lines)
    whole = answer(task, table, table, task.file_columns(str(lines)))
    _, _, sentences = sum_up("in.jsonl", [whole.note()])
    assert sentences == ("3 rows without a prediction: no text (lines 3, 7, 11)",)

    out = tmp_path / f"out{suffix}"
    told: list[tuple[int, int]] = []
    written = predict_file(
        task, reviews_run, lines, out, chunk=4, tell=lambda done, total, _: told.append((done, total))
    )
    assert (written.rows, written.before, written.notes) == (11, 0, sentences)
    assert [each for each in told if each[1] == 11] == [(0, 11), (4, 11), (8, 11), (11, 11)]
    assert left(tmp_path) == ["in.jsonl", out.name]

    found = open_table(out).columns
    assert list(found) == list(whole.columns)
    text = suffix in (".csv", ".tsv")
    for name, cells in whole.columns.items():
        if name.startswith("probability"):  # rows of other lengths share a batch
            numbers = [None if cell in ("", None) else float(cell) for cell in found[name]]
            assert [each is None for each in numbers] == [each is None for each in cells]
            assert [each for each in numbers if each] == pytest.approx([each for each in cells if each], rel=1e-5)
        else:
            assert found[name] == (["" if cell is None else str(cell) for cell in cells] if text else cells)


def test_parquet_keeps_its_types_where_the_first_chunk_has_nothing(
    tmp_path: Path, task: Task[Any], reviews_run: Path
) -> None:
    columns = {
        "sentence": pyarrow.array([None, "", "a good film", "bad"]),
        "day": pyarrow.array([None, None, 1, None], pyarrow.date32()),
        "none": pyarrow.nulls(4, pyarrow.int8()),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "in.parquet")
    predict_file(task, reviews_run, tmp_path / "in.parquet", tmp_path / "out.parquet", chunk=1)
    found = parquet.read_table(tmp_path / "out.parquet")
    kinds = dict(zip(found.column_names, map(str, found.schema.types), strict=True))
    assert kinds == {
        "sentence": "string",
        "day": "date32[day]",
        "none": "int8",
        "label": "string",
        **dict.fromkeys(("probability", "probability of bad", "probability of good"), "double"),
    }
    assert [label is None for label in found["label"].to_pylist()] == [True, True, False, False]


class Stub:
    """A task without a model, so that a process can be forked while it is used."""

    reads_files = False
    answered = 0

    def __init__(self, task: Task[Any]) -> None:
        self.asked, self.file_columns, self.cut = task.asked, task.file_columns, task.cut

    def predict(self, data: Any) -> list[dict[str, Any]]:
        Stub.answered += len(data)
        return [{"words": len(text.split())} for text in data.columns["text"]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_kill_at_any_moment_loses_and_repeats_nothing(
    tmp_path: Path, task: Task[Any], reviews_run: Path, lines: Path
) -> None:
    """Each file is renamed into place, so the moments are before and after each, and in the tidying up."""
    stub: Any = Stub(task)
    predict_file(stub, reviews_run, lines, tmp_path / "whole.csv", chunk=3)
    whole = (tmp_path / "whole.csv").read_bytes()
    out, kinds = tmp_path / "out.csv", set()
    for moment in range(100):
        pid = os.fork()
        if pid == 0:
            _die_at(moment)
            try:
                predict_file(stub, reviews_run, lines, out, chunk=3)
            finally:
                os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        if not killed:
            break
        there = len(list(tmp_path.glob(".out.csv.parts/0*.csv")))
        before = Stub.answered
        written = predict_file(stub, reviews_run, lines, out, chunk=3)
        kinds.add(written.before)
        assert out.read_bytes() == whole
        assert left(tmp_path) == ["in.jsonl", "out.csv", "whole.csv"]
        if moment < 19:  # later the journal may be gone already
            assert written.before == min(3 * there, 11)
            rows = [row for row in ROWS[written.before :] if row["sentence"]]
            assert Stub.answered - before == len(rows)
        out.unlink()
    assert moment == 21
    assert kinds == {0, 3, 6, 9, 11}


def _die_at(moment: int) -> None:
    """Before or after a renaming, or in the tidying up."""
    count = 0
    replace, empty = os.replace, parts._empty

    def tick() -> None:
        nonlocal count
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def dying(*given: Any) -> None:
        tick()
        replace(*given)
        tick()

    def tidying(out: Path) -> None:
        if any(parts.name_folder(out).glob("0*")):
            (parts.name_folder(out) / "journal.json").unlink()
            tick()
        empty(out)

    os.replace, parts._empty = dying, tidying  # type: ignore[assignment]


def test_what_was_begun_with_something_else_is_told_and_can_be_begun_again(
    tmp_path: Path, task: Task[Any], reviews_run: Path, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub: Any = Stub(task)
    out = tmp_path / "out.csv"
    do, done = Work.do, []

    def stopping(work: Work, number: int, *given: Any) -> None:
        if number == 2:
            raise KeyboardInterrupt
        done.append(number)
        do(work, number, *given)

    monkeypatch.setattr(Work, "do", stopping)
    with pytest.raises(KeyboardInterrupt):
        predict_file(stub, reviews_run, lines, out, chunk=3)
    assert ".out.csv.parts" in left(tmp_path)
    monkeypatch.setattr(Work, "do", do)

    with pytest.raises(ArgumentError, match=r"parts that were computed with --chunk 3\. .* or add --restart"):
        predict_file(stub, reviews_run, lines, out, chunk=4)
    shutil.copytree(reviews_run, tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_bytes(config.read_bytes() + b"\n")
    with pytest.raises(ArgumentError, match=r"computed with other weights, options or files than .*run has now"):
        predict_file(stub, tmp_path / "run", lines, out, chunk=3)
    (tmp_path / "other.jsonl").write_bytes(lines.read_bytes())
    with pytest.raises(ArgumentError, match=r"computed with another file, .*in.jsonl"):
        predict_file(stub, reviews_run, tmp_path / "other.jsonl", out, chunk=3)
    os.utime(lines, ns=(1, 1))
    with pytest.raises(ArgumentError, match=r"computed with .*in.jsonl before it was changed"):
        predict_file(stub, reviews_run, lines, out, chunk=3)
    assert predict_file(stub, reviews_run, lines, out, chunk=3, restart=True).before == 0
    assert left(tmp_path) == ["in.jsonl", "other.jsonl", "out.csv", "run"]


def _stopped(stub: Any, run: Path, lines: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Compute the first two parts, and return their folder."""
    with monkeypatch.context() as patched:
        do = Work.do
        patched.setattr(
            Work, "do", lambda work, number, *given: _interrupt() if number == 2 else do(work, number, *given)
        )
        with pytest.raises(KeyboardInterrupt):
            predict_file(stub, run, lines, out, chunk=3)
    return parts.name_folder(out)


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["tokenizer.json", "weights.safetensors", "config.yaml"])
def test_every_file_of_the_task_is_the_one_of_the_parts(
    tmp_path: Path, task: Task[Any], reviews_run: Path, lines: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stub, run = Stub(task), Path(shutil.copytree(reviews_run, tmp_path / "run"))
    _stopped(stub, run, lines, tmp_path / "out.csv", monkeypatch)
    (run / "notes.csv").write_text("not of the task", encoding="utf-8")
    (run / name).write_bytes((run / name).read_bytes() + b"\n")
    with pytest.raises(ArgumentError, match="computed with other weights, options or files than"):
        predict_file(stub, run, lines, tmp_path / "out.csv", chunk=3)  # type: ignore[arg-type]
    (run / name).write_bytes((run / name).read_bytes()[:-1])
    assert predict_file(stub, run, lines, tmp_path / "out.csv", chunk=3).before == 6  # type: ignore[arg-type]


def test_a_part_or_note_with_other_bytes_is_computed_again(
    tmp_path: Path, task: Task[Any], reviews_run: Path, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub: Any = Stub(task)
    out = tmp_path / "out.csv"
    predict_file(stub, reviews_run, lines, out, chunk=3)
    whole = out.read_bytes()
    for name, change in (
        ("000000.csv", lambda data: data.replace(b"film", b"fiim")),
        ("000001.json", lambda data: data.replace(b'"rows": 3', b'"rows": 2')),
        ("000001.json", lambda data: b"[1]"),
    ):
        path = _stopped(stub, reviews_run, lines, out, monkeypatch) / name
        path.write_bytes(change(path.read_bytes()))
        written = predict_file(stub, reviews_run, lines, out, chunk=3)
        assert (written.rows, written.before) == (11, 3)
        assert written.notes[0].startswith("3 of the rows were computed again, because their parts were damaged: 00000")
        assert out.read_bytes() == whole


@pytest.mark.parametrize("text", ["", "[1]", "{}", None])
def test_a_damaged_journal_is_told(
    tmp_path: Path, task: Task[Any], reviews_run: Path, lines: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    """None: a journal with fewer chunks, which gave fewer rows."""
    stub: Any = Stub(task)
    journal = _stopped(stub, reviews_run, lines, tmp_path / "out.csv", monkeypatch) / "journal.json"
    content = json.loads(journal.read_text(encoding="utf-8"))
    content["found"]["chunks"].pop()
    journal.write_text(json.dumps(content) if text is None else text, encoding="utf-8")
    with pytest.raises(FileError, match=r"journal.json: cannot be read: .* Start again with --restart"):
        predict_file(stub, reviews_run, lines, tmp_path / "out.csv", chunk=3)
    assert predict_file(stub, reviews_run, lines, tmp_path / "out.csv", chunk=3, restart=True).rows == 11


@pytest.mark.parametrize("restart", [False, True])
def test_nothing_that_others_put_beside_the_parts_is_deleted(
    tmp_path: Path, task: Task[Any], reviews_run: Path, lines: Path, restart: bool
) -> None:
    out = tmp_path / "out.csv"
    folder = parts.name_folder(out)
    (folder / "000000.json.d").mkdir(parents=True)
    for name in ("notes.txt", "0.csv", "000000.jsonl", ".000000.csv.part"):
        (folder / name).write_text("mine", encoding="utf-8")
    (tmp_path / ".out.csv.mine.part").touch()
    mine = left(folder)
    assert predict_file(Stub(task), reviews_run, lines, out, chunk=3, restart=restart).rows == 11  # type: ignore[arg-type]
    assert left(folder) == mine
    assert left(tmp_path) == [".out.csv.mine.part", ".out.csv.parts", "in.jsonl", "out.csv"]


def test_parts_are_not_written_through_a_link(tmp_path: Path, task: Task[Any], reviews_run: Path, lines: Path) -> None:
    out = tmp_path / "out.csv"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "000000.csv").touch()
    parts.name_folder(out).symlink_to(tmp_path / "mine")
    with pytest.raises(FileError, match=r"out.csv.parts: expected a folder, .*Received: a link"):
        predict_file(Stub(task), reviews_run, lines, out, chunk=3)  # type: ignore[arg-type]
    parts.name_folder(out).unlink()
    parts.name_folder(out).mkdir()
    (parts.name_folder(out) / "lock").symlink_to(tmp_path / "mine" / "lock")
    with pytest.raises(FileError, match=r"out.csv.parts: cannot be written: too many levels of symbolic links"):
        predict_file(Stub(task), reviews_run, lines, out, chunk=3)  # type: ignore[arg-type]
    assert left(tmp_path / "mine") == ["000000.csv"]


def test_two_processes_do_not_write_one_file(tmp_path: Path, task: Task[Any], reviews_run: Path, lines: Path) -> None:
    with parts.alone(tmp_path / "out.csv"), pytest.raises(ArgumentError, match="another process is writing this file"):
        predict_file(Stub(task), reviews_run, lines, tmp_path / "out.csv")  # type: ignore[arg-type]


def test_what_fails_before_the_first_part_leaves_nothing(
    tmp_path: Path, task: Task[Any], reviews_run: Path, lines: Path
) -> None:
    out = tmp_path / "out.csv"
    (tmp_path / "empty.csv").write_text("sentence,x\n,1\n,2\n", encoding="utf-8")
    (tmp_path / "wrong.csv").write_text("text\na\n", encoding="utf-8")
    for name, error, says in (
        ("empty.csv", ArgumentError, r"empty.csv: no row can be used: 2 rows without a prediction: no text \(lines 2"),
        ("wrong.csv", ArgumentError, "there is no column 'sentence'"),
        ("none.csv", FileError, "none.csv: no such file"),
    ):
        with pytest.raises(error, match=says):
            predict_file(task, reviews_run, tmp_path / name, out, chunk=1)
        assert left(tmp_path) == ["empty.csv", "in.jsonl", "wrong.csv"]


def test_columns_that_parquet_cannot_have_are_told_as_soon_as_they_come(
    tmp_path: Path, task: Task[Any], reviews_run: Path
) -> None:
    (tmp_path / "in.jsonl").write_text(
        "".join(f'{{"sentence": "a", "x": {x}}}\n' for x in ("1", '"a"', "2", "3")), encoding="utf-8"
    )
    stub: Any = Stub(task)
    Stub.answered = 0
    with pytest.raises(ArgumentError, match="Parquet has one type a column"):
        predict_file(stub, reviews_run, tmp_path / "in.jsonl", tmp_path / "out.parquet", chunk=1)
    assert Stub.answered == 2


@pytest.mark.parametrize(
    ("name", "file", "out", "why"),
    [
        ("forecast", "a.csv", "b.csv", "forecast reads whole files"),
        ("classify", "a.json", "b.csv", "a.json is read whole"),
        ("classify", "a.txt.gz", "b.csv", "a.txt.gz is read whole"),
        ("classify", "a.parquet.gz", "b.csv", "a.parquet.gz is read whole"),
        ("classify", "a.csv.gz", "b.json", "b.json is written whole"),
        ("translate", "a.tsv.gz", "b.parquet", None),
    ],
)
def test_what_has_no_chunks_is_known_beforehand(name: str, file: str, out: str, why: str | None) -> None:
    said = why_whole(type("Task", (), {"name": name, "reads_files": name == "forecast"})(), Path(file), Path(out))
    assert (said is None) if why is None else said.startswith(why)
