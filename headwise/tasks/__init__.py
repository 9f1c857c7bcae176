"""Train, evaluate and use models with attention on your own data; one class per task.

    from headwise import tasks

    task = tasks.Classify.fit("reviews.csv", text="sentence", label="label", out="run")
    task.predict(["a warm, funny film"])
    tasks.load("run").evaluate("test.csv").values["accuracy"]

Names are imported on first use, because Lightning and its dependencies are heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headwise.errors import ArgumentError
from headwise.language import Sentence
from headwise.tasks.registered import BUILT_IN

if TYPE_CHECKING:  # for type checkers; at run time the names come from `registered.BUILT_IN`
    from headwise.tasks.answer import Answer as Answer
    from headwise.tasks.classify import Classify as Classify
    from headwise.tasks.forecast import Forecast as Forecast
    from headwise.tasks.kinds import load as load
    from headwise.tasks.language import Language as Language
    from headwise.tasks.match import Match as Match
    from headwise.tasks.reply import Reply as Reply
    from headwise.tasks.scores import Scores as Scores
    from headwise.tasks.summarize import Summarize as Summarize
    from headwise.tasks.task import Task as Task
    from headwise.tasks.translate import Translate as Translate

_WHERE = {
    **{word.capitalize(): f"headwise.tasks.{word}" for word in BUILT_IN},
    "Scores": "headwise.tasks.scores",
    "Task": "headwise.tasks.task",
    "load": "headwise.tasks.kinds",
}

__all__ = sorted(_WHERE)

_EXTRA = ("pytorch_lightning", "lightning_fabric", "datasets", "torchmetrics", "sacrebleu", "matplotlib", "yaml")


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'headwise.tasks' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_WHERE[name]), name)
    except ModuleNotFoundError as cause:
        if (cause.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise ArgumentError(
            Sentence('headwise.tasks needs {name}: pip install "headwise[train]"').format(name=cause.name)
        ) from cause
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
