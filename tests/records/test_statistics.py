"""All statistics in one pass, against numbers worked out by hand and against the whole matrix in float64."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import headwise
from headwise import masks
from headwise.errors import ArgumentError
from headwise.records import AttentionRecord
from headwise.records.statistics import STATISTICS, Statistics, pooled
from headwise.records.statistics import part as parts
from headwise.records.statistics import top as tops
from tests.largest import Largest
from tests.mask_zoo import ZOO, compositions


@pytest.fixture(params=["native kernels", "tiles"], autouse=True)
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds the statistics; the native kernels leave to the tiles what they cannot."""
    if request.param == "tiles":
        compute = sys.modules["headwise.records.statistics.compute"]  # a function has this name, too
        monkeypatch.setattr(compute, "refuse", lambda call: "not asked")


by_tiles = pytest.mark.parametrize("by", ["tiles"], indirect=True)


def record_of(q: Tensor, k: Tensor, **options: Any) -> AttentionRecord:
    return headwise.attention(q, k, torch.zeros_like(k), record=True, **options)[1]


def weighing(*weights: float, rows: int | None = None, **options: Any) -> AttentionRecord:
    """Every query weighs its keys in these proportions; as many queries as keys unless told."""
    k = torch.tensor(weights).log()[None, None, :, None]
    return record_of(torch.ones(1, 1, rows or len(weights), 1), k, **options)


def test_every_statistic_by_hand() -> None:
    # The four rows of the matrix are 1; 1/3 2/3; 1/7 2/7 4/7; 1/8 2/8 4/8 1/8.
    found = weighing(1, 2, 4, 1, mask=masks.causal()).statistics(top=2, offsets=(0, 1, 2), size=2)
    ln2, ln3, ln7, ln8 = (math.log(x) for x in (2, 3, 7, 8))

    def equal(answer: Tensor | None, *expected: Any) -> None:
        torch.testing.assert_close(answer[0, 0], torch.tensor(expected))

    equal(found.lse, 0.0, ln3, ln7, ln8)
    assert str(found.entropy[0, 0, 0].item()) == "0.0"  # not -0.0
    equal(found.entropy, 0.0, ln3 - 2 / 3 * ln2, ln7 - 10 / 7 * ln2, ln8 - 10 / 8 * ln2)
    equal(found.distance, 0.0, 1 / 3, 4 / 7, 11 / 8)
    equal(found.received, 1 + 1 / 3 + 1 / 7 + 1 / 8, 2 / 3 + 2 / 7 + 2 / 8, 4 / 7 + 4 / 8, 1 / 8)
    equal(found.top.weights, [1.0, 0.0], [2 / 3, 1 / 3], [4 / 7, 2 / 7], [4 / 8, 2 / 8])
    assert found.top.keys[0, 0, 1:].tolist() == [[1, 0], [2, 1], [2, 1]]
    assert found.top.keys[0, 0, 0, 0] == 0
    assert found.top.keys[0, 0, 0, 1] != 0  # a key whose weight is 0
    equal(found.offset_mass, [1.0, 0.0, 0.0], [2 / 3, 1 / 3, 0.0], [4 / 7, 2 / 7, 1 / 7], [1 / 8, 4 / 8, 2 / 8])
    equal(found.first_visible, 1.0, 1 / 3, 1 / 7, 1 / 8)
    equal(found.learned_sink, 0.0, 0.0, 0.0, 0.0)
    equal(found.keys_needed, 1, 2, 3, 4)  # 6/7 and 7/8 are less than 0.9
    equal(found.pooled_mean, [0.5, 0.0], [(3 / 7 + 3 / 8) / 4, (4 / 7 + 5 / 8) / 4])
    equal(found.pooled_max, [1.0, 0.0], [2 / 7, 4 / 7])


def test_each_method_asks_for_one_statistic() -> None:
    seen = weighing(1, 2, 4, 1, mask=masks.causal())
    all_ = seen.statistics(offsets=(2,), size=3, share=0.6)
    assert torch.equal(seen.offset_mass(2), all_.offset_mass[..., 0])  # type: ignore[index]
    assert seen.first_visible().equal(all_.first_visible)  # type: ignore[arg-type]
    assert seen.keys_needed(0.6).equal(all_.keys_needed)  # type: ignore[arg-type]
    assert seen.keys_needed()[0, 0].tolist() == [1, 2, 3, 4]
    assert seen.keys_needed(0.6)[0, 0].tolist() == [1, 1, 2, 2]
    assert seen.offset_mass(-1)[0, 0].tolist() == [0.0] * 4  # the next key, which nobody may attend to
    assert seen.offset_mass(9)[0, 0].tolist() == [0.0] * 4


