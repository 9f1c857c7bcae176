"""A tiny run of each task, trained once: for a second on toy problems, so that its answers mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headwise import tasks
from headwise.errors import HeadwiseError
from headwise.server.interface import Interface
from headwise.server.interfaces import open_interface
from headwise.server.interfaces.answering import Answering
from headwise.tasks.columns import Row
from tests.tasks import problems

ONCE: dict[str, Any] = {"epochs": 1, "monitor_every": 0, "dropout": 0.0}
SCRATCH: dict[str, Any] = {"model": "scratch", "dim": 16, "layers": 1, "heads": 2, "vocab_size": 150, **ONCE}
WRITER: dict[str, Any] = {"dim": 16, "layers": 1, "heads": 2, "ffn_dim": 16, "vocab_size": 280, **ONCE}
LANGUAGE: dict[str, Any] = {"dim": 16, "layers": 1, "heads": 2, "vocab_size": 300, "block": 16, **ONCE}
MATCH: dict[str, Any] = {"dim": 16, "image_layers": 1, "text_layers": 1, "heads": 2, "shared_dim": 8, **ONCE}
MATCH |= {"vocab_size": 200, "image_size": 8, "patch_size": 4, "batch_size": 16}
FORECAST: dict[str, Any] = {"context": 8, "horizon": 4, "patch_length": 4, "dim": 8, "heads": 2, "layers": 1, **ONCE}


def series(rows: int = 200, seed: int = 0) -> dict[str, list[Any]]:
    """Hours of a series x, and of y, which is like it at another scale."""
    x = problems.lagged(rows, lag=4, seed=seed)
    time = [f"2024-01-{1 + hour // 24:02d} {hour % 24:02d}:00" for hour in range(rows)]
    return {"time": time, "x": x.tolist(), "y": (2 * x + 5).tolist()}


def _classify(out: Path) -> None:
    tasks.Classify.fit(problems.marked(60), text="text", label="label", out=out, **SCRATCH)


def _pairs(out: Path) -> None:
    rows = problems.looked_up(60)
    tasks.Classify.fit(rows, text="text", text_pair="question", label="label", out=out, **SCRATCH)


def _answer(out: Path) -> None:
    tasks.Answer.fit(problems.squad(problems.spans(40)), out=out, **SCRATCH)


def _translate(out: Path) -> None:
    tasks.Translate.fit(problems.copied(40), out=out, **WRITER)


def _summarize(out: Path) -> None:
    rows = problems.copied(40)
    tasks.Summarize.fit(rows, source="source", target="target", out=out, sample=True, max_target_length=12, **WRITER)


def _reply(out: Path) -> None:
    rows = {"dialogue": ["hi\nho\nhe", "hm\nha"] * 10}
    tasks.Reply.fit(rows, dialogue="dialogue", out=out, max_target_length=12, **WRITER)


def _masked(out: Path) -> None:
    tasks.Language.fit(problems.twice(40), out=out, **LANGUAGE)


def _causal(out: Path) -> None:
    tasks.Language.fit(problems.twice(40), out=out, objective="causal", write=6, **LANGUAGE)


def _forecast(out: Path) -> None:
    tasks.Forecast.fit(series(), out=out, **FORECAST)


def _series(out: Path) -> None:
    """Two series, at different scales."""
    first, second = series(), series(seed=1)
    second["y"] = [100 * value for value in second["y"]]
    rows = {name: [*first[name], *second[name]] for name in first}
    rows["name"] = ["first"] * 200 + ["second"] * 200
    tasks.Forecast.fit(rows, series="name", out=out, quantiles=(), **FORECAST)


def _match(out: Path) -> None:
    images, captions, _ = problems.coloured_patches(16)
    tasks.Match.fit({"image": images, "text": captions}, out=out, **MATCH)


RUNS: dict[str, Callable[[Path], None]] = {
    "classify": _classify,
    "pairs": _pairs,
    "answer": _answer,
    "translate": _translate,
    "summarize": _summarize,
    "reply": _reply,
    "masked": _masked,
    "causal": _causal,
    "forecast": _forecast,
    "series": _series,
    "match": _match,
}


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run folder of a name in RUNS, trained when it is first asked for."""
    folder = tmp_path_factory.mktemp("interfaces")

    def find(name: str) -> Path:
        if not (folder / name).is_dir():
            RUNS[name](folder / name)
        return folder / name

    return find


@pytest.fixture(scope="session")
def opened(run_of: Callable[[str], Path]) -> Callable[[str], Answering[Any]]:
    """The interface of a name in RUNS, opened once."""
    found: dict[str, Answering[Any]] = {}

    def open_once(name: str) -> Answering[Any]:
        if name not in found:
            found[name] = open_interface(run_of(name))
        return found[name]

    return open_once


def asked(interface: Interface[Any], rows: Sequence[Row]) -> list[Any]:
    """The answers to rows of which none is invalid."""
    found = list(interface.answer([interface.read(row) for row in rows]))
    assert not any(isinstance(each, HeadwiseError) for each in found), found
    return found


@pytest.fixture(scope="session")
def bert_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of classify, of pairs, on a tiny BERT."""
    folder = tmp_path_factory.mktemp("berts")
    tasks.Language.fit(problems.twice(20), out=folder / "language", **LANGUAGE)
    options = {"text": "text", "text_pair": "question", "label": "label", **ONCE}
    tasks.Classify.fit(problems.looked_up(20), model=str(folder / "language"), out=folder / "pairs", **options)
    return folder / "pairs"
