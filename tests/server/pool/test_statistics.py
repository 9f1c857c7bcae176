"""Histograms as Prometheus has them."""

from __future__ import annotations

from headwise.server.pool.statistics import Histogram, ModelStatistics, Statistics


def test_a_value_on_a_bound_is_below_it() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    for value in (0.5, 1.0, 1.5, 4.0, 5.0, 100.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 2]
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 3), ("4.0", 4), ("+Inf", 6)]
    assert (histogram.count, histogram.total) == (6, 112.0)


def test_outcomes_add_up_and_models_are_told_apart_by_version() -> None:
    statistics = Statistics()
    statistics.of("m", "1").ended("ok")
    statistics.of("m", "1").ended("ok", 3)
    statistics.of("m", "2").ended("busy", 2)
    assert statistics.models[("m", "1")].outcomes == {"ok": 4}
    assert statistics.models[("m", "2")].outcomes == {"busy": 2}
    assert isinstance(statistics.of("n", "1"), ModelStatistics)
