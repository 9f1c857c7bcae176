"""A mask and a kernel made outside the package are seen wherever those of the package are.

A statistic made outside: `tests/records/test_registered_statistic.py`. Here it is asked of a record of both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.call import AttentionCall
from headwise.errors import ArgumentError, KernelRefused
from headwise.kernels import KERNELS
from headwise.kernels.kernel import Cost
from headwise.records import Seen, Statistic
from headwise.records.statistics import STATISTICS, Column, WeightTile, register


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EvenKeys(masks.Mask):
    """Every query sees the keys at even positions: `allows` is all that a mask has to define."""

    def allows(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return (k % 2 == 0) & (q >= 0)


class OneKey:
    """A kernel for calls with one key: its weight is 1, whatever its score, where the mask allows it."""

    OPTIONS = frozenset({"softcap"})

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def refuse(self, call: AttentionCall) -> str | None:
        return None if call.shape[3] == 1 else f"it is for one key (the call has K = {call.shape[3]})"

    def cost(self, call: AttentionCall) -> Cost:
        return Cost(flops=0, bytes=0, peak=0, time=0.0)

    def run(self, call: AttentionCall) -> Tensor:
        self.calls.append(call)
        batch, heads, q_len, k_len = call.shape
        values = call.v.repeat_interleave(call.heads_per_key_head, dim=1).expand(batch, heads, q_len, -1)
        if call.mask is None:
            return values.clone()
        return values.masked_fill(~call.mask.cells(torch.arange(q_len), torch.arange(k_len)), 0.0)


@pytest.fixture
def one_key() -> Iterator[OneKey]:
    kernel = OneKey()
    KERNELS["one_key"] = kernel
    yield kernel
    del KERNELS["one_key"]


@pytest.fixture
def highest() -> Iterator[type[Statistic]]:
    @register
    class Highest(Statistic):
        name = "highest"
        unit = "share"
        sentence = "The largest weight of a query."
        column = Column("highest")

        def update(self, tile: WeightTile) -> None:
            self.answer[:, tile.rows] = tile.weights.amax(-1)

    yield Highest
    del STATISTICS["highest"]


def tensors(q_len: int = 5, k_len: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """q [2, 4, Q, 8], k and v [2, 2, K, 8]"""
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, h, n, 8, generator=g) for h, n in ((4, q_len), (2, k_len), (2, k_len)))  # type: ignore[return-value]


MASKS = {
    "alone": EvenKeys(),
    "and": EvenKeys() & masks.causal(),
    "or": EvenKeys() | masks.window(1, 0),
    "not": ~EvenKeys(),
    "nested": masks.lengths([5, 3]) & (EvenKeys() | masks.causal()),
}


def allowed(name: str) -> Tensor:
    """The matrix of a mask, [B|1, 1, 5, 5], by hand."""
    q, k = torch.arange(5)[:, None], torch.arange(5)[None, :]
    even = (k % 2 == 0).expand(5, 5)
    rows = {
        "alone": even,
        "and": even & (k <= q),
        "or": even | (k == q) | (k == q - 1),
        "not": ~even,
        "nested": (torch.arange(5) < torch.tensor([5, 3])[:, None, None]) & (even | (k <= q)),
    }[name]
    return rows[None, None] if rows.ndim == 2 else rows[:, None]


@pytest.mark.parametrize("name", MASKS)
def test_every_kernel_that_does_not_refuse_takes_the_mask(name: str) -> None:
    q, k, v = tensors()
    weights = (q @ k.repeat_interleave(2, 1).mT / 8**0.5).masked_fill(~allowed(name), -torch.inf).softmax(-1)
    expected = weights.nan_to_num(0.0) @ v.repeat_interleave(2, 1)
    plan = headwise.plan(q, k, v, mask=MASKS[name])
    able = [verdict.kernel for verdict in plan.verdicts if verdict.refusal is None]
    assert {"sdpa", "tiled", "flex", "reference"} <= set(able)
    for kernel in ["auto", *able]:
        out = headwise.attention(q, k, v, mask=MASKS[name], kernel=kernel)
        torch.testing.assert_close(out, expected, msg=kernel)


@pytest.mark.parametrize("name", MASKS)
def test_records_files_and_drawings_have_the_mask(name: str, tmp_path: Path) -> None:
    mask, matrix = MASKS[name], allowed(name)
    assert mask.to_bool(5).equal(matrix)
    assert mask.draw(5).splitlines()[0] == " ".join("■" if each else "·" for each in matrix[0, 0, 0])
    assert mask.aligned(5, 5).to_bool(5).equal(matrix)

    _, record = headwise.attention(*tensors(), mask=mask, record=True)
    weights = record.weights()
    assert bool((weights[~matrix.expand_as(weights)] == 0).all())
    Seen([record]).save(tmp_path / "run.hw")
    loaded = headwise.load(tmp_path / "run.hw")[0]
    assert loaded.mask.to_bool(5).equal(matrix)
    assert loaded.weights().equal(weights)


def test_the_plan_names_the_mask_and_what_cuts_it() -> None:
    plan = headwise.plan(*tensors(512, 512), mask=EvenKeys() & masks.causal(), kernel="tiled")
    assert "EvenKeys() & causal(offset=0)" in str(plan)
    assert plan.cutter == "blocks"


def test_a_statistic_of_a_mask(highest: type[Statistic]) -> None:
    """Equal scores: of n keys that a query sees, each has the weight 1 / n."""
    q, k, v = tensors()
    _, record = headwise.attention(q * 0, k, v, mask=MASKS["and"], record=True)
    expected = torch.tensor([1.0, 1.0, 1 / 2, 1 / 2, 1 / 3])
    torch.testing.assert_close(record.statistics("highest").highest, expected.expand(2, 4, 5))
    assert [round(row.highest, 4) for row in Seen([record]).summary()] == [0.6667] * 4


def test_the_kernel_is_planned_chosen_and_run(one_key: OneKey) -> None:
    q, k, v = tensors(3, 1)
    mask = masks.window(1, 0, offset=0)  # queries 0 and 1 see the key
    out, record = headwise.attention(q, k, v, mask=mask, kernel="one_key", record=True)
    expected = v.repeat_interleave(2, 1) * torch.tensor([1.0, 1.0, 0.0])[:, None]
    assert out.equal(expected)
    assert out.equal(headwise.attention(q, k, v, mask=mask, kernel="reference"))
    assert record.weights()[..., 0].equal(torch.tensor([1.0, 1.0, 0.0]).expand(2, 4, 3))
    assert len(one_key.calls) == 1
    plan = headwise.plan(q, k, v, mask=mask, kernel="one_key")
    assert (plan.kernel, plan.cost.flops, plan.cutter) == ("one_key", 0, None)
    (verdict,) = (each for each in headwise.plan(q, k, v, mask=mask).verdicts if each.kernel == "one_key")
    assert (verdict.refusal, verdict.cost) == (None, one_key.cost(plan.call))


def test_the_kernel_is_taken_where_it_is_the_cheapest(one_key: OneKey) -> None:
    q, k, v = torch.zeros(1, 8, 2**17, 64), torch.zeros(1, 8, 1, 64), torch.ones(1, 8, 1, 64)
    mask = masks.window(0, 0, offset=0)  # the first query alone sees the key
    assert headwise.plan(q, k, v, mask=mask).kernel == "one_key"
    out = headwise.attention(q, k, v, mask=mask)
    assert len(one_key.calls) == 1
    assert out[:, :, 0].unique().tolist() == [1.0]
    assert not out[:, :, 1:].any()


def test_the_kernel_refuses_by_its_own_reason_and_by_its_options(one_key: OneKey) -> None:
    q, k, v = tensors()
    with pytest.raises(KernelRefused, match=r"kernel 'one_key' cannot run this call: it is for one key \(.* K = 5\)"):
        headwise.attention(q, k, v, kernel="one_key")
    assert "  one_key       refuses: it is for one key (the call has K = 5)" in str(headwise.plan(q, k, v))

    q, k, v = tensors(3, 1)
    headwise.attention(q, k, v, softcap=2.0, kernel="one_key")  # it lists this option
    options: dict[str, Any] = {"bias": torch.zeros(1, 1, 3, 1), "sinks": torch.zeros(4), "dropout": 0.5}
    for name, value in options.items():
        with pytest.raises(KernelRefused, match=f"kernel 'one_key' cannot run this call: it has no {name}"):
            headwise.attention(q, k, v, kernel="one_key", **{name: value})
    assert len(one_key.calls) == 1


def test_nothing_of_the_kernel_is_left() -> None:
    with pytest.raises(ArgumentError, match=r"kernel must be 'auto' or one of decode, .* Received: kernel='one_key'"):
        headwise.attention(*tensors(), kernel="one_key")
