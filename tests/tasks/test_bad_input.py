"""What bad input gets, from the command: one line that says what to do, code 2, and nothing half-written."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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


def test_answers_that_are_all_elsewhere_are_refused(refused: Callable[..., str]) -> None:
    given = problems.squad([{**row, "answer": "yak"} for row in problems.spans(4)])
    Path("squad.json").write_text(json.dumps(given))
    assert "no row can be used" in refused("train", "answer", "squad.json", *QUICK)


# Series.

FORECAST = ("--context", "48", "--horizon", "12", "--patch-length", "12", "--dim", "8", "--heads", "2", "--epochs", "1")


def test_timestamps_out_of_order_are_refused_or_sorted_when_asked(refused: Callable[..., str], run: Run) -> None:
    times = hours(200)
    times[7], times[8] = times[8], times[7]
    said = refused("train", "forecast", series(date=times), *FORECAST)
    assert "out of order" in said
    assert "--sort" in said
    assert run("train", "forecast", "series.csv", "--sort", "--out", "run", *FORECAST).code == 0


# Runs.


def test_a_run_of_another_task_is_refused(refused: Callable[..., str], classifier: Path) -> None:
    said = refused("train", "forecast", series(), "--out", classifier, "--resume", *FORECAST)
    assert "'classify'" in said
    assert "'forecast'" in said


def test_a_folder_without_a_run_is_refused(refused: Callable[..., str]) -> None:
    Path("empty").mkdir()
    assert "empty" in refused("view", "empty", "a text")


def test_damaged_weights_are_refused(refused: Callable[..., str], classifier: Path) -> None:
    damaged = Path("damaged")
    damaged.mkdir()
    for file in classifier.iterdir():
        if file.is_file():
            (damaged / file.name).write_bytes(file.read_bytes()[: 200 if file.suffix == ".safetensors" else None])
    assert "weights.safetensors" in refused("evaluate", damaged, reviews())


def test_a_loss_that_becomes_nan_says_at_which_batch(run: Run) -> None:
    wild = ("--lr", "1e30", "--clip", "0", "--warmup", "0", "--schedule", "constant")
    result = run("train", "classify", reviews(), "--text", "sentence", "--out", "run", *QUICK, *wild)
    assert result.code == 2
    sentence = result.err.splitlines()[-1]
    assert sentence.startswith("headwise: the loss became NaN at batch 2 of epoch 1")
    assert "try a lower lr" in sentence


@pytest.fixture
def full_disk() -> Iterator[Callable[[int], None]]:
    """Lets no file grow beyond so many bytes: the write fails in the kernel, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_old_checkpoint_as_it_was(run: Run, full_disk: Callable[[int], None]) -> None:
    words = ("train", "classify", reviews(), "--text", "sentence", "--out", "run", *QUICK, "--monitor-every", "0")
    assert run(*words, "--epochs", "2", "--time-limit", "0").code == 0  # stopped, and saved
    before = {path.name: path.read_bytes() for path in Path("run").iterdir() if path.is_file()}
    assert "last.ckpt" in before
    full_disk(20_000)
    result = run(*words, "--epochs", "2", "--time-limit", "10", "--resume")
    full_disk(resource.RLIM_INFINITY)
    assert result.code == 2
    said = result.err.splitlines()[-1]
    assert said.startswith("headwise: cannot write run/")
    assert "intact" in said
    after = {path.name: path.read_bytes() for path in Path("run").iterdir() if path.is_file()}
    assert {name: after[name] for name in ("last.ckpt", "config.yaml")} == {
        name: before[name] for name in ("last.ckpt", "config.yaml")
    }
    assert not [name for name in after if name.endswith(".part")]
    assert run(*words, "--epochs", "2", "--time-limit", "10", "--resume").code == 0


def test_a_full_disk_at_the_first_save_is_said_in_a_sentence(run: Run, full_disk: Callable[[int], None]) -> None:
    path = reviews()
    full_disk(1000)
    result = run("train", "classify", path, "--text", "sentence", "--out", "run", *QUICK, "--monitor-every", "0")
    full_disk(resource.RLIM_INFINITY)
    assert result.code == 2
    assert result.err.splitlines()[-1].startswith("headwise: cannot write ")
    assert not [each for each in Path("run").rglob("*") if each.name.endswith(".part")]
