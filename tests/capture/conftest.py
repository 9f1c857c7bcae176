"""What the tests of the watch share: Hugging Face keeps quiet, and nothing is left in place after a test."""

from __future__ import annotations

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
