"""What the tests of worksheets share: the cases, RoPE by exact angles, LibreOffice."""

from __future__ import annotations

import pytest

from headwise.nn.positions import Rope, Rope2D
from tests.libreoffice import libreoffice

from .cases import CASES, Case, exact_rope, exact_rope_2d

__all__ = ["libreoffice"]


@pytest.fixture
def _exact_rope(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules turn by float64 angles, as a spreadsheet does."""
    monkeypatch.setattr(Rope, "rotate", exact_rope)
    monkeypatch.setattr(Rope2D, "rotate", exact_rope_2d)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()
