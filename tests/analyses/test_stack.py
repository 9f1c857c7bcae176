"""What all analyses have in common: the precision that they compute in, and what they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import analyses, masks
from headwise.errors import DtypeError
from headwise.records import AttentionRecord, Seen, grouped
from tests.analyses.dense import tiny_records
from tests.largest import Largest

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


WEIGHT = torch.ones(4, 4, 64)
# The layers of a causal model, whole or one row of them.
BOUNDED: dict[str, Callable[[list[AttentionRecord]], object]] = {
    "rollout": lambda records: analyses.rollout(records, rows=200),
    "relevance": lambda records: analyses.relevance(records, rows=500),
    "cross_relevance": lambda records: analyses.cross_relevance(records, records, records, rows=500),
    "head_importance": analyses.head_importance,
    "value_norms": lambda records: analyses.value_norms(records[0], output_weight=WEIGHT),
    "norm_based": lambda records: analyses.norm_based(records[0], rows=3, output_weight=WEIGHT),
    "summed_norm_based": lambda records: analyses.summed_norm_based(records[0], rows=3, output_weight=WEIGHT),
    "pattern_scores": lambda records: analyses.pattern_scores(records, 256),
    "key_zero_rate": analyses.key_zero_rate,
    "compare": lambda records: analyses.compare(records[0], records[1]),
}


@pytest.mark.parametrize("mask", [pytest.param(None, marks=pytest.mark.slow), masks.causal()], ids=["full", "causal"])
@pytest.mark.parametrize("name", BOUNDED)
def test_nothing_of_the_size_of_a_matrix_is_made(name: str, mask: masks.Mask | None, small_blocks: None) -> None:
    records = tiny_records(2, 512, mask=mask)
    with Largest() as largest:
        BOUNDED[name](records)
    assert largest.bytes <= 2**16  # q is 2^15 bytes; one head's matrix is 2^20, and the vectors of all keys 2^19


@pytest.mark.parametrize("nothing", [[], slice(0, 0), slice(5, 9)], ids=str)
def test_an_empty_choice_gives_an_empty_dimension_as_in_the_record(nothing: Any) -> None:
    records = tiny_records(2, 5)
    record, weight = records[0], torch.ones(4, 4, 3)
    assert record.weights(rows=nothing).shape == (1, 4, 0, 5)
    assert analyses.rollout(records, rows=nothing).shape == (1, 0, 5)
    assert analyses.flow(records, rows=nothing).shape == (1, 0, 5)
    assert analyses.relevance(records, rows=nothing).shape == (1, 0, 5)
    assert analyses.cross_relevance(records, records, records, rows=nothing).shape == (1, 0, 5)
    for choice, shape in (("rows", (1, 4, 0, 5)), ("cols", (1, 4, 5, 0)), ("heads", (1, 0, 5, 5))):
        assert analyses.norm_based(record, **{choice: nothing}, output_weight=weight).shape == shape
    summed = analyses.summed_norm_based
    assert summed(record, rows=nothing, output_weight=weight).shape == (1, 0, 5)
    assert summed(record, cols=nothing, output_weight=weight).shape == (1, 5, 0)
    assert torch.equal(summed(record, heads=nothing, output_weight=weight), torch.zeros(1, 5, 5))


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


OF_ONE: dict[str, Callable[[Any], object]] = {
    "value_norms": analyses.value_norms,
    "norm_based": analyses.norm_based,
    "summed_norm_based": analyses.summed_norm_based,
    "grouped": lambda record: grouped(record, None, None),
}


@pytest.mark.parametrize("wrong", [Seen(tiny_records(1, 4)), tiny_records(1, 4), None, "layer"], ids=repr)
@pytest.mark.parametrize("name", OF_ONE)
def test_what_reads_one_record_says_so(name: str, wrong: Any) -> None:
    with pytest.raises(DtypeError) as error:
        OF_ONE[name](wrong)
    assert str(error.value) == (
        f"{name} needs one AttentionRecord. Received: record={type(wrong).__name__}. Choose a layer: seen[0]"
    )


OF_SEVERAL = [name for name in QUESTIONS if name not in OF_ONE]


@pytest.mark.parametrize("wrong", [None, 3, "layer", [3]], ids=repr)
@pytest.mark.parametrize("name", OF_SEVERAL)
def test_what_reads_several_records_says_so(name: str, wrong: Any) -> None:
    ask = getattr(analyses, name)
    count = {"cross_relevance": 3, "compare": 2}.get(name, 1)
    options = {"length": 2} if name == "pattern_scores" else {}
    with pytest.raises(DtypeError, match=r"AttentionRecords.*Received: records=.*Pass a Seen"):
        ask(*[wrong] * count, **options)
