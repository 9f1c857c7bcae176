"""One server of all protocols for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.protocols.clients import Addresses, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Addresses]:
    with serving() as addresses:
        yield addresses
