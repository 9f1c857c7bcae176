"""Records against the eager float64 weights: every question, every option, in bounded memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise
from headwise import masks
from headwise.call import make_call
from headwise.errors import ArgumentError, RecordError
from headwise.records import AttentionRecord, record
from headwise.records.statistics import STATISTICS, part
from tests.largest import Largest
from tests.mask_zoo import ZOO, compositions


def eager_weights(q: Tensor, k: Tensor, mask: masks.Mask | None, **options: Any) -> Tensor:
    """softmax of the whole matrix in float64, written out again: not the library's own scores."""
    q, k = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    s = torch.einsum("bhqd,bhkd->bhqk", q, k) * options.get("scale", q.shape[-1] ** -0.5)
    if options.get("softcap"):
        s = options["softcap"] * torch.tanh(s / options["softcap"])
    if options.get("bias") is not None:
        s = s + options["bias"].double()
    if mask is not None:
        s = s.masked_fill(~mask.to_bool(*s.shape[2:]), -math.inf)
    e = torch.exp(s)
    total = e.sum(-1, keepdim=True)
    if options.get("sinks") is not None:
        total = total + torch.exp(options["sinks"].double())[:, None, None]
    return torch.where(total > 0, e / total, 0.0)


def recorded(
    mask: masks.Mask | None, q_len: int = 30, k_len: int = 30, **options: Any
) -> tuple[AttentionRecord, Tensor]:
    q, k, v = torch.randn(2, 4, q_len, 8), torch.randn(2, 2, k_len, 8), torch.randn(2, 2, k_len, 8)
    _, seen = headwise.attention(q, k, v, mask=mask, record=True, **options)
    return seen, eager_weights(q, k, mask, **options)


@pytest.fixture(params=[2**18, 2**6], ids=["one block", "many blocks"])
def cells(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(part, "CELLS", request.param)
    monkeypatch.setattr(record, "BLOCK_CELLS", request.param)
    return int(request.param)


@pytest.mark.parametrize("lengths", [(30, 30), (7, 30)], ids=str)
@pytest.mark.parametrize("name", ZOO)
def test_weights_equal_eager_float64_weights(name: str, lengths: tuple[int, int]) -> None:
    if name == "big bird":
        lengths = (30, 30)
    mask = ZOO[name](2, 4, *lengths)
    seen, weights = recorded(mask, *lengths)
    torch.testing.assert_close(seen.weights().double(), weights, rtol=0, atol=1e-6)
    assert seen.mask == mask.aligned(*lengths)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0.9},
        {"softcap": 2.0},
        {"bias": torch.linspace(-3, 3, 30)},
        {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    ],
    ids=["scale", "softcap", "bias", "sinks"],
)
def test_every_option_is_honoured(options: dict[str, Any], cells: int) -> None:
    seen, weights = recorded(masks.causal(), **options)
    torch.testing.assert_close(seen.weights().double(), weights, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        seen.weights(rows=[3, 9], cols=slice(2, 8), heads=-1).double(), weights[:, 3:, [3, 9], 2:8]
    )
    torch.testing.assert_close(seen.received().double(), weights.sum(2), rtol=1e-5, atol=1e-6)


@given(st.data())
def test_any_tile_under_any_mask(data: st.DataObject) -> None:
    q_len, k_len = data.draw(st.sampled_from([(20, 20), (3, 20), (1, 1)]))
    mask = data.draw(st.none() | compositions((2, 4, q_len, k_len)))
    seen, weights = recorded(mask, q_len, k_len)
    rows = data.draw(
        st.none() | st.integers(0, q_len - 1) | st.lists(st.integers(0, q_len - 1), min_size=1, max_size=4)
    )
    cols = data.draw(st.none() | st.integers(-k_len, k_len - 1) | st.just(slice(0, k_len, 2)))
    heads = data.draw(st.none() | st.integers(0, 3) | st.just([3, 1]))
    if data.draw(st.booleans()):
        assert seen.lse.shape == (2, 4, q_len)  # later questions may use it
    expected = weights
    for dim, choice in ((1, heads), (2, rows), (3, cols)):
        if isinstance(choice, slice):
            expected = expected[(slice(None),) * dim + (choice,)]
        elif choice is not None:
            index = torch.tensor([choice] if isinstance(choice, int) else choice) % expected.shape[dim]
            expected = expected.index_select(dim, index)
    torch.testing.assert_close(seen.weights(rows, cols, heads).double(), expected, rtol=0, atol=1e-6)


