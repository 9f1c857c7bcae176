"""What a training says of itself: few rows to choose by, a label not among them, a model that learned nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import ArgumentError
from headwise.tasks import Classify, Scores
from headwise.tasks.rows.tables import Data
from headwise.tasks.training.notes import ENOUGH, on_scores, on_validation

TINY: dict[str, Any] = {"model": "scratch", "dim": 16, "vocab_size": 100, "epochs": 1, "lr": 1e-30, "monitor_every": 0}
BOTH = (("accuracy", "max"), ("macro_f1", "max"))
ALWAYS = {"always 'b'": {"accuracy": 0.6, "macro_f1": 0.3}}


def rows(labels: str) -> Data:
    return Data("rows", {"label": [*labels]}, list(range(len(labels))))


def test_enough_rows_of_all_labels_need_no_note() -> None:
    assert on_validation(rows("aabb"), rows("ab" * 10), examples=ENOUGH, by="label") == ()


def test_few_rows_and_missing_labels_are_told() -> None:
    few, missing = on_validation(rows("aabbcd"), rows("aab"), examples=3, by="label")
    assert few == (
        "the validation part has only 3 rows, so its scores are mostly chance: give more rows, hold out more of them "
        "(validation_share), or give others (validation)"
    )
    assert missing == (
        "the validation part has no row with the label 'c' or 'd', so its scores say nothing of it: give more rows "
        "with it"
    )
    assert "only 1 row," in on_validation(rows("ab"), rows("a"), examples=1, by=None)[0]
    (many,) = on_validation(rows("abcdefgh"), rows("a" * 20), examples=20, by="label")
    assert "the label 'b' or 'c' or 'd' or 'e' or 'f' or 2 more, so" in many


def test_rows_without_a_label_of_the_training_data_cannot_choose_the_weights() -> None:
    expected = r"labels of the training data, 'a' or 'b', in the rows to validate on. Received: only 'c' and 'd'"
    with pytest.raises(ArgumentError, match=expected):
        on_validation(rows("aabb"), rows("cdc"), examples=3, by="label")
    table = {"text": ["a film"] * 13, "label": [*"aabbbbbbbbbbb"]}
    with pytest.raises(ArgumentError, match="Received: only 'x'"):
        Classify.fit(table, validation={"text": ["a"], "label": ["x"]}, **TINY)


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_labels_that_are_nearly_equal_are_told(capsys: pytest.CaptureFixture[str], share: float) -> None:
    table = {"text": ["a film", "no film", "one film"] * 4, "label": ["neg", "neg ", "pos"] * 4}
    Classify.fit(table, validation_share=share, **TINY)
    assert "note: 'neg' and 'neg ' count as different labels: " in capsys.readouterr().err


@pytest.mark.parametrize(("accuracy", "macro_f1", "said"), [(0.7, 0.3, 0), (0.5, 0.4, 0), (0.6, 0.3, 1), (0.5, 0.2, 1)])
def test_a_model_that_is_better_in_one_score_has_learned_something(accuracy: float, macro_f1: float, said: int) -> None:
    found = on_scores(Scores({"accuracy": accuracy, "macro_f1": macro_f1}, 30, ALWAYS), BOTH)
    assert len(found) == said
    if said:
        assert found[0] == (
            f"the model does not beat a trivial answer, always 'b': accuracy {accuracy} against 0.6. Give more rows, "
            "train longer (epochs), or look for mistakes in the data"
        )


def test_of_some_scores_less_is_better_and_others_do_not_count() -> None:
    scores = Scores({"mse": 2.0, "below_0.5": 0.9}, 30, {"last value": {"mse": 3.0}, "season": {"mse": 1.0}})
    (said,) = on_scores(scores, (("mse", "min"),))
    assert "a trivial answer, season: mse 2 against 1." in said
    assert on_scores(scores, ()) == ()
    assert on_scores(scores, (("perplexity", "min"),)) == ()


def test_they_are_said_once_and_kept_with_the_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {"text": ["a film"] * 13, "label": [*"aabbbbbbbbbbc"]}  # nothing to learn from, and lr is 0
    task = Classify.fit(table, out=tmp_path / "run", **TINY)
    lines = capsys.readouterr().err.splitlines()
    few, missing, *_, no_better = lines
    assert few.startswith("note: the validation part has only 2 rows, ")
    assert missing.startswith("note: the validation part has no row with the label 'c', ")
    assert no_better.startswith("note: the model does not beat a trivial answer, always 'b', the commonest in training")
    assert sum(line.startswith("note: ") for line in lines) == 3
    assert [f"note: {sentence}" for sentence in task.scores.notes] == [few, missing, no_better]
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["notes"] == list(task.scores.notes)


def test_a_run_with_enough_rows_that_learns_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    table = {"text": ["good", "bad"] * 50, "label": ["+", "-"] * 50}
    task = Classify.fit(table, **{**TINY, "lr": 1e-2, "epochs": 3, "dropout": 0.0, "validation_share": 0.2})
    assert (task.scores.values["accuracy"], task.scores.notes) == (1.0, ())
    assert "note: " not in capsys.readouterr().err
