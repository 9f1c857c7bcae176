"""Tasks as they are before their first step, tiny, with weights drawn at random: exported as well as trained ones."""

from __future__ import annotations

from typing import Any

import torch

from headwise.tasks.answer import Answer
from headwise.tasks.classify import Classify
from headwise.tasks.forecast import Forecast
from headwise.tasks.language import Language
from headwise.tasks.match import Match
from headwise.tasks.task import Task
from headwise.tasks.translate import Translate
from tests.tasks.problems import coloured_patches, copied, lagged, marked, spans, squad, twice

SMALL: dict[str, Any] = {"dim": 16, "heads": 2, "layers": 1, "monitor_every": 0}
SERIES = {"value": lagged(120, lag=8).tolist()}
PICTURES = dict(zip(("image", "text"), coloured_patches(8), strict=False))


def classifier(model: str = "scratch", **options: Any) -> Classify:
    given: dict[str, Any] = {"text": "text", "label": "label", "model": model, "latents": 4, **SMALL, **options}
    return made(Classify, marked(40), **given)


def answerer() -> Answer:
    return made(Answer, squad(spans(20)), model="scratch", **SMALL)


def masked() -> Language:
    return made(Language, twice(40), objective="masked", block=32, **SMALL)


def causal() -> Language:
    return made(Language, twice(40), objective="causal", block=32, **SMALL)


def forecaster(model: str = "patch") -> Forecast:
    return made(Forecast, SERIES, model=model, context=16, horizon=12, patch_length=4, **SMALL)


def matcher() -> Match:
    shape = {"dim": 16, "heads": 2, "image_layers": 1, "text_layers": 1, "shared_dim": 8, "fusion_layers": 1}
    return made(Match, PICTURES, image_size=8, patch_size=4, vocab_size=100, monitor_every=0, **shape)


def translator() -> Translate:
    return made(Translate, copied(40), source="source", target="target", **SMALL)


def made(kind: type[Task[Any]], rows: Any, **options: Any) -> Any:
    """A task of this kind, with the vocabulary, labels and scales of the rows."""
    torch.manual_seed(0)
    chosen = kind.options_type(**options)
    task = kind.learn(kind.read(rows, chosen), chosen)
    with torch.no_grad():
        for parameter in task.parameters():  # heads that begin with 0 would make all outputs alike
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return task.eval()
