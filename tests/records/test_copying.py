"""Copies of records and pickles: they answer as the record does, and what was changed in place is not copied."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import headwise
from headwise import masks
from headwise.errors import RecordError
from headwise.records import AttentionRecord, Extras, Seen, Site
from tests.records.forging import assert_same

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}
MASKS = {
    "none": None,
    "causal": masks.causal(),
    "lengths": masks.lengths(torch.tensor([6, 4])),
    "tensor": masks.causal() & masks.from_tensor(torch.rand(6, 6) > 0.3),
}


@pytest.fixture(params=COPIES)
def copied(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return COPIES[request.param]


def record(mask: masks.Mask | None = None) -> AttentionRecord:
    """Of tensors that were changed in place before the call."""
    q, v = torch.randn(2, 2, 6, 4).add_(1), torch.randn(2, 2, 6, 4).add_(1).mul_(2)
    found = headwise.attention(q, q, v, mask=mask, sinks=torch.zeros(2).add_(1), record=True)[1]
    found.extras = Extras(v=v)
    found.site = Site("layer.0", 0, "self", False, 2, 2)
    return found


@pytest.mark.parametrize("mask", MASKS)
def test_a_copy_answers_as_the_record_does(copied: Callable[[Any], Any], mask: str) -> None:
    kept = record(MASKS[mask])
    found = copied(kept)
    assert_same(kept, found)
    assert torch.equal(found.v, kept.v)
    assert torch.equal(found.lse, kept.lse)
    assert torch.equal(copied(Seen([kept]))[0].weights(), kept.weights())


def test_a_copy_notices_changes_of_its_own(copied: Callable[[Any], Any]) -> None:
    found = copied(record(MASKS["lengths"]))
    found.q.add_(1)
    with pytest.raises(RecordError, match=r"^q .*was changed in place"):
        found.weights()
    found = copied(record())
    found.v.add_(1)
    with pytest.raises(RecordError, match="values of this record were changed in place"):
        _ = found.v


def test_what_was_changed_in_place_is_not_copied(copied: Callable[[Any], Any]) -> None:
    kept = record()
    kept.q.add_(1)
    with pytest.raises(RecordError, match=r"^q .*was changed in place"):
        copied(kept)
    kept = record()
    kept.v.add_(1)
    with pytest.raises(RecordError, match="values of this record were changed in place"):
        copied(kept.extras)