def test_what_was_not_asked_for_is_none() -> None:
    found = weighing(1, 2).statistics("entropy", "top")
    assert [name for name, _ in found] == ["entropy", "top"]
    assert list(vars(found)) == list(STATISTICS)
    assert found.lse is None


def test_of_ten_equal_weights_nine_hold_nine_tenths() -> None:
    for n in (10, 20, 100, 1000):
        assert weighing(*[1.0] * n, rows=1).keys_needed(0.9).item() == 9 * n // 10
    for n in (3, 7, 12, 70):
        assert [weighing(*[1.0] * n, rows=1).keys_needed(m / n).item() for m in range(1, n + 1)] == [*range(1, n + 1)]


def test_the_query_stands_at_the_last_key() -> None:
    seen = weighing(1, 2, 4, 1, rows=1)
    assert seen.offset_mass(0).item() == pytest.approx(1 / 8)
    assert seen.offset_mass(3).item() == pytest.approx(1 / 8)
    assert seen.offset_mass(1).item() == pytest.approx(4 / 8)


def test_the_first_visible_begins_at_the_first_key_that_anybody_sees() -> None:
    mask = masks.padding(torch.tensor([[True, True, True], [False, True, True]]))
    q, k = torch.ones(2, 1, 1, 1), torch.tensor([1.0, 2.0, 5.0]).log().expand(2, 1, 3)[..., None]
    seen = record_of(q, k, mask=mask)
    assert seen.first_visible().flatten().tolist() == pytest.approx([1 / 8, 2 / 7])
    two = seen.statistics("first_visible", first_keys=2).first_visible
    assert two.flatten().tolist() == pytest.approx([3 / 8, 1.0])


def test_a_learned_sink_takes_its_share() -> None:
    # Weights 1/8, 2/8 and 1/8, and 4/8 on the sink. A row without keys gives it everything.
    mask = torch.tensor([[True, True, True], [False, False, False], [True, True, True]])
    found = weighing(1, 2, 1, sinks=torch.tensor([math.log(4)]), mask=mask).statistics()
    assert found.learned_sink.flatten().tolist() == pytest.approx([1 / 2, 1.0, 1 / 2])
    entropy = math.log(8) - 2 / 8 * math.log(2) - 4 / 8 * math.log(4)
    assert found.entropy.flatten().tolist() == pytest.approx([entropy, 0.0, entropy])
    assert found.keys_needed.flatten().tolist() == [3, 0, 3]  # of the half that the keys have; two have three quarters
    assert found.lse.flatten().tolist() == pytest.approx([math.log(8), math.log(4), math.log(8)])


# Against the whole matrix.


