"""`Answer`: it finds the answer by looking at the question, in any window, and gives it as the text has it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise import tasks
from headwise.errors import ArgumentError
from headwise.tasks.answer import Answer
from headwise.tasks.options.answer import AnswerOptions
from tests.tasks.problems import spans, squad

TINY: dict[str, Any] = {"model": "scratch", "dim": 32, "layers": 1, "heads": 2, "vocab_size": 200, "dropout": 0.0}
TINY |= {"monitor_every": 0, "batch_size": 16}
TEXT = "Café Müller opened in 1890, “the finest” of them.  It closed in 1914. Nobody knows why it did not open again."
QUESTIONS = [
    {"question": "When did it open?", "context": TEXT, "answer": "1890", "answer_start": 22},
    {"question": "What was it?", "context": TEXT, "answer": "“the finest” of them", "answer_start": 28},
]


def learn(rows: Any = QUESTIONS, **options: Any) -> Answer:
    """A task before its first step."""
    chosen = AnswerOptions(**{**TINY, **options})
    return Answer.learn(Answer.read(rows, chosen), chosen)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, Path]:
    folder = tmp_path_factory.mktemp("answer") / "run"
    rows, held = squad(spans(300)), squad(spans(30, seed=5))
    return Answer.fit(rows, validation=held, out=folder, epochs=5, lr=1e-2, **TINY), folder


def joined(row: dict[str, Any]) -> str:
    return f"{row['question']} [SEP] {row['context']}"


# --- It learns, by looking where the answer is ------------------------------------------------------------------------


def test_it_learns_to_find_the_word_that_is_asked_for(trained: tuple[Answer, Path]) -> None:
    task, _ = trained
    scores = task.evaluate(squad(spans(60, seed=1)))
    assert scores.values["exact_match"] >= 0.97
    assert scores.values["f1"] >= 0.97
    assert len(scores.baselines) == 2
    assert all(found["exact_match"] < 0.3 for found in scores.baselines.values())


def test_its_record_shows_that_question_and_answer_look_at_each_other(trained: tuple[Answer, Path]) -> None:
    task, _ = trained
    rows = spans(20, seed=3)
    seen_there = []
    for row, seen in zip(rows, task.look([joined(row) for row in rows]), strict=True):
        place = row["context"].split().index(row["answer"]) + 3  # behind [CLS] question [SEP]
        assert seen.tokens[0].labels[place] == seen.tokens[0].labels[1] == row["answer"]
        weights_HQK = seen[0].weights()[0]
        seen_there.append(float(torch.maximum(weights_HQK[:, place, 1], weights_HQK[:, 1, place]).max()))
    assert sum(each > 0.5 for each in seen_there) >= 15  # by chance it would be 1/12 of the weight


def test_the_run_folder_predicts_the_same(trained: tuple[Answer, Path]) -> None:
    task, folder = trained
    pairs = [(row["question"], row["context"]) for row in spans(10, seed=4)]
    assert tasks.load(folder).predict(pairs) == task.predict(pairs)


def test_a_pair_and_one_string_and_rows_are_the_same_question(trained: tuple[Answer, Path]) -> None:
    task, _ = trained
    (row,) = spans(1, seed=6)
    found = task.predict([(row["question"], row["context"])])
    assert task.predict(joined(row)) == found
    assert task.predict([{"question": row["question"], "context": row["context"]}]) == found
    assert found[0]["answer"] == row["answer"]
    assert found[0]["start"] == row["start"]
    assert found[0]["probability"] > 0.9


def test_an_answer_is_found_in_a_long_context(trained: tuple[Answer, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    task, _ = trained
    monkeypatch.setattr(Answer, "max_length", 12)  # 8 words of context at a time
    (row,) = spans(1, seed=7)
    context = "yak " * 40 + row["context"] + " yak" * 40
    (found,) = task.predict([(row["question"], context)])
    assert context[found["start"] :].startswith(row["answer"])
    assert found["start"] == 160 + row["start"]


# --- Windows and offsets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_length", "overlap"), [(40, 0), (45, 3), (60, 128), (384, 128)])
def test_every_answer_is_whole_in_a_window_and_maps_back_to_its_text(max_length: int, overlap: int) -> None:
    words = [(found.start(), found.end()) for found in re.finditer(r"\S+", TEXT)]
    answers = [
        TEXT[words[first][0] : words[last][1]]
        for first in range(len(words))
        for last in range(first, min(first + 4, len(words)))
    ]
    starts = [words[first][0] for first in range(len(words)) for _ in range(first, min(first + 4, len(words)))]
    rows = [
        {"question": "What?", "context": TEXT, "answer": answer, "answer_start": start}
        for answer, start in zip(answers, starts, strict=True)
    ]
    task = learn(rows, max_length=max_length, overlap=overlap)
    assert task.longest <= max_length - 10  # so they all fit
    have = dict.fromkeys(range(len(rows)), 0)
    for window in task.encode(Answer.read(rows, task.options)):
        assert len(window.ids) <= task.max_length
        if window.start:
            have[window.row] += 1
            low = window.offsets[window.start - window.context][0]
            high = window.offsets[window.end - window.context][1]
            assert (TEXT[low:high], low) == (answers[window.row], starts[window.row])
    assert min(have.values()) >= 1


def test_a_window_without_the_answer_points_at_cls() -> None:
    rows = [{"question": "What?", "context": TEXT, "answer": "Café", "answer_start": 0}]
    task = learn(rows, max_length=30, overlap=4)
    first, *others = task.encode(Answer.read(rows, task.options))
    assert first.start == first.context
    assert others
    assert all((window.start, window.end) == (0, 0) for window in others)


def test_only_cls_and_the_context_can_be_the_answer() -> None:
    task = learn().eval()
    windows = task.encode(Answer.read(QUESTIONS, task.options))
    batch = task.collate(windows)
    assert batch["in_context"].sum(1).tolist() == [len(window.offsets) for window in windows]
    assert all(batch["in_context"][i, window.context] for i, window in enumerate(windows))
    with torch.no_grad():
        starts_BS, ends_BS = task._log_probabilities(batch)
    allowed_BS = batch["in_context"].clone()
    allowed_BS[:, 0] = True
    for found in (starts_BS.exp(), ends_BS.exp()):
        assert float(found[~allowed_BS].sum()) == 0
        torch.testing.assert_close(found.sum(-1), torch.ones(len(found)))


# --- Questions without an answer --------------------------------------------------------------------------------------


def test_no_answer_is_said_only_where_training_had_some(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_of_it_at_cls(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        found_BS = torch.full(batch["input_ids"].shape, 0.1).log()
        found_BS[:, 0] = torch.tensor(0.5).log()
        return found_BS, found_BS

    none = {"question": "Who?", "context": TEXT, "answer": "", "answer_start": ""}
    for rows, answers in ((QUESTIONS, True), ([*QUESTIONS, none], False)):
        task = learn(rows)
        monkeypatch.setattr(task, "_log_probabilities", half_of_it_at_cls)
        (found,) = task.predict([("Who?", TEXT)])  # no answer 0.25, each span 0.01
        assert bool(found["answer"]) == answers
        assert (found["start"] is not None) == answers
        assert 0 < found["probability"] < 1


def test_nothing_but_questions_without_an_answer_is_refused() -> None:
    with pytest.raises(ArgumentError, match="expected questions with answers"):
        learn([{"question": "Who?", "context": TEXT, "answer": ""}] * 3)


def test_of_a_long_context_the_window_around_the_answer_is_looked_at(trained: tuple[Answer, Path]) -> None:
    task, _ = trained
    row = next(each for each in spans(20, seed=5) if each["answer"] not in each["context"].split()[:3])
    words = row["context"].split()
    long = " ".join([*(["none"] * 60), *words, *(["none"] * 60)])
    before = task.options
    task.options = replace(before, max_length=24)
    try:
        assert len(task.encode(task._inputs([(row["question"], long)]), targets=False)) > 5
        (seen,) = task.look([f"{row['question']} [SEP] {long}"])
    finally:
        task.options = before
    assert len(seen.tokens[0].labels) <= 24
    assert row["answer"] in seen.tokens[0].labels[3:]


# --- What it refuses and says -----------------------------------------------------------------------------------------


def test_what_is_no_pair_is_refused() -> None:
    task = learn()
    with pytest.raises(ArgumentError, match=r'expected "question \[SEP\] context"'):
        task.predict([("only one",)])
    with pytest.raises(ArgumentError, match=r'expected "question \[SEP\] context"'):
        task.look(["no separator"])
    with pytest.raises(ArgumentError, match="expected a non-empty question and context"):
        task.predict([("", "context")])


def test_a_long_question_is_cut_and_said() -> None:
    rows = [{**QUESTIONS[0], "question": "when " * 80}]
    task = learn(rows)
    (window,) = task.encode(Answer.read(rows, task.options))
    assert window.context == 64 + 2
    said = "1 row read in part: a question of more than 64 tokens, the rest was cut (row 0)"
    assert task.evaluate(rows).left_out == (said,)


def test_no_room_for_a_context_is_refused() -> None:
    task = learn(max_length=8)
    with pytest.raises(ArgumentError, match="expected room for a context"):
        task.predict([("one two three four five six", TEXT)])


def test_what_is_held_out_is_of_other_contexts() -> None:
    rows = [{**QUESTIONS[0], "context": f"{TEXT} {i % 5}"} for i in range(20)]
    options = AnswerOptions(**TINY, validation_share=0.2)
    training, held = Answer.split(Answer.read(rows, options), options)
    assert len(training) == 16
    assert len(held) == 4
    assert not set(training.columns["context"]) & set(held.columns["context"])
    with pytest.raises(ArgumentError, match="at least 2 different contexts"):
        Answer.split(Answer.read(QUESTIONS, options), options)
