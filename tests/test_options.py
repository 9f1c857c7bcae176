"""Options of a call: what is true of each, whichever they are; and who does not know one refuses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headwise
from headwise import masks
from headwise.errors import RecordError
from headwise.native import attend
from headwise.options import OPTIONS
from headwise.parallel import Layout
from headwise.parallel.strategies import ring
from headwise.parallel.strategies.part import Part
from headwise.records import terms
from headwise.viewer.encoding import encode

# A value of every option that changes something.
VALUES: dict[str, Any] = {
    "bias": torch.linspace(-1, 1, 49).view(7, 7),
    "slopes": torch.tensor([0.5, 0.1]),
    "scale": 0.9,
    "softcap": 1.5,
    "sinks": torch.tensor([1.0, -1.0]),
    "dropout": 0.5,
}
Q = torch.linspace(-2, 2, 2 * 7 * 4).sin().view(1, 2, 7, 4)


def test_every_option_has_a_value_here() -> None:
    assert list(VALUES) == list(OPTIONS)


@pytest.mark.parametrize("name", [name for name in VALUES if name != "dropout"])
def test_a_small_call_does_not_forget_an_option(name: str) -> None:
    found = headwise.attention(Q, Q, Q, **{name: VALUES[name]})
    expected = headwise.attention(Q, Q, Q, **{name: VALUES[name]}, kernel="reference")
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, headwise.attention(Q, Q, Q))


def test_dropout_in_a_small_call() -> None:
    assert not torch.equal(headwise.attention(Q, Q, Q, dropout=0.5), headwise.attention(Q, Q, Q))


@pytest.mark.parametrize("name", [name for name in VALUES if name != "scale"])
def test_who_does_not_know_an_option_refuses_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As each new option is, before the native kernels, the page and the worksheets compute it."""
    _, record = headwise.attention(Q, Q, Q, mask=masks.causal(), record=True, **{name: VALUES[name]})
    expected = record.weights()
    for module in (attend, terms):
        monkeypatch.setattr(module, "OPTIONS", frozenset(VALUES) - {name})
    if attend.missing() is None:
        assert attend.refuse(record.call) == f"they have no {name}"
    torch.testing.assert_close(record.received(), expected.sum(2))  # tile by tile
    with pytest.raises(RecordError, match=rf"expected no options but .*\. Received: {name}"):
        terms.head_row(record, 0, 0, 3)
    with pytest.raises(RecordError, match=f"layer 3: .* Received: {name}"):
        list(encode({record: "layer 3"}))


@pytest.mark.skipif(attend.missing() is not None, reason="there are no native kernels here")
@pytest.mark.parametrize("name", [name for name in VALUES if name != "dropout"])
def test_rows_that_are_shared_have_every_option(name: str) -> None:
    """By a ring of one process, which needs no other."""
    layout = Layout(np.array([0, 7]), np.array([0]), 1, "in chunks")
    part = Part(Q, Q, Q, None, layout, layout, 0, None, {"kernel": "auto", "record": False, name: VALUES[name]})
    torch.testing.assert_close(
        ring.attend(part, headwise.attention), headwise.attention(Q, Q, Q, **{name: VALUES[name]})
    )


def test_a_ring_refuses_what_the_native_kernels_do_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "FEWEST", 1)
    layout = Layout(np.array([0, 7]), np.array([0]), 1, "in chunks")
    part = Part(Q, Q, Q, None, layout, layout, 0, None, {"kernel": "auto", "softcap": 1.5})
    monkeypatch.setattr(attend, "OPTIONS", frozenset(VALUES) - {"softcap"})
    assert ring.refuse(part, followed=False) == (attend.missing() or "they have no softcap")
