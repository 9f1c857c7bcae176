"""headwise: attention for PyTorch. Build it, see it, check it, speed it up, ship it.

    import headwise
    from headwise import masks

    out = headwise.attention(q, k, v, mask=masks.causal() & masks.window(256, 0))
    print(headwise.plan(q, k, v, mask=masks.causal()))

    with headwise.watch(model) as seen:
        model(**inputs)
    headwise.view(seen)

    print(headwise.diagnose(MyAttention(64, heads=8)))

    task = headwise.tasks.Classify.fit("reviews.csv", text="sentence", label="label", out="run")

Names are imported on first use, so that `headwise --help` and shell completion need not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headwise import registry
from headwise.version import __version__

if TYPE_CHECKING:
    from headwise import (
        analyses,
        capture,
        doctor,
        edits,
        errors,
        experiments,
        keras,
        language,
        masks,
        models,
        nn,
        parallel,
        plot,
        tasks,
        testing,
        worksheet,
    )
    from headwise.capture.context import watch
    from headwise.doctor.diagnosis import diagnose
    from headwise.edits.context import edit
    from headwise.functional import attention, plan
    from headwise.models.bert import Bert
    from headwise.parallel import context_parallel, gather, shard
    from headwise.quantized import Int8
    from headwise.records.record import AttentionRecord
    from headwise.records.seen import Seen
    from headwise.records.storage import load
    from headwise.viewer.show import show
    from headwise.viewer.view import view

# Public names that are modules.
_MODULES = {
    "headwise.analyses",
    "headwise.capture",
    "headwise.doctor",
    "headwise.edits",
    "headwise.errors",
    "headwise.experiments",
    "headwise.keras",
    "headwise.language",
    "headwise.masks",
    "headwise.models",
    "headwise.nn",
    "headwise.parallel",
    "headwise.plot",
    "headwise.tasks",
    "headwise.testing",
    "headwise.worksheet",
}

# Public name -> the module that holds it.
_WHERE = {
    "attention": "headwise.functional",
    "plan": "headwise.functional",
    "watch": "headwise.capture.context",
    "diagnose": "headwise.doctor.diagnosis",
    "edit": "headwise.edits.context",
    "AttentionRecord": "headwise.records.record",
    "Int8": "headwise.quantized",
    "Seen": "headwise.records.seen",
    "load": "headwise.records.storage",
    "Bert": "headwise.models.bert",
    "context_parallel": "headwise.parallel.context",
    "gather": "headwise.parallel.context",
    "shard": "headwise.parallel.context",
    "show": "headwise.viewer.show",
    "view": "headwise.viewer.view",
}

__all__ = [
    "AttentionRecord",
    "Bert",
    "Int8",
    "Seen",
    "__version__",
    "analyses",
    "attention",
    "capture",
    "context_parallel",
    "diagnose",
    "doctor",
    "edit",
    "edits",
    "errors",
    "experiments",
    "gather",
    "keras",
    "language",
    "load",
    "masks",
    "models",
    "nn",
    "parallel",
    "plan",
    "plot",
    "shard",
    "show",
    "tasks",
    "testing",
    "view",
    "watch",
    "worksheet",
]


def __getattr__(name: str) -> Any:
    if f"headwise.{name}" in _MODULES:
        return importlib.import_module(f"headwise.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'headwise' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


# Functions of upper layers that lower layers need.


def _watch_keras(model: Any, **options: Any) -> Any:
    from headwise.keras.watching import watch

    return watch(model, **options)


def _keras_as_torch(layer: Any) -> Any:
    from headwise.keras.as_torch import as_torch

    return as_torch(layer)


def _unbuilt_keras(layer: Any, make: Any) -> Any:
    from headwise.keras.unbuilt import unbuilt

    return unbuilt(layer, make)


def _keras_layers(model: Any, run: Any) -> Any:
    from headwise.keras.watching.attention_layers import attention_layers

    return attention_layers(model, run)


def _in_notebook(shown: Any) -> tuple[registry.Bundle, registry.Bundle]:
    from headwise.viewer.notebook import mimebundle

    return mimebundle(shown)


registry.frameworks["keras"] = registry.Framework(_watch_keras, _keras_as_torch, _unbuilt_keras, _keras_layers)
registry.in_notebook = _in_notebook
