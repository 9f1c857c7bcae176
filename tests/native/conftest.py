"""Each instruction set of this machine in turn; those between the first two and the last are slow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwise.native.library import instruction_set, instruction_sets, use

SETS = instruction_sets()


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow if name in SETS[2:-1] else ()) for name in SETS])
def each_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = instruction_set()
    assert before is not None
    use(request.param)
    yield request.param
    use(before)
