"""What the tests of the analyses share: blocks so small that the rows are gone through a few at a time."""

from __future__ import annotations

import pytest

from headwise.analyses import stack
from headwise.records import record
from headwise.records.statistics import part


@pytest.fixture(params=[2**25, 2**9], ids=["one block", "many blocks"])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(stack, "BLOCK_BYTES", request.param)
    return int(request.param)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 KiB: next to them a matrix of 512 tokens, 1 MiB a head, stands out."""
    monkeypatch.setattr(stack, "BLOCK_BYTES", 2**14)
    monkeypatch.setattr(record, "BLOCK_CELLS", 2**12)
    monkeypatch.setattr(part, "CELLS", 2**12)
