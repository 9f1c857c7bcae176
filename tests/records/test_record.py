"""Records against the eager float64 weights: every question, every option, in bounded memory."""

from __future__ import annotations

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
from headwise.records.statistics import part
from tests.mask_zoo import compositions
from tests.records.test_statistics import dense


def recorded(
    mask: masks.Mask | None, q_len: int = 30, k_len: int = 30, **options: Any
) -> tuple[AttentionRecord, Tensor]:
    q, k, v = torch.randn(2, 4, q_len, 8), torch.randn(2, 2, k_len, 8), torch.randn(2, 2, k_len, 8)
    _, seen = headwise.attention(q, k, v, mask=mask, record=True, **options)
    return seen, dense(q, k, mask, **options)[0]


@pytest.fixture(params=[2**18, 2**6], ids=["one block", "many blocks"])
def cells(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(part, "CELLS", request.param)
    monkeypatch.setattr(record, "BLOCK_CELLS", request.param)
    return int(request.param)


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
