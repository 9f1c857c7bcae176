"""The first call of a module that gets its weights then."""

from __future__ import annotations

from typing import Any

from torch import nn

from headwise.doctor.calling.search import search
from headwise.doctor.calling.spec import Spec
from headwise.doctor.calling.trial import Trial, undisturbed


def first_call(
    module: nn.Module, *, spec: Spec | None = None, example: tuple[tuple[Any, ...], dict[str, Any]] | None = None
) -> None:
    """Call a module in the first way that works; that call is its last one. Raises DoctorError if none does."""
    with undisturbed(module):
        trial = Trial(module, spec or Spec(), example)
        way = search(trial)
        trial.run(way, trial.inputs(way, *trial.sizes(way)))
