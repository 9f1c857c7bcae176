"""What all analyses have in common: the precision that they compute in, and what they are asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headwise import analyses
from headwise.records import AttentionRecord
from tests.analyses.dense import tiny_records

QUESTIONS: dict[str, Callable[[list[AttentionRecord]], Tensor]] = {
    "rollout": analyses.rollout,
    "flow": lambda records: analyses.flow(records, rows=0),
    "relevance": analyses.relevance,
    "cross_relevance": lambda records: analyses.cross_relevance(records, records, records),
    "head_importance": analyses.head_importance,
    "value_norms": lambda records: analyses.value_norms(records[0], output_weight=torch.ones(4, 4, 3)),
    "norm_based": lambda records: analyses.norm_based(records[0], output_weight=torch.ones(4, 4, 3)),
    "summed_norm_based": lambda records: analyses.summed_norm_based(records[0], output_weight=torch.ones(4, 4, 3)),
    "pattern_scores": lambda records: analyses.pattern_scores(records, 3).induction,
    "key_zero_rate": lambda records: analyses.key_zero_rate(records),
    "compare": lambda records: analyses.compare(records[0], records[1]).divergence,
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_autocast_does_not_lower_the_precision(name: str) -> None:
    records = tiny_records(2, 8)
    expected = QUESTIONS[name](records)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = QUESTIONS[name](tiny_copy(records))
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def tiny_copy(records: list[AttentionRecord]) -> list[AttentionRecord]:
    """The same records without what they have worked out already."""
    found = []
    for record in records:
        found.append(AttentionRecord(record._call))
        found[-1].extras = record.extras
    return found


def test_what_is_exported() -> None:
    assert set(analyses.__all__) == {*QUESTIONS, "Comparison", "PatternScores", "repeated_block"}
    assert all(hasattr(analyses, name) for name in analyses.__all__)
