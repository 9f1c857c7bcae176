"""The names of the packages for Keras."""

from __future__ import annotations

import pytest

from tests.test_package import DOCUMENTED, leaked


@pytest.mark.parametrize("package", [name for name in DOCUMENTED if name.startswith("headwise.keras")])
def test_a_documented_package_shows_its_public_names_alone(package: str) -> None:
    assert leaked(package) == []
