"""Kernels measured in turns, and what is made of their times. No test looks at how long anything takes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from headwise import masks
from headwise.call import AttentionCall, make_call
from headwise.kernels import measure
from headwise.kernels.measure import Contest, contest, count_flops, take_turns


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setattr(measure, "PRODUCT", 32)


def call(mask: masks.Mask | None = None, *, length: int = 32, trains: bool = False) -> AttentionCall:
    q, k, v = (torch.randn(2, heads, length, 8, requires_grad=trains) for heads in (4, 2, 2))
    return make_call(q, k, v, mask=mask)


def test_contestants_take_turns() -> None:
    turns: list[str] = []
    contestants = {name: lambda name=name: turns.append(name) for name in "AB"}  # type: ignore[misc]
    times = take_turns(contestants, 3, turn=0.0)
    assert "".join(turns) == "AABB" + "ABABAB"  # the first turn does not count
    assert {name: len(seconds) for name, seconds in times.items()} == {"A": 3, "B": 3}
    assert len(take_turns({"A": lambda: None}, 1000, seconds=0.0)["A"]) == 1


def test_what_is_quick_runs_several_times_in_a_turn() -> None:
    turns: list[str] = []
    (seconds,) = take_turns({"A": lambda: turns.append("A")}, 1)["A"]
    assert len(turns) > 10
    assert seconds < 1e-3


def test_ratios_and_shares_by_hand() -> None:
    seconds = {"native": [1.0, 2.0, 4.0], "sdpa": [3.0, 2.0, 8.0]}
    found = Contest("native", seconds, product=[100.0, 100.0, 50.0], flops=80.0, reasons={})
    assert found.times_chosen("sdpa") == (2.0, 1.0, 3.0)
    assert found.times_chosen("native") == (1.0, 1.0, 1.0)
    assert found.share("native") == 0.4  # the median of 80%, 40% and 40%


def test_unrest_is_of_the_least_steady_by_hand() -> None:
    seconds = {"native": [1.0, 1.2, 1.1], "sdpa": [3.0, 3.0, 90.0]}  # one slow round of three is no matter
    found = Contest("native", seconds, product=[100.0, 5.0, 4.0], flops=80.0, reasons={})
    assert found.unrest() == pytest.approx(20.0)
    assert dataclasses.replace(found, product=[100.0, 90.0, 110.0]).unrest() == pytest.approx(1.1)


def test_flops_count_what_the_mask_allows() -> None:
    # 2 examples · 4 heads · cells · 2 · (8 + 8)
    assert count_flops(call()) == 8 * 32 * 32 * 32
    assert count_flops(call(masks.causal())) == 8 * 32 * (32 * 33 // 2)
    assert count_flops(call(masks.lengths([10, 20]))) == 4 * 32 * (32 * 10 + 32 * 20)
    assert count_flops(call(masks.causal(), trains=True)) == 3.5 * count_flops(call(masks.causal()))


@pytest.mark.parametrize("trains", [False, True])
def test_a_contest_runs_what_can_run(trains: bool) -> None:
    with torch.set_grad_enabled(trains):
        found = contest(call(masks.window(3, 0), trains=trains), rounds=2)
    assert found.chosen in found.seconds
    assert {"sdpa", "tiled"} <= found.seconds.keys()
    assert {len(each) for each in (*found.seconds.values(), found.product)} == {2}
    assert "(the call has Q = 32)" in found.reasons["decode"]
    assert ("flex" in found.reasons) == trains


def test_a_contest_leaves_out_what_takes_too_long_or_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    windowed = call(masks.window(3, 0), length=512)
    monkeypatch.setattr(measure, "MOST_TIME", 2)
    reasons = contest(windowed, rounds=1).reasons
    assert reasons["reference"].startswith("not run: it should take ")
    monkeypatch.setattr(measure, "MOST_TIME", 1e9)
    monkeypatch.setattr(measure, "MOST_BYTES", 0)
    found = contest(windowed, rounds=1)
    assert found.reasons["reference"].startswith("not run: it needs ")
    assert list(found.seconds) == [found.chosen]  # which runs whatever it needs
