"""`headwise.tasks`: names that come when they are used, and what is said where they cannot."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headwise import tasks
from headwise.errors import ArgumentError
from headwise.tasks import kinds


def test_public_names_are_pinned() -> None:
    names = "Answer Classify Forecast Language Match Reply Scores Summarize Task Translate load"
    assert tasks.__all__ == names.split()
    assert dir(tasks) == tasks.__all__


def test_each_word_of_the_command_is_the_name_of_its_task() -> None:
    for word in kinds.BUILT_IN:
        assert getattr(tasks, word.capitalize()).name == word
        assert kinds.find_class(word).options_type is kinds.find_options(word)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Clasify'"):
        tasks.Clasify  # type: ignore[attr-defined]  # noqa: B018


def test_importing_it_and_the_options_waits_for_nothing_heavy() -> None:
    program = "import sys, headwise.tasks, headwise.tasks.options.train; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"torch", "numpy", "pytorch_lightning", "datasets"}.isdisjoint(done.stdout.split())


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    monkeypatch.delitem(vars(tasks), "Task", raising=False)
    with pytest.raises(
        ArgumentError, match=r"headwise\.tasks needs the extra train\. Not installed: pytorch_lightning"
    ):
        tasks.Task  # noqa: B018
