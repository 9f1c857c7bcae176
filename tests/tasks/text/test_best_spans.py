"""The best span of several windows, by hand."""

from __future__ import annotations

from math import log

import pytest
import torch

from headwise.tasks.text.best_spans import BestSpans

OFFSETS = [(0, 3), (4, 7), (8, 11)]


def logs(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).log()


def test_the_best_span_of_one_window() -> None:
    found = BestSpans(may_be_none=False)
    found.add(logs(0.5, 0.3, 0.1), logs(0.1, 0.2, 0.6), log(0.01), OFFSETS, longest=3)
    # Spans: 0-0 .05, 0-1 .1, 0-2 .3, 1-1 .06, 1-2 .18, 2-2 .06: .75 in all.
    span, probability = found.best()
    assert span == (0, 11)
    assert probability == pytest.approx(0.3 / 0.75, rel=1e-5)


def test_a_span_ends_behind_its_beginning_and_is_not_too_long() -> None:
    found = BestSpans(may_be_none=False)
    found.add(logs(0.1, 0.1, 0.8), logs(0.8, 0.1, 0.1), log(0.01), OFFSETS, longest=2)
    # 0-0 .08, 0-1 .01, 1-1 .01, 1-2 .01, 2-2 .08; not 2-0 .64, nor 0-2.
    span, probability = found.best()
    assert span in {(0, 3), (8, 11)}
    assert probability == pytest.approx(0.08 / 0.19, rel=1e-5)


def test_windows_are_weighed_against_each_other_and_a_span_in_both_has_both_weights() -> None:
    found = BestSpans(may_be_none=False)
    found.add(logs(0.2, 0.5), logs(0.2, 0.5), log(0.09), OFFSETS[:2], longest=1)  # .04 and .25
    found.add(logs(0.5, 0.6), logs(0.5, 0.6), log(0.01), OFFSETS[1:], longest=1)  # .25 and .36
    span, probability = found.best()
    assert span == (4, 7)
    assert probability == pytest.approx(0.5 / 0.9, rel=1e-5)


def test_no_answer_is_as_probable_as_in_the_window_that_is_surest_of_one() -> None:
    for none, best in ((0.5, (0, 0)), (0.1, (0, 3))):
        found = BestSpans(may_be_none=True)
        found.add(logs(0.6), logs(0.6), log(none), OFFSETS[:1], longest=1)  # .36
        found.add(logs(0.1), logs(0.1), log(0.9), OFFSETS[2:], longest=1)  # .01
        span, probability = found.best()
        assert span == best
        assert probability == pytest.approx((none if best == (0, 0) else 0.36) / (none + 0.37), rel=1e-5)


def test_without_a_token_there_is_no_answer() -> None:
    found = BestSpans(may_be_none=False)
    found.add(logs(), logs(), log(1.0), [], longest=1)
    assert found.best() == ((0, 0), 0.0)
