"""`headwise predict`: texts in, answers out; rows of a file keep their columns, and files are whole or not there."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from headwise import tasks
from headwise.cli.predict import _asked, _predict_file, _print, _put_beside
from headwise.errors import ArgumentError
from headwise.tasks.rows.sources import Table, open_table
from headwise.tasks.rows.tables import Data, read_table
from headwise.tasks.rows.written import write_table

from .conftest import Run, refused


def test_a_text_is_answered_in_a_table(run: Run, reviews_run: Path) -> None:
    result = run("predict", reviews_run, "a good film", "no film")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].split()[:3] == ["input", "label", "probability"]
    (expected,) = tasks.load(reviews_run).predict(["no film"])
    assert lines[-1].split() == [
        "no",
        "film",
        expected["label"],
        *(f"{expected[name]:.4f}" for name in list(expected)[1:]),
    ]

    piped = run("predict", reviews_run, "-", stdin=b"a good film\n\nno film\n")
    assert piped.out == run("predict", reviews_run, "a good film", "no film").out


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_rows_keep_their_columns_and_their_order(run: Run, tmp_path: Path, reviews_run: Path, suffix: str) -> None:
    (tmp_path / "in.csv").write_text('id,sentence,label\n07,"a good, long film",?\n08,,?\n09,bad,?\n', encoding="utf-8")
    out = f"out{suffix}"
    result = run("predict", reviews_run, "--file", "in.csv", "--out", out)
    assert (result.code, result.out) == (0, f"Wrote {out} (3 rows).\n")
    assert result.err == "note: 1 row without a prediction: no text (line 3)\n"
    names = ["id", "sentence", "label", "predicted label", "probability", "probability of bad", "probability of good"]
    columns = read_table(tmp_path / out, {name: name for name in names}).columns
    assert columns["id"] == ["07", "08", "09"]
    assert columns["sentence"] == ["a good, long film", "", "bad"]
    first, last = tasks.load(reviews_run).predict(["a good, long film", "bad"])
    assert columns["predicted label"] == [first["label"], "" if suffix in (".csv", ".tsv") else None, last["label"]]
    assert float(columns["probability"][0]) == first["probability"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_predictions_of_another_model_are_kept(run: Run, tmp_path: Path, reviews_run: Path, suffix: str) -> None:
    names = ["sentence", "label", "predicted label", "probability", "probability of bad", "probability of good"]
    before = {name: [f"{name} {row}" for row in range(3)] for name in names}
    write_table(tmp_path / f"in{suffix}", before)
    assert run("predict", reviews_run, "--file", f"in{suffix}", "--out", f"out{suffix}").code == 0
    after = open_table(tmp_path / f"out{suffix}").columns
    assert {name: after[name] for name in names} == before
    own = ["label", "probability", "probability of bad", "probability of good"]
    assert list(after) == [*names, *(f"predicted {name}.2" for name in own)]
    expected = tasks.load(reviews_run).predict(before["sentence"])
    assert after["predicted label.2"] == [row["label"] for row in expected]
    assert [float(cell) for cell in after["predicted probability.2"]] == [row["probability"] for row in expected]


def test_the_column_that_is_printed_is_that_of_this_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Fill:
        reads_documents = False

        def file_columns(self, source: Any) -> tuple[str, ...]:
            return ("text",)

        def asked(self, source: Any) -> Data:
            return read_table(source, {"text": "text"})

        def cut(self, data: Data) -> dict[int, str]:
            return {}

        def predict(self, data: Data) -> list[dict[str, str]]:
            return [{"filled": text.upper()} for text in data.columns["text"]]

    (tmp_path / "in.json").write_text('[{"text": "a", "filled": "x", "predicted filled": "y"}]', encoding="utf-8")
    rows = _predict_file(Fill(), tmp_path / "in.json")  # type: ignore[arg-type]
    assert rows == [{"text": "a", "filled": "x", "predicted filled": "y", "predicted filled.2": "A"}]
    _print(rows, "filled")
    assert capsys.readouterr().out == "A\n"
    assert _put_beside({"input": "a"}, {"input": 1}) == {"input": "a", "predicted input": 1}


def test_a_file_without_out_is_printed(run: Run, tmp_path: Path, reviews_run: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"sentence": "a good film", "id": 1}) + "\n", encoding="utf-8")
    result = run("predict", reviews_run, "--file", "in.jsonl")
    assert result.out.splitlines()[-1].startswith(" a good film")
    assert result.out.splitlines()[-1].split()[3] == "1"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "Expected an INPUT or --file PATH. Received: neither."),
        ("'a text' --file in.csv", "Expected an INPUT or --file PATH. Received: both."),
        ("' '", "INPUT is empty"),
        ("-", "standard input is empty: expected one input per line"),
        ("'a text' --out out.xlsx", "expected a name that ends in .csv, .tsv, .jsonl, .json, .parquet"),
        ("'a text' --out none/out.csv", "the folder none does not exist"),
        ("--file in.csv --out in.csv", "--out in.csv: this is the input file. Choose another file"),
        ("--file no.csv", "no.csv: no such file"),
        ("--file in.csv", "in.csv: there is no column 'sentence'. The columns are: 'text'."),
        ("'a text' --context 'a text'", "--context: expected a task that reads two texts"),
    ],
)
def test_bad_input_is_one_line(run: Run, tmp_path: Path, reviews_run: Path, arguments: str, says: str) -> None:
    (tmp_path / "in.csv").write_text("text\na film\n", encoding="utf-8")
    refused(run("predict", reviews_run, *shlex.split(arguments)), says)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_lines_under_another_name_say_how_they_are_read(run: Run, tmp_path: Path, reviews_run: Path) -> None:
    lines = gzip.compress(b"a good film\na bad film\n")
    (tmp_path / "val.en.gz").write_bytes(lines)
    said = "Received: .en. If each of its lines is a text, rename it: val.en.txt.gz"
    refused(run("predict", reviews_run, "--file", "val.en.gz"), said)
    (tmp_path / "val.en.gz").rename(tmp_path / "val.en.txt.gz")
    assert run("predict", reviews_run, "--file", "val.en.txt.gz").code == 0


def test_another_encoding_is_refused_or_named(run: Run, tmp_path: Path, reviews_run: Path) -> None:
    (tmp_path / "in.csv").write_bytes("sentence\nun café\n".encode("cp1252"))
    for words, stdin in ((("--file", "in.csv"), b""), (("-",), b"un caf\xe9\n")):
        refused(run("predict", reviews_run, *words, stdin=stdin), "is not UTF-8", "--encoding cp1252")
        result = run("predict", reviews_run, *words, "--encoding", "cp1252", stdin=stdin)
        assert (result.code, "un café" in result.out) == (0, True)
    assert run("predict", reviews_run, "é").code == 0  # the encoding was that of one command


def test_what_is_no_run_is_one_line(run: Run, tmp_path: Path) -> None:
    for command in (("predict", "nowhere", "a text"), ("evaluate", "nowhere", "test.csv")):
        refused(run(*command), "nowhere is not there: expected a run folder")
    assert "is no run folder: there is no config.yaml in it" in run("predict", tmp_path, "a text").err


class Asked:
    """As much of a task as is asked how it reads texts."""

    def __init__(self, reads_pairs: bool) -> None:
        self.reads_pairs = reads_pairs


def test_two_texts_are_one_input(tmp_path: Path) -> None:
    (tmp_path / "context.txt").write_text("Ann has a cat.", encoding="utf-8")
    question = "What has Ann?"
    expected = [(question, "Ann has a cat.")]
    for context in ("Ann has a cat.", str(tmp_path / "context.txt")):
        assert _asked(Asked(True), [question], context) == expected  # type: ignore[arg-type]
    assert _asked(Asked(True), [f"{question} [SEP] Ann has a cat."], None) == expected  # type: ignore[arg-type]
    assert _asked(Asked(False), ["x [SEP] y"], None) == ["x [SEP] y"]  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r'expected "first \[SEP\] second" as INPUT, .* Received: \'x\''):
        _asked(Asked(True), ["x"], None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r'one "\[SEP\]" between them. Received: 3 texts, \'x \[SEP\] y \[SEP\] z'):
        _asked(Asked(True), ["x [SEP] y", "x [SEP] y [SEP] z"], None)  # type: ignore[arg-type]


def test_columns_of_a_file_without_header_are_counted(tmp_path: Path, reviews_run: Path) -> None:
    task = tasks.load(reviews_run)
    object.__setattr__(task.options, "text", "1")
    object.__setattr__(task.options, "label", "2")
    (tmp_path / "in.tsv").write_text("a good film\t1\nno film\t0\n", encoding="utf-8")
    rows = _predict_file(task, tmp_path / "in.tsv")
    assert [(row["1"], row["2"]) for row in rows] == [("a good film", "1"), ("no film", "0")]
    assert [row["label"] for row in rows] == [row["label"] for row in task.predict(["a good film", "no film"])]


# Files in chunks.


def test_what_is_stopped_says_how_to_go_on_and_goes_on(
    run: Run, tmp_path: Path, reviews_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwise.tasks.bulk.parts import Work

    (tmp_path / "in.csv").write_text("sentence\n" + "a good film\n" * 5, encoding="utf-8")
    command = ("predict", reviews_run, "--file", "in.csv", "--out", "out.csv", "--chunk", "2")
    do = Work.do

    def stopping(work: Work, number: int, *given: Any) -> None:
        if number == 1:
            raise KeyboardInterrupt
        do(work, number, *given)

    monkeypatch.setattr(Work, "do", stopping)
    stopped = run(*command)
    assert (stopped.code, stopped.out) == (130, "")
    assert stopped.err == ("headwise: interrupted; the same command resumes out.csv, --restart starts again\n")
    monkeypatch.setattr(Work, "do", do)
    refused(run(*command[:-1], "3"), "computed with --chunk 2")
    done = run(*command)
    assert (done.code, done.out) == (0, "Wrote out.csv (5 rows).\n")
    assert done.err == "note: 2 of the rows were finished before\n"
    assert len(read_table(tmp_path / "out.csv", {"label": "label"})) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("'a text' --chunk 2", "--chunk: only predictions from file to file use it"),
        ("--file in.csv --restart", "--restart: only predictions from file to file use it"),
        ("--file in.csv --out b.csv --workers 2", "--workers: only Ray uses it"),
        ("'a text' --engine ray", "--engine ray: expected a file to read and a file to write"),
        ("--file in.csv --out b.json --engine ray", "--engine ray: this file is not read in chunks"),
        ("--file in.json --out b.csv --chunk 2", "--chunk: this file is not read in chunks"),
        ("--file in.csv.gz --out b.csv --engine ray", "in.csv.gz: Ray workers cannot read"),
        ("--file in.csv --out b.csv --chunk 0", "0 is not in the range x>=1"),
    ],
)  # fmt: skip
def test_chunks_where_there_are_none_are_one_line(
    run: Run, tmp_path: Path, reviews_run: Path, arguments: str, says: str
) -> None:
    refused(run("predict", reviews_run, *shlex.split(arguments)), says)
    assert list(tmp_path.iterdir()) == []


def test_documents_of_a_text_file_are_rows(run: Run, tmp_path: Path) -> None:
    class Documents:
        reads_documents = True

        def file_columns(self, source: Any) -> tuple[str, ...]:
            return ()

        def asked(self, source: Any) -> Data:
            assert not isinstance(source, Table)
            return Data("d", {"text": ["a\nb", "c"]}, [1, 4], unit="line")

        def cut(self, data: Data) -> dict[int, str]:
            return {}

        def predict(self, data: Data) -> list[dict[str, str]]:
            return [{"filled": text.upper()} for text in data.columns["text"]]

    (tmp_path / "in.txt").write_text("a\nb\n\nc\n", encoding="utf-8")
    rows = _predict_file(Documents(), tmp_path / "in.txt")  # type: ignore[arg-type]
    assert rows == [{"text": "a\nb", "filled": "A\nB"}, {"text": "c", "filled": "C"}]