def dense(q: Tensor, k: Tensor, mask: masks.Mask | None, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(weights, what the sink takes, lse) in float64, written out again: not the library's own scores."""
    q, k = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    s = torch.einsum("bhqd,bhkd->bhqk", q, k) * options.get("scale", q.shape[-1] ** -0.5)
    if options.get("softcap"):
        s = options["softcap"] * torch.tanh(s / options["softcap"])
    if options.get("bias") is not None:
        s = s + options["bias"].double()
    if options.get("slopes") is not None:
        q_len, k_len = s.shape[2:]
        apart = (torch.arange(k_len) - torch.arange(k_len - q_len, k_len)[:, None]).abs()
        s = s - options["slopes"].double()[:, None, None] * apart
    if mask is not None:
        s = s.masked_fill(~mask.to_bool(*s.shape[2:]), -math.inf)
    sinks = options.get("sinks")
    sinks = torch.full((q.shape[1],), -math.inf, dtype=torch.double) if sinks is None else sinks.double()
    everything = torch.cat([s, sinks[:, None, None].expand(*s.shape[:3], 1)], dim=-1)
    lse = everything.logsumexp(-1)
    weights = torch.exp(everything - lse[..., None].nan_to_num(neginf=0.0))
    return weights[..., :-1], weights[..., -1], lse


def check(found: Statistics, expected: tuple[Tensor, Tensor, Tensor], mask: masks.Mask | None, **asked: Any) -> None:
    """Compare with the dense weights."""
    weights, on_sink, lse = expected
    batch, heads, q_len, k_len = weights.shape
    rtol = 1e-12 if found.lse is not None and found.lse.dtype == torch.double else 1e-5

    def close(answer: Tensor | None, right: Tensor) -> None:
        assert answer.shape == right.shape
        torch.testing.assert_close(answer.double(), right, rtol=rtol, atol=rtol)

    entropy = -torch.xlogy(weights, weights).sum(-1) - torch.xlogy(on_sink, on_sink)
    positions = torch.arange(q_len) + k_len - q_len
    close(found.lse, lse)
    close(found.entropy, entropy)
    close(found.distance, (weights * (positions[:, None] - torch.arange(k_len)).abs()).sum(-1))
    close(found.received, weights.sum(2))
    close(found.learned_sink, on_sink)

    offsets = asked.get("offsets", (1,))
    mass = torch.zeros(batch, heads, q_len, len(offsets), dtype=torch.double)
    for n, d in enumerate(offsets):
        for i, position in enumerate(positions.tolist()):
            if 0 <= position - d < k_len:
                mass[:, :, i, n] = weights[:, :, i, position - d]
    close(found.offset_mass, mass)

    allowed = torch.ones(1, 1, q_len, k_len, dtype=torch.bool) if mask is None else mask.to_bool(q_len, k_len)
    share = torch.zeros(batch, heads, q_len, dtype=torch.double)
    for b in range(batch):
        for h in range(heads):
            used = allowed[b % len(allowed), h % allowed.shape[1]].any(0).nonzero()[: asked.get("first_keys", 1), 0]
            share[b, h] = weights[b, h][:, used].sum(-1)
    close(found.first_visible, share)

    top = min(asked.get("top", 8), k_len)
    close(found.top.weights, weights.topk(top).values)
    close(weights.gather(3, found.top.keys), weights.topk(top).values)
    assert all(len(set(keys)) == top for keys in found.top.keys.flatten(0, 2).tolist())

    # Round-off may decide between n and n + 1 keys, but only where n of them are within it.
    assert found.keys_needed.dtype == torch.long
    sums = torch.nn.functional.pad(weights.sort(-1, descending=True).values.cumsum(-1), (1, 0))
    goal = sums[..., -1] * asked.get("share", 0.9)
    assert bool((sums.gather(3, found.keys_needed[..., None])[..., 0] >= goal * (1 - 1e-5)).all())
    fewer = sums.gather(3, (found.keys_needed - 1).clamp(min=0)[..., None])[..., 0]
    assert bool(((fewer < goal * (1 + 1e-5)) | (found.keys_needed == 0)).all())

    height, width = asked.get("size", (64, 64))
    size = min(height, q_len), min(width, k_len)
    close(found.pooled_mean, torch.nn.functional.adaptive_avg_pool2d(weights, size))
    close(found.pooled_max, torch.nn.functional.adaptive_max_pool2d(weights, size))


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """The arguments of a call: any shape, mask and option."""
    batch, key_heads, group = (draw(st.integers(1, n)) for n in (2, 2, 3))
    q_len, k_len = draw(st.sampled_from([(1, 1), (70, 70), (5, 75), (75, 5), (130, 200), (200, 200)]))
    sizes = (batch, key_heads * group, q_len, k_len)
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.float64, torch.bfloat16]))
    torch.manual_seed(draw(st.integers(0, 9)))
    spread = draw(st.sampled_from([0.3, 1.0, 5.0]))
    biases = torch.randn(q_len, k_len), torch.randn(batch, sizes[1], 1, k_len)
    return {
        "q": (torch.randn(*sizes[:3], 8) * spread).to(dtype),
        "k": torch.randn(batch, key_heads, k_len, 8).to(dtype),
        "mask": draw(st.none() | st.just(masks.causal()) | compositions(sizes)),
        "scale": draw(st.sampled_from([0.35, 1.0])),
        "softcap": draw(st.sampled_from([None, None, 3.0])),
        "bias": None if k_len == 1 else draw(st.sampled_from([None, None, *biases])),
        "slopes": draw(st.sampled_from([None, None, torch.linspace(0.5, -0.1, sizes[1])])),
        "sinks": draw(st.sampled_from([None, None, torch.linspace(-2, 2, sizes[1])])),
    }