def test_statistics_by_hand() -> None:
    # Two keys; the first query weighs them 1/2 and 1/2, the second (scores 0 and log 3) 1/4 and 3/4.
    q = torch.tensor([[0.0], [1.0]])[None, None]
    k = torch.tensor([[0.0], [math.log(3)]])[None, None]
    _, seen = headwise.attention(q, k, k, record=True)
    close = torch.testing.assert_close
    close(seen.lse[0, 0], torch.tensor([math.log(2), math.log(4)]))
    close(seen.entropy()[0, 0], torch.tensor([math.log(2), math.log(4) - 0.75 * math.log(3)]))
    close(seen.received()[0, 0], torch.tensor([0.75, 1.25]))
    close(seen.distance()[0, 0], torch.tensor([0.5, 0.25]))
    values, keys = seen.top_k(1)
    close(values[0, 0, :, 0], torch.tensor([0.5, 0.75]))
    assert keys[0, 0, 1, 0] == 1
    close(seen.pooled(1)[0, 0], torch.tensor([[0.5]]))
    close(seen.pooled((1, 2), how="max")[0, 0], torch.tensor([[0.5, 0.75]]))
    close(seen.weights(rows=1, cols=1)[0, 0], torch.tensor([[0.75]]))
    close(seen.scores(rows=1)[0, 0], torch.tensor([[0.0, math.log(3)]]))


@pytest.mark.parametrize(
    "name", ["causal", "documents, by example", "padding, an empty example", "tensor, by example and head"]
)
def test_statistics_equal_those_of_the_eager_weights(name: str, cells: int) -> None:
    seen, weights = recorded(ZOO[name](2, 4, 30, 30))
    close = {"rtol": 1e-5, "atol": 1e-5}
    away = (torch.arange(30)[:, None] - torch.arange(30)).abs()
    torch.testing.assert_close(seen.entropy().double(), -torch.special.xlogy(weights, weights).sum(-1), **close)
    torch.testing.assert_close(seen.distance().double(), (weights * away).sum(-1), **close)
    torch.testing.assert_close(seen.received().double(), weights.sum(2), **close)
    torch.testing.assert_close(seen.top_k(5)[0].double(), weights.topk(5).values, **close)
    torch.testing.assert_close(weights.gather(3, seen.top_k(3)[1]), weights.topk(3).values, **close)
    for size in (1, 7, (4, 11), 30, 64):
        sides = (min(30, size), min(30, size)) if isinstance(size, int) else size
        for how, pool in (
            ("mean", torch.nn.functional.adaptive_avg_pool2d),
            ("max", torch.nn.functional.adaptive_max_pool2d),
        ):
            torch.testing.assert_close(seen.pooled(size, how=how).double(), pool(weights, sides), **close)
    sums = weights.sum(-1)
    assert torch.equal(seen.lse == -math.inf, sums == 0)


def test_a_sink_counts_as_a_key_in_the_entropy() -> None:
    q = torch.zeros(1, 1, 1, 1)
    k = torch.zeros(1, 1, 3, 1)
    _, seen = headwise.attention(q, k, k, sinks=torch.tensor([math.log(5)]), record=True)
    # Weights 1/8, 1/8, 1/8, and 5/8 on the sink.
    torch.testing.assert_close(seen.weights(), torch.full((1, 1, 1, 3), 0.125))
    expected = 3 / 8 * math.log(8) + 5 / 8 * math.log(8 / 5)
    torch.testing.assert_close(seen.entropy(), torch.full((1, 1, 1), expected))
    for said in (STATISTICS["entropy"].sentence, AttentionRecord.entropy.__doc__):
        assert said is not None
        assert "learned sink counts as a key" in said.lower()


def test_distance_counts_from_the_query_s_own_position() -> None:
    q, k = torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 5, 1)
    _, seen = headwise.attention(q, k, k, mask=masks.window(1, 0), record=True)
    assert seen.distance().item() == 0.5  # keys 3 and 4, and the query stands at 4


