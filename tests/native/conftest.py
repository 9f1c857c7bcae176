"""Each instruction set of this machine in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwise.native.library import instruction_set, instruction_sets, use


@pytest.fixture(params=instruction_sets())
def each_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = instruction_set()
    assert before is not None
    use(request.param)
    yield request.param
    use(before)