@pytest.mark.parametrize("cells", [2**19, 2**10], ids=["large tiles", "small tiles"])
@given(call=calls(), data=st.data())
def test_any_call_as_in_float64(cells: int, call: dict[str, Any], data: st.DataObject) -> None:
    asked = {
        "top": data.draw(st.sampled_from([1, 2, 8])),
        "offsets": data.draw(st.lists(st.integers(-3, 90), max_size=3).map(tuple)),
        "size": data.draw(st.sampled_from([(64, 64), (1, 1), (7, 3), (20, 100)])),
        "share": data.draw(st.sampled_from([0.1, 0.5, 0.9, 1.0])),
        "first_keys": data.draw(st.sampled_from([1, 4])),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "CELLS", cells)
        patch.setattr(parts, "OVERHEAD", cells // 16)
        patch.setattr(pooled, "BUFFER_CELLS", cells)
        found = record_of(**call).statistics(**asked)
    check(found, dense(**call), call["mask"], **asked)


@pytest.mark.parametrize("lengths", [(150, 150), (40, 150)], ids=str)
@pytest.mark.parametrize("name", ZOO)
def test_every_mask(name: str, lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = (150, 150) if name == "big bird" else lengths
    monkeypatch.setattr(parts, "CELLS", 2**13)
    monkeypatch.setattr(parts, "OVERHEAD", 0)
    mask = ZOO[name](2, 4, *lengths)
    q, k = torch.randn(2, 4, lengths[0], 8), torch.randn(2, 2, lengths[1], 8)
    check(record_of(q, k, mask=mask).statistics(), dense(q, k, mask), mask)


def test_long_rows_go_through_the_chunks_of_many_tiles() -> None:
    q, k = torch.randn(1, 2, 40, 16), torch.randn(1, 2, 3001, 16)
    k[:, :, :40] = k[:, :, 100:140]  # ties
    for mask in (None, masks.causal(), masks.window(700, 0)):
        check(record_of(q, k, mask=mask).statistics(top=20), dense(q, k, mask), mask, top=20)


@pytest.mark.parametrize("keys", [993, 1001, 1023])
def test_rows_with_few_keys_are_filled_up_with_keys_that_exist(keys: int) -> None:
    # One of the two keys is in the last chunk, which is not a whole one.
    mask = masks.from_predicate(lambda b, h, q, k: (k == q) | (k == keys - 1))
    q, k = torch.randn(1, 1, 40, 16), torch.randn(1, 1, keys, 16)
    for top in (3, 5, 15):
        check(record_of(q, k, mask=mask).statistics(top=top), dense(q, k, mask), mask, top=top)


def test_more_of_the_largest_than_there_are_keys_in_a_block() -> None:
    q, mask = torch.randn(1, 1, 256, 8), masks.documents(torch.arange(256) // 64)
    check(record_of(q, q, mask=mask).statistics(top=100), dense(q, q, mask), mask, top=100)


def test_rows_that_see_only_a_block_of_a_few_keys_are_filled_up_with_others() -> None:
    mask = masks.from_predicate(lambda b, h, q, k: (k >= 64) & (q == q))
    q, k = torch.randn(1, 2, 66, 8), torch.randn(1, 2, 66, 8)
    check(record_of(q, k, mask=mask).statistics(), dense(q, k, mask), mask)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("sinks", [None, torch.zeros(2)], ids=["", "sinks"])
def test_no_queries_or_no_keys(sizes: tuple[int, int], sinks: Tensor | None) -> None:
    q_len, k_len = sizes
    seen = record_of(torch.randn(1, 2, q_len, 8), torch.randn(1, 2, k_len, 8), sinks=sinks)
    found = seen.statistics()
    for name in ("lse", "entropy", "distance", "first_visible", "keys_needed", "learned_sink"):
        assert getattr(found, name).shape == (1, 2, q_len)
    assert found.received.equal(torch.zeros(1, 2, k_len))
    assert found.pooled_max.shape == (1, 2, q_len, k_len)
    assert found.top.keys.shape == (1, 2, q_len, k_len)
    assert found.learned_sink.equal(torch.full((1, 2, q_len), 0.0 if sinks is None else 1.0))
    assert found.lse.equal(torch.full((1, 2, q_len), -math.inf if sinks is None else 0.0))


def test_nan_in_keys_that_nobody_sees_does_not_spread() -> None:
    q, k = torch.randn(1, 2, 100, 8), torch.randn(1, 2, 100, 8)
    mask = masks.causal() & masks.lengths(90)
    right = record_of(q, k, mask=mask).statistics()
    k[:, :, 90:] = math.nan
    found = record_of(q, k, mask=mask).statistics()
    for name in STATISTICS:
        for a, b in zip(_tensors(getattr(found, name)), _tensors(getattr(right, name)), strict=True):
            assert a.equal(b), name


def _tensors(x: Any) -> tuple[Tensor, ...]:
    return tuple(x) if isinstance(x, tuple) else (x,)


@pytest.mark.parametrize("floor", [torch.finfo(torch.float32).min, -math.inf], ids=["lowest", "-inf"])
def test_a_bias_that_forbids(floor: float) -> None:
    # What Hugging Face's models add to the scores. The first two rows have nothing else.
    bias = torch.full((4, 4), floor).triu(1)
    bias[:2] = floor
    found = weighing(1, 2, 4, 1, bias=bias).statistics()
    # All scores that are the lowest number are equal; rows of -inf are empty.
    equal = math.log(4) if math.isfinite(floor) else 0.0
    ln2, ln7, ln8 = (math.log(x) for x in (2, 7, 8))
    expected = [equal, equal, ln7 - 10 / 7 * ln2, ln8 - 10 / 8 * ln2]
    assert found.entropy.flatten().tolist() == pytest.approx(expected)
    assert found.keys_needed.flatten().tolist() == [4 if equal else 0] * 2 + [3, 4]


def test_small_numbers_keep_their_digits() -> None:
    # A row with nearly all of its weight on its own key, 2000 keys from the first: nothing may cancel.
    k = torch.zeros(1, 1, 2001, 1)
    k[..., -1, :] = 20.0
    seen = record_of(torch.ones(1, 1, 1, 1), k, scale=1.0, mask=masks.causal())
    rest = 2000 * math.exp(-20)
    distance = math.exp(-20) * 2000 * 2001 / 2 / (1 + rest)
    entropy = math.log1p(rest) + rest / (1 + rest) * 20
    assert seen.distance().item() == pytest.approx(distance, rel=1e-5)
    assert seen.entropy().item() == pytest.approx(entropy, rel=2e-3)  # 7e-8, the round-off of the weight near 1


# What it costs.


class Work(TorchDispatchMode):
    """Counts the scores that are made, and everything else that is written."""

    scores = 0
    written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            self.written += out.numel()
            self.scores += out.numel() if func.overloadpacket is torch.ops.aten.mm else 0
        return out


def work_of(length: int, mask: masks.Mask) -> Work:
    q = torch.randn(1, 1, length, 8)
    seen = record_of(q, q, mask=mask)
    with Work() as work:
        seen.statistics()
    return work


def test_the_work_of_a_window_grows_with_the_length_not_with_its_square() -> None:
    mask = masks.window(100, 0)
    short, long = work_of(4096, mask), work_of(8192, mask)
    assert short.scores >= 4096 * 101 - 100 * 50
    assert long.scores <= 8192 * 101 * 7
    assert long.scores <= 2.1 * short.scores
    assert long.written <= 2.1 * short.written


def test_causal_scores_are_made_up_to_the_diagonal() -> None:
    assert 0.5 <= work_of(4096, masks.causal()).scores / 4096**2 <= 0.57


@by_tiles
def test_the_mask_is_looked_at_only_where_it_cuts_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "CELLS", 2**17)  # a head at a time
    looked: list[int] = []

    class Spy(masks.band.Band):
        def cells(self, q: Tensor, k: Tensor, **which: Any) -> Tensor:
            looked.append(len(q) * len(k))
            return super().cells(q, k, **which)

    q = torch.randn(1, 4, 2048, 8)
    record_of(q, q, mask=Spy(None, 0)).statistics("lse", "entropy")
    assert 0 < sum(looked) <= 2048 * 192  # not for each head, and not far from the diagonal


@pytest.mark.parametrize("mask", [masks.causal(), masks.window(64, 0), None], ids=repr)
def test_nothing_of_the_size_of_the_matrix_is_made(mask: masks.Mask | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "CELLS", 2**15)
    monkeypatch.setattr(pooled, "BUFFER_CELLS", 2**14)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # others would not be seen
    q = torch.randn(1, 2, 3000, 8)  # the whole matrix would be 72 MB
    seen = record_of(q, q, mask=mask)
    with Largest() as largest:
        seen.statistics(size=32)
    # Two buffers of a tile of 16 rows, which is the least; the rest is smaller.
    assert 0 < largest.bytes <= 2 * 16 * 3008 * 4 + 2**18


def test_one_pass_finds_the_log_sum_exps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[tuple[str, ...]] = []
    real: Callable[..., dict[str, Any]] = headwise.records.record.compute

    def counted(scores: Any, statistics: Any, rows: Any) -> dict[str, Any]:
        passes.append(tuple(each.name for each in statistics))
        return real(scores, statistics, rows)

    monkeypatch.setattr("headwise.records.record.compute", counted)
    seen = weighing(1, 2, 4)
    entropy = seen.entropy()
    assert seen.lse is seen.lse
    assert seen.statistics("lse").lse is seen.lse
    assert seen.weights(rows=1, cols=2).item() == pytest.approx(4 / 7)
    assert passes == [("normaliser", "entropy")]
    assert entropy.shape == (1, 1, 3)


def test_threads_change_nothing_and_leave_nothing() -> None:
    before = torch.get_num_threads()
    q = torch.randn(2, 6, 300, 8)
    try:
        torch.set_num_threads(1)
        alone = record_of(q, q, mask=masks.causal()).statistics()
        torch.set_num_threads(3)
        together = record_of(q, q, mask=masks.causal()).statistics()
        assert torch.get_num_threads() == 3
        of_new_threads: list[int] = []
        thread = threading.Thread(target=lambda: of_new_threads.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert of_new_threads == [3]
        for name in STATISTICS:
            for a, b in zip(_tensors(getattr(alone, name)), _tensors(getattr(together, name)), strict=True):
                if name == "top" and a.dtype == torch.long:  # which keys have a weight of 0 does not matter
                    a, b = (x.masked_fill(alone.top.weights == 0, 0) for x in (a, b))
                torch.testing.assert_close(a, b)
                assert not a.is_inference()
                assert not b.is_inference()
        with torch.inference_mode():  # which is each thread's own
            x = torch.randn(2, 6, 30, 8)
            torch.testing.assert_close(record_of(x, x).statistics().received, record_of(x, x).weights().sum(2))
    finally:
        torch.set_num_threads(before)


@by_tiles
def test_a_thread_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before, q = torch.get_num_threads(), torch.randn(2, 6, 30, 8)
    monkeypatch.setattr(tops, "largest", lambda *_: 1 / 0)
    try:
        torch.set_num_threads(3)
        with pytest.raises(ZeroDivisionError):
            record_of(q, q).statistics()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_autocast_and_gradients_outside_do_not_matter() -> None:
    q = torch.randn(1, 2, 50, 8, requires_grad=True)
    seen = record_of(q, q, mask=masks.causal())
    with torch.autocast("cpu"):
        found = seen.statistics()
    assert not found.entropy.requires_grad
    check(found, dense(q.detach(), q.detach(), masks.causal()), masks.causal())


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda seen: seen.statistics("entropie"),
            r"the names are lse, .*received. Received: names=\['entropie'\]$",
        ),
        (lambda seen: seen.statistics(top=0), r"top must be at least 1. Received: top=0"),
        (lambda seen: seen.statistics(size=(4, 0)), r"size must be at least 1 × 1. Received: size=4 × 0"),
        (lambda seen: seen.statistics(share=0.0), r"share must be above 0 and at most 1. Received: share=0.0"),
        (lambda seen: seen.keys_needed(1.5), r"share must be above 0 and at most 1. Received: share=1.5"),
        (lambda seen: seen.statistics(first_keys=0), r"first_keys must be at least 1. Received: first_keys=0"),
        (lambda seen: seen.statistics(offsets=(1.5,)), r"offsets must be whole numbers. Received: offsets=\[1.5\]"),
    ],
)
def test_a_question_that_makes_no_sense(ask: Callable[[AttentionRecord], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ask(weighing(1, 2))
