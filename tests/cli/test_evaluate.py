"""`headwise evaluate`: scores beside a baseline, confusions that a reader can recount, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from headwise import tasks
from headwise.cli.scores import confusion_table, number, print_scores, scores_table
from headwise.tasks.scores import Scores

from .conftest import Run

TEST = "sentence,label\na good film,good\na bad film,bad\nfine,good\n,bad\n"


def test_scores_stand_beside_the_baseline(run: Run, tmp_path: Path, reviews_run: Path) -> None:
    (tmp_path / "test.csv").write_text(TEST, encoding="utf-8")
    result = run("evaluate", reviews_run, "test.csv", "--json", "scores.json")
    assert (result.code, result.err) == (0, "headwise: wrote scores.json\n")
    lines = result.out.splitlines()
    assert lines[0] == "classify on test.csv, 3 rows"
    assert lines[-1] == "note: 1 row left out: no text (line 5)"
    labels = [row["label"] for row in tasks.load(reviews_run).predict(["a good film", "a bad film", "fine"])]
    right = sum(a == b for a, b in zip(labels, ["good", "bad", "good"], strict=True))
    assert next(line.split() for line in lines if "accuracy" in line)[1] == f"{right / 3:.4f}"
    written = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert written["rows"] == 3
    assert written["task"] == "classify"
    assert written["confusion"][1] == [labels[::2].count("bad"), labels[::2].count("good")]
    alone = run("evaluate", reviews_run, "test.csv", "--json", "-")
    assert json.loads(alone.out) == written


def test_a_column_that_is_not_there_is_one_line(run: Run, tmp_path: Path, reviews_run: Path) -> None:
    (tmp_path / "test.csv").write_text("sentence\na film\n", encoding="utf-8")
    result = run("evaluate", reviews_run, "test.csv")
    assert (result.code, result.out) == (2, "")
    assert "test.csv: there is no column 'label'. The columns are: 'sentence'." in result.err
    assert "this is the input file" in run("evaluate", reviews_run, "test.csv", "--json", "test.csv").err


def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    scores = Scores(
        {"accuracy": 0.75, "perplexity": 34.218, "MSE": 12345.6, "MASE": float("nan")},
        1234,
        {"always [b]a[/b]": {"accuracy": 0.5}},
        ("a", "a label that is far too long"),
        ((3, 1), (0, 4)),
    )
    console = Console(width=100, color_system=None)
    long = "validation" * 8  # a title is not wrapped to the table's width
    console.print(scores_table(scores, long))
    console.print(confusion_table(scores))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == f"{long}, 1,234 rows"
    assert lines[1].split() == ["score", "model", "always", "[b]a[/b]"]
    assert [line.split() for line in lines[3:7]] == [
        ["accuracy", "0.7500", "0.5000"],
        ["perplexity", "34.22"],
        ["MSE", "12,346"],
        ["MASE", "–"],
    ]
    assert [line.split()[-2:] for line in lines[-2:]] == [["3", "1"], ["0", "4"]]
    assert "a label that is far…" in lines[-1]
    assert number(-0.12345) == "-0.1235"


def test_many_labels_are_left_to_json(capsys: pytest.CaptureFixture[str]) -> None:
    labels = tuple(map(str, range(13)))
    print_scores(Scores({"accuracy": 1.0}, 13, {}, labels, tuple((0,) * 13 for _ in labels)), "validation")
    assert "13 labels: --json writes their confusion table." in capsys.readouterr().out
