"""Train, evaluate and use models with attention on your own data; one class per task.

    from headwise import tasks

    task = tasks.Classify.fit("reviews.csv", text="sentence", label="label", out="run")
    task.predict(["a warm, funny film"])
    tasks.load("run").evaluate("test.csv").values["accuracy"]

Names are imported on first use, because Lightning and its dependencies are heavy.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from headwise.errors import ArgumentError
from headwise.tasks.kinds import KINDS

if TYPE_CHECKING:
    from headwise.tasks.answer import Answer
    from headwise.tasks.classify import Classify
    from headwise.tasks.forecast import Forecast
    from headwise.tasks.language import Language
    from headwise.tasks.match import Match
    from headwise.tasks.reply import Reply
    from headwise.tasks.scores import Scores
    from headwise.tasks.summarize import Summarize
    from headwise.tasks.task import Task
    from headwise.tasks.training.run import load
    from headwise.tasks.translate import Translate

__all__ = [
    "Answer",
    "Classify",
    "Forecast",
    "Language",
    "Match",
    "Reply",
    "Scores",
    "Summarize",
    "Task",
    "Translate",
    "load",
]

# Name of the command, which is also the name of the module -> class of the task.
NAMES = {
    "classify": "Classify",
    "answer": "Answer",
    "translate": "Translate",
    "summarize": "Summarize",
    "reply": "Reply",
    "forecast": "Forecast",
    "match": "Match",
    "language": "Language",
}

_WHERE = {
    **{name: f"headwise.tasks.{word}" for word, name in NAMES.items()},
    "Scores": "headwise.tasks.scores",
    "Task": "headwise.tasks.task",
    "load": "headwise.tasks.training.run",
}

_EXTRA = ("pytorch_lightning", "lightning_fabric", "datasets", "torchmetrics", "sacrebleu", "matplotlib", "yaml")


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'headwise.tasks' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_WHERE[name]), name)
    except ModuleNotFoundError as cause:
        if (cause.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise ArgumentError(f'headwise.tasks needs {cause.name}: pip install "headwise[train]"') from cause
    globals()[name] = value
    return value


KINDS.update({word: functools.partial(__getattr__, name) for word, name in NAMES.items()})


def __dir__() -> list[str]:
    return sorted(__all__)
