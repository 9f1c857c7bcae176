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

__version__ = "0.1.0"

if TYPE_CHECKING:
    from headwise import analyses, capture, doctor, errors, keras, masks, models, nn, plot, tasks, testing, worksheet
    from headwise.capture.context import watch
    from headwise.doctor.diagnosis import diagnose
    from headwise.functional import attention, plan
    from headwise.models.bert import Bert
    from headwise.records.record import AttentionRecord
    from headwise.records.seen import Seen
    from headwise.records.storage import load
    from headwise.viewer.view import view

# Public name -> the module that holds it; None means that the name is itself a module.
_WHERE: dict[str, str | None] = {
    "attention": "headwise.functional",
    "plan": "headwise.functional",
    "watch": "headwise.capture.context",
    "diagnose": "headwise.doctor.diagnosis",
    "analyses": None,
    "capture": None,
    "doctor": None,
    "masks": None,
    "models": None,
    "nn": None,
    "errors": None,
    "keras": None,
    "plot": None,
    "tasks": None,
    "testing": None,
    "worksheet": None,
    "AttentionRecord": "headwise.records.record",
    "Seen": "headwise.records.seen",
    "load": "headwise.records.storage",
    "Bert": "headwise.models.bert",
    "view": "headwise.viewer.view",
}

__all__ = [
    "AttentionRecord",
    "Bert",
    "Seen",
    "__version__",
    "analyses",
    "attention",
    "capture",
    "diagnose",
    "doctor",
    "errors",
    "keras",
    "load",
    "masks",
    "models",
    "nn",
    "plan",
    "plot",
    "tasks",
    "testing",
    "view",
    "watch",
    "worksheet",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'headwise' has no attribute {name!r}")
    where = _WHERE[name]
    value = (
        importlib.import_module(f"headwise.{name}") if where is None else getattr(importlib.import_module(where), name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