@pytest.mark.parametrize("question", ["lse", "entropy", "distance", "received", "top_k", "pooled"])
def test_no_question_holds_more_than_a_block_of_rows(question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "CELLS", 2**16)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # what other threads make would not be seen
    q = torch.randn(1, 2, 1500, 8)  # the whole matrix would be 18 MB
    _, seen = headwise.attention(q, q, q, mask=masks.causal(), record=True)
    with Largest() as largest:
        {"top_k": lambda: seen.top_k(4), "pooled": lambda: seen.pooled(16), "lse": lambda: seen.lse}.get(
            question, lambda: getattr(seen, question)()
        )()
    assert 0 < largest.bytes <= 2 * 2**18


def test_a_record_keeps_no_values_and_no_graph() -> None:
    q, k, v = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3))
    _, seen = headwise.attention(q, k, v, record=True)
    assert not seen.weights().requires_grad
    assert not hasattr(seen.call, "v")
    assert seen.q.data_ptr() == q.data_ptr()  # not copied either


def test_changing_the_inputs_in_place_is_noticed() -> None:
    q = torch.randn(1, 2, 5, 8)
    _, seen = headwise.attention(q, q, q, record=True)
    seen.entropy()
    q.add_(1)
    with pytest.raises(RecordError, match=r"changed in place after the call.*Pass a clone"):
        seen.entropy()
    with torch.inference_mode():
        x = torch.randn(1, 2, 5, 8)
        _, seen = headwise.attention(x, x, x, record=True)
        assert seen.entropy().shape == (1, 2, 5)


def test_records_of_half_precision_are_worked_out_in_float32() -> None:
    q = torch.randn(1, 2, 20, 8).bfloat16()
    _, seen = headwise.attention(q, q, q, record=True)
    assert seen.weights().dtype == torch.float32
    torch.testing.assert_close(seen.weights().double(), eager_weights(q, q, None), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda seen: seen.weights(heads=4), r"heads must lie in 0 … 3. Received: heads=4"),
        (lambda seen: seen.weights(rows=[1, 30]), r"rows must lie in 0 … 29. Received: rows=\[1, 30\]"),
        (lambda seen: seen.weights(rows="a"), r"^rows: expected an integer, a slice .* Received: rows='a'$"),
        (lambda seen: seen.scores(cols=-31), r"cols must lie in 0 … 29. Received: cols=-31"),
        (lambda seen: seen.top_k(31), r"k must be between 1 and the 30 keys. Received: k=31"),
        (lambda seen: seen.pooled(0), r"size must be at least 1 × 1. Received: size=0 × 0"),
        (lambda seen: seen.pooled(4, how="sum"), r'how must be "mean" or "max". Received: how=\'sum\''),
    ],
)
def test_a_question_out_of_range_is_told_the_range(ask: Any, message: str) -> None:
    seen, _ = recorded(None)
    with pytest.raises(ArgumentError, match=message):
        ask(seen)


def test_a_record_says_what_it_is() -> None:
    seen, _ = recorded(masks.causal())
    assert repr(seen) == "AttentionRecord(B=2, H=4, Q=30, K=30, mask=causal(offset=0))"
    assert seen.shape == (2, 4, 30, 30)


def test_values_that_were_changed_in_place_are_noticed() -> None:
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    record = AttentionRecord(make_call(q, k, v), values=True)
    torch.testing.assert_close(record.v, v)
    v.add_(1)
    with pytest.raises(RecordError, match="values of this record were changed in place"):
        _ = record.v
    record.extras.v = v.clone()
    torch.testing.assert_close(record.v, v)
    with pytest.raises(RecordError, match=r"does not have output gradients. Watch the model with gradients=True"):
        _ = record.grad


def test_views_of_one_tensor_are_named_together() -> None:
    q, k, v = torch.randn(3, 1, 1, 5, 4)
    _, record = headwise.attention(q, k, v, record=True)
    v.mul_(0)
    with pytest.raises(RecordError, match=r"^q or k, or a tensor that shares memory with them, was changed in place"):
        record.weights()


def test_changing_inference_tensors_in_place_is_noticed() -> None:
    with torch.inference_mode():
        q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
        _, seen = headwise.attention(q, k, k, record=True)
        seen.entropy()
        k.mul_(-3)
        with pytest.raises(RecordError, match="k was changed in place"):
            seen.entropy()
