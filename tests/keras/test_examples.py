"""The examples of Keras run on each backend, and learn what they say."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("one_thread")

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("keras_*.py")), ids=lambda path: path.stem)
def test_examples_are_short(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert f"python examples/{example.name}" in text
    assert f"def test_{example.stem}(" in Path(__file__).read_text(encoding="utf-8")


def test_keras_text_classifier(capsys: pytest.CaptureFixture[str]) -> None:
    found = run("keras_text_classifier")
    assert found["accuracy"] > 0.85  # 0.5 is guessing
    assert all(word in text for word, text in zip(found["strongest"], found["texts"], strict=False))  # and no padding
    np.testing.assert_array_equal(found["attended"].transpose(0, 3, 1, 2)[~found["real"]], 0.0)
    assert f"most attention to “{found['strongest'][0]}”: " in capsys.readouterr().out


def test_keras_forecaster() -> None:
    errors = run("keras_forecaster")["errors"]
    assert 0.09 < errors["the model"] < 0.16
    assert errors["the model"] < 0.7 * min(errors["as the hour before"], errors["as a day ago"])


@pytest.mark.slow
def test_keras_text_image() -> None:
    found = run("keras_text_image")
    accuracy = found["accuracy"]
    assert accuracy["both"] > 0.9
    assert max(accuracy["text"], accuracy["image"]) < 0.65
    assert found["looks"] > 0.8
