"""What the tests of the watch share: Hugging Face keeps quiet, and nothing is left in place after a test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import torch
import transformers
from torch.overrides import _get_current_function_mode_stack


@pytest.fixture(scope="session", autouse=True)
def _quiet() -> Iterator[None]:
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    registry = dict(transformers.AttentionInterface._global_mapping)
    yield
    assert transformers.AttentionInterface._global_mapping == registry
    assert _get_current_function_mode_stack() == []
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.fixture(autouse=True)
def no_running_loop() -> Iterator[None]:
    """Tests of pages leave the loop of their browser running in this thread, so that `asyncio.run` would refuse."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)
