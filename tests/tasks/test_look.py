"""`look` reads what `predict` reads: for every task the models get the same ids, pairs and long texts included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError
from headwise.tasks.answer import Answer
from headwise.tasks.classify import Classify
from headwise.tasks.forecast import Forecast
from headwise.tasks.kinds import BUILT_IN
from headwise.tasks.language import Language
from headwise.tasks.match import Match
from headwise.tasks.reply import Reply
from headwise.tasks.summarize import Summarize
from headwise.tasks.task import Task
from headwise.tasks.translate import Translate
from tests.tasks.problems import coloured_patches

LONG = "one two three four five six seven eight nine ten " * 3
SIGNS = "a [SEP] in a text [CLS] is text"
SMALL = {"dim": 16, "heads": 2, "vocab_size": 300, "dropout": 0.0}
ENCODER = {**SMALL, "model": "scratch", "layers": 1, "max_length": 16}
WRITER = {**SMALL, "layers": 1, "ffn_dim": 16, "max_source_length": 16, "max_target_length": 4}
TEXTS = [LONG, SIGNS, "short", "again"]
READS = {"text": TEXTS, "label": ["a", "b", "a", "b"]}
QUESTIONS = [
    {"question": text, "context": LONG * 3, "answer": "nine ten", "answer_start": LONG.index("nine")}
    for text in (SIGNS, "which?")
]
PAIRS = [("short", LONG), (LONG, "short"), (SIGNS, SIGNS), (LONG, LONG)]


def learn(kind: type[Task[Any]], rows: Any, **options: Any) -> Task[Any]:
    """A task before its first step."""
    chosen = kind.options_type(**options)
    torch.manual_seed(0)
    return kind.learn(kind.read(rows, chosen), chosen).eval()


def sources(**names: str) -> list[dict[str, str]]:
    return [dict.fromkeys(names.values(), text) for text in TEXTS]


def matching() -> Task[Any]:
    images, _, _ = coloured_patches(4)
    options = {"image_layers": 1, "text_layers": 1, "shared_dim": 16, "image_size": 8, "patch_size": 4}
    return learn(Match, {"image": images, "text": TEXTS}, **SMALL, **options, max_length=16)


def pictures() -> list[dict[str, Any]]:
    images, _, _ = coloured_patches(4)
    return [{"image": image, "text": text} for image, text in zip(images, TEXTS, strict=True)]


CASES: dict[str, tuple[Callable[[], Task[Any]], Callable[[], list[Any]]]] = {
    "classify": (lambda: learn(Classify, READS, **ENCODER), lambda: TEXTS),
    "classify pairs": (
        lambda: learn(Classify, {**READS, "second": TEXTS[::-1]}, **ENCODER, text_pair="second"),
        lambda: [*PAIRS, f"short [SEP] {LONG}"],
    ),
    "classify latent": (lambda: learn(Classify, READS, **{**ENCODER, "model": "latent", "latents": 4}), lambda: TEXTS),
    "answer": (
        lambda: learn(Answer, QUESTIONS, **ENCODER, question_length=4),
        lambda: [("which?", LONG), (SIGNS, SIGNS), f"which? [SEP] {LONG}"],
    ),
    "language masked": (
        lambda: learn(Language, TEXTS, **SMALL, layers=1, block=16),
        lambda: ["two [MASK] four", f"[MASK] {LONG}"],
    ),
    "language causal": (
        lambda: learn(Language, TEXTS, **SMALL, layers=1, block=16, objective="causal", write=2),
        lambda: TEXTS,
    ),
    "translate": (lambda: learn(Translate, sources(a="source", b="target"), **WRITER), lambda: TEXTS),
    "summarize": (lambda: learn(Summarize, sources(a="text", b="summary"), **WRITER), lambda: TEXTS),
    "reply": (lambda: learn(Reply, sources(a="message", b="reply"), **WRITER), lambda: TEXTS),
    "match": (matching, pictures),
}


def test_every_task_is_among_the_cases() -> None:
    assert {case.split()[0] for case in CASES} | {"forecast"} == set(BUILT_IN)


@pytest.mark.parametrize("case", CASES)
def test_look_reads_the_ids_that_predict_reads(case: str) -> None:
    make, inputs = CASES[case]
    task = make()
    for given in inputs():
        predicted = ids_read(task, lambda given=given: task.predict([given]))  # type: ignore[misc]
        looked = ids_read(task, lambda given=given: task.look([given]))  # type: ignore[misc]
        (seen,) = task.look([given])
        named = [list(tokens.ids) for each in (seen.source_tokens, seen.tokens) if each for tokens in each]
        shown = [ids for ids in named if ids[0] >= 0]  # patches of an image have no ids
        assert shown[0] in looked
        assert shown[0] in predicted  # of several windows, one is shown


def test_a_forecast_is_looked_at_with_the_context_that_it_is_made_from() -> None:
    options = {"context": 6, "horizon": 2, "patch_length": 2, "dim": 8, "heads": 2, "layers": 1}
    rows = {"x": [float(i % 5) for i in range(30)]}
    task = learn(Forecast, rows, **options)
    found: list[Tensor] = []
    task.model.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    task.predict(rows)
    task.look(rows)
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("case", ["classify", "classify pairs", "answer", "language causal", "translate"])
def test_an_empty_text_is_refused_as_the_server_refuses_it(case: str) -> None:
    task = CASES[case][0]()
    empty = ("text", " ") if case in ("classify pairs", "answer") else " "
    for act in (task.predict, task.look):
        with pytest.raises(ArgumentError, match=r"Received: an empty text|non-empty"):
            act([empty])


def ids_read(task: Task[Any], act: Callable[[], object]) -> list[list[int]]:
    """The ids of more than two tokens that embeddings of the model were given, row by row."""
    found: list[list[int]] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].ndim == 2:
            found.extend(row for row in inputs[0].tolist() if len(row) > 2)

    words = [module for name, module in task.model.named_modules() if is_of_words(name, module)]
    handles = [module.register_forward_pre_hook(keep) for module in words]
    try:
        act()
    finally:
        for handle in handles:
            handle.remove()
    return found


def is_of_words(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding) and not any(word in name for word in ("position", "type"))


def test_a_row_of_a_request_is_looked_at_as_it_is_answered() -> None:
    task = learn(Classify, {**READS, "second": TEXTS[::-1]}, **ENCODER, text_pair="second")
    assert isinstance(task, Classify)
    example = task.encode(task._inputs([(LONG, SIGNS)]), targets=False)[0]
    seen, _ = task.look_at(task.read_row({"text": LONG, "text_pair": SIGNS}))
    (tokens,) = seen.tokens
    assert list(tokens.ids) == example.ids
