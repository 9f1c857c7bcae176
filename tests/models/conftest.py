"""Real weights, real text."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

import pytest

from headwise.models.checkpoint import default_model


@pytest.fixture(scope="session")
def minilm() -> Path:
    return default_model()


@pytest.fixture(scope="session")
def paragraphs() -> list[str]:
    """100 paragraphs of Python's own manual, from all over it."""
    every = [p for topic in sorted(topics) for p in topics[topic].split("\n\n") if 100 <= len(p) <= 800]
    return every[:: len(every) // 100][:100]
