"""Keras, and the backend that these tests are to run on, are there."""

from __future__ import annotations

import os

import pytest

from tests.keras.conftest import BACKEND, MISSING

pytestmark = pytest.mark.every_backend

if MISSING:
    message = f'headwise.keras is not tested: no {" and no ".join(MISSING)} here. pip install "headwise[keras]"'
    if os.environ.get("CI"):
        raise RuntimeError(message)
    pytest.skip(message, allow_module_level=True)


def test_keras_runs_on_the_backend_that_was_asked_for() -> None:
    import keras

    assert keras.backend.backend() == BACKEND
