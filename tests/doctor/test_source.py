"""The source of a class."""

from __future__ import annotations

import inspect

import pytest
from torch import nn

from headwise.doctor.lines import source_of


class Mine(nn.Module):
    """A class."""


def test_where_a_class_stands() -> None:
    found = source_of(Mine)
    assert (found.file, found.text) == (__file__, inspect.getsource(Mine))
    assert found.line == inspect.getsourcelines(Mine)[1]
    assert source_of(type("Made", (nn.Module,), {"__module__": "nowhere"})) is None
    assert source_of(int) is None


def test_it_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(nn.Module):
        pass

    first = source_of(Other)
    monkeypatch.setattr(inspect, "getsourcelines", None)
    assert source_of(Other) is first
