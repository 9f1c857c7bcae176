"""What bad input gets, from the command: one line that says what to do, code 2, and nothing half-written."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwise.files import SUMS
from tests.cli.conftest import Run
from tests.tasks import problems

QUICK = ("--model", "scratch", "--dim", "8", "--heads", "2", "--epochs", "1", "--batch-size", "8")


def write_csv(name: str, columns: dict[str, list]) -> Path:
    """No cell here needs quotes."""
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path = Path(name)
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def reviews(rows: int = 24, **changes: list) -> Path:
    found = problems.marked(rows)
    return write_csv("reviews.csv", {"sentence": found["text"], "label": found["label"], **changes})


def hours(count: int) -> list[str]:
    return [f"2026-01-{1 + hour // 24:02} {hour % 24:02}:00:00" for hour in range(count)]


def series(count: int = 200, **changes: list) -> Path:
    values = problems.lagged(count, lag=12).round(4).tolist()
    return write_csv("series.csv", {"date": hours(count), "OT": values, **changes})


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """Runs a command that has to be refused; gives the sentence, before which it may only say what it has read."""

    def refused(*words: str | Path) -> str:
        here = Path.cwd()
        before = {path: path.read_bytes() if path.is_file() else None for path in here.rglob("*")}
        result = run(*words)
        assert result.code == 2, result
        assert result.out == ""
        *said, sentence = result.err.splitlines()
        assert all(re.fullmatch(r"[\w.]+: \d+ rows?|note: .*", line) for line in said), result.err
        assert sentence.startswith("headwise: "), result.err
        after = {path: path.read_bytes() if path.is_file() else None for path in here.rglob("*")}
        assert after == before
        return sentence

    return refused


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the labels ant, bee, cat and dog."""
    from headwise import tasks

    folder = tmp_path_factory.mktemp("runs") / "classifier"
    tasks.Classify.fit(problems.marked(24), out=folder, model="scratch", dim=8, heads=2, epochs=1)
    return folder


def test_texts_that_are_read_only_in_part_are_counted_and_listed(run: Run, classifier: Path) -> None:
    long = "ant " * 511
    path = write_csv("test.csv", {"text": ["ant", long, "bee", long]})
    said = "note: 2 rows read in part: more than 512 tokens, the rest was cut (lines 3, 5)\n"
    assert run("predict", classifier, "--file", path, "--out", "out.csv", "--chunk", "2").err == said
    assert said in run("predict", classifier, "--file", path).err
    printed = run("predict", classifier, "ant", long)
    assert said.replace("2 rows", "1 row").replace("(lines 3, 5)", "(input 2)") in printed.err
    assert 50 < printed.out.count("ant ") < 80  # the cell is shortened


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--text", "label"], "label: expected another column than that of text. Received: 'label' for both"),
        (["--text", "sentence", "--text-pair", "sentence"], "pair: expected another column than that of text"),
        (["--text", "sentence", "--lr", "0"], "--lr: expected more than 0. Received: lr=0.0"),
        (["--text", "sentence", "--heads", "3"], "--dim: expected an even multiple of heads=3. Received: dim=8"),
        (["--text", "sentence", "--dim", "10000000"], "(1,200,000 GB at once). Received: dim=10000000, heads=2."),
        (["--text", "sentence", "--lerning-rate", "1"], "No such option '--lerning-rate'. Did you mean '--lr'?"),
    ],
)
def test_options_that_cannot_be_are_refused(refused: Callable[..., str], words: list[str], said: str) -> None:
    assert said in refused("train", "classify", reviews(), *QUICK, *words)


def test_rows_left_out_are_said_before_what_is_wrong_with_the_rest(run: Run) -> None:
    rows = [{"sentence": f"word {row}", "label": "z" if row < 18 else float("nan")} for row in range(20)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = run("train", "classify", "rows.jsonl", "--text", "sentence", *QUICK)
    assert "note: 2 rows left out: no label (lines 19, 20)\nheadwise: rows.jsonl: expected at least two" in result.err


def test_a_share_that_holds_out_most_rows_is_noted(run: Run) -> None:
    path = reviews(label=["ant", "bee"] * 12)
    result = run("train", "classify", path, "--text", "sentence", *QUICK, "--validation-share", "0.9")
    assert "note: only 2 rows are learned from, and 22 are held out" in result.err


def test_a_column_that_is_there_twice_is_noted(run: Run, classifier: Path) -> None:
    Path("test.csv").write_text("text,label,text\nant,ant,x\nbee,bee,y\n")
    said = "note: column 'text' is there more than once: the later one is called 'text.2'\n"
    assert run("predict", classifier, "--file", "test.csv", "--out", "out.csv").err == said
    assert said in run("predict", classifier, "--file", "test.csv").err
    assert said in run("evaluate", classifier, "test.csv").out


def test_a_text_file_has_the_column_that_is_asked_for(run: Run, classifier: Path, tmp_path: Path) -> None:
    classifier = Path(shutil.copytree(classifier, tmp_path / "run"))
    config = classifier / "config.yaml"
    config.write_text(config.read_text().replace("  text: text\n", "  text: sentence\n"))
    (classifier / SUMS).unlink()
    Path("notes.txt").write_text("ant\n\nbee\n")
    result = run("predict", classifier, "--file", "notes.txt", "--out", "out.csv")
    assert result.err == "note: 1 row without a prediction: no text (line 2)\n"
    assert len(Path("out.csv").read_text().splitlines()) == 4


@pytest.mark.parametrize("wrong", [5, None])
def test_an_input_that_is_no_text_is_an_argument_error(classifier: Path, wrong: object) -> None:
    from headwise import tasks
    from headwise.errors import ArgumentError

    with pytest.raises(ArgumentError, match="expected a text"):
        tasks.load(classifier).predict(["a text", wrong])


# Series.

FORECAST = ("--context", "48", "--horizon", "12", "--patch-length", "12", "--dim", "8", "--heads", "2", "--epochs", "1")


# Runs.


def test_a_run_of_another_task_is_refused(refused: Callable[..., str], classifier: Path) -> None:
    said = refused("train", "forecast", series(), "--out", classifier, "--resume", *FORECAST)
    assert "'classify'" in said
    assert "'forecast'" in said


def test_a_folder_that_holds_a_run_is_not_written_over(refused: Callable[..., str], classifier: Path) -> None:
    before = {path: path.read_bytes() for path in classifier.rglob("*") if path.is_file()}
    said = refused("train", "classify", "nowhere.csv", "--text", "sentence", "--out", classifier, *QUICK)
    assert "--resume" in said  # that is seen before the data are read
    assert before == {path: path.read_bytes() for path in classifier.rglob("*") if path.is_file()}


@pytest.fixture
def full_disk() -> Iterator[Callable[[int], None]]:
    """Lets no file grow beyond so many bytes: the write fails in the kernel, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_at_the_first_save_is_said_in_a_sentence(run: Run, full_disk: Callable[[int], None]) -> None:
    path = reviews()
    full_disk(1000)
    result = run("train", "classify", path, "--text", "sentence", "--out", "run", *QUICK, "--monitor-every", "0")
    full_disk(resource.RLIM_INFINITY)
    assert result.code == 2
    assert result.err.splitlines()[-1].startswith("headwise: cannot write ")
    assert not [each for each in Path("run").rglob("*") if each.name.endswith(".part")]
