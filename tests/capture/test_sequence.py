"""The steps of a generation put together by hand: one head of width 1, so that every number can be followed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise import masks
from headwise.call import AttentionCall, make_call
from headwise.capture.sequence import Sequence
from headwise.errors import RecordError
from headwise.records import AttentionRecord


def column(*numbers: list[float]) -> Tensor:
    """[B, 1, length, 1], a list an example."""
    return torch.tensor(numbers)[:, None, :, None]


def step(q: Tensor, k: Tensor, bias: Tensor | None = None, mask: masks.Mask | None = None) -> AttentionCall:
    return make_call(q, k, k, bias=bias, mask=mask, scale=1.0)


def test_rows_and_keys_follow_one_another() -> None:
    sequence = Sequence(step(column([1.0, 2.0]), column([3.0, 4.0]), mask=masks.causal()), values=True)
    assert not sequence.continued
    assert sequence.extend(step(column([5.0]), column([3.0, 4.0, 6.0]))) is not None
    assert sequence.extend(step(column([7.0]), column([4.0, 6.0, 8.0]))) is not None  # a window of three
    call = sequence.call()
    assert call.q.flatten().tolist() == [1.0, 2.0, 5.0, 7.0]
    assert call.k.flatten().tolist() == call.v.flatten().tolist() == [3.0, 4.0, 6.0, 8.0]
    allowed = AttentionRecord(call).weights()[0, 0] > 0
    assert allowed.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]


@pytest.mark.parametrize("keys", [[9.0, 4.0, 6.0], [3.0]], ids=["other", "fewer"])
def test_what_is_no_next_step(keys: list[float]) -> None:
    sequence = Sequence(step(column([1.0, 2.0]), column([3.0, 4.0])), values=False)
    assert sequence.extend(step(column([5.0]), column(keys))) is None
    assert not sequence.continued


def test_another_scale_is_no_next_step() -> None:
    sequence = Sequence(step(column([1.0, 2.0]), column([3.0, 4.0])), values=False)
    keys = column([3.0, 4.0, 6.0])
    assert sequence.extend(make_call(column([5.0]), keys, keys, scale=2.0)) is None


def test_a_first_step_that_was_changed_meanwhile() -> None:
    q = column([1.0, 2.0])
    sequence = Sequence(step(q, column([3.0, 4.0])), values=False)
    q.add_(1)
    with pytest.raises(RecordError, match="changed in place before the next step"):
        sequence.extend(step(column([5.0]), column([3.0, 4.0, 6.0])))


def beams() -> Sequence:
    """Two beams; at the third step both go on from the second one."""
    bias = torch.zeros(1, 1, 2, 2)
    sequence = Sequence(
        step(column([1.0, 2.0], [1.0, 2.0]), column([3.0, 4.0], [3.0, 4.0]), bias, masks.causal()), values=False
    )
    sequence.extend(step(column([5.0], [6.0]), column([3.0, 4.0, 7.0], [3.0, 4.0, 8.0]), torch.full((1, 1, 1, 3), 0.1)))
    both = column([3.0, 4.0, 8.0, 9.0], [3.0, 4.0, 8.0, 9.5])
    assert sequence.extend(step(column([10.0], [11.0]), both, torch.full((1, 1, 1, 4), 0.2))) is not None
    return sequence


def test_beams_are_followed() -> None:
    call = beams().call()
    assert call.q.squeeze().tolist() == [[1.0, 2.0, 6.0, 10.0], [1.0, 2.0, 6.0, 11.0]]
    assert call.k.squeeze().tolist() == [[3.0, 4.0, 8.0, 9.0], [3.0, 4.0, 8.0, 9.5]]


def test_chosen_beams() -> None:
    call = beams().call(torch.tensor([[0, 1, 1], [0, 0, -1]]))
    assert call.q.squeeze().tolist()[0] == [1.0, 2.0, 6.0, 11.0]
    assert call.k.squeeze().tolist()[0] == [3.0, 4.0, 8.0, 9.5]
    assert call.q.squeeze().tolist()[1][:3] == [1.0, 2.0, 5.0]
    allowed = AttentionRecord(call).weights()[1, 0] > 0
    assert not allowed[:, 3].any()  # the second beam ended: it has no fourth key


def test_chosen_beams_that_all_ended_before_the_last_step() -> None:
    call = beams().call(torch.tensor([[0, 0], [0, 1]]))
    assert call.shape == (2, 1, 3, 3)
    assert call.q.squeeze().tolist() == [[1.0, 2.0, 5.0], [1.0, 2.0, 6.0]]
    assert call.k.squeeze().tolist() == [[3.0, 4.0, 7.0], [3.0, 4.0, 8.0]]
    assert call.bias is not None
    assert call.bias.shape == (1, 1, 3, 3)
    assert call.bias[0, 0, 2].tolist() == pytest.approx([0.1, 0.1, 0.1])
    allowed = AttentionRecord(call).weights()[0, 0] > 0
    assert allowed.int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
