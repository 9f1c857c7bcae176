"""Steps whose keys begin with those of the step before are told without a look at them, and no other step is."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import headwise
from headwise import masks
from headwise.call import make_call
from headwise.capture.appended import Appended
from headwise.capture.sequence import Sequence
from headwise.records import Seen


class Attend(nn.Module):
    """Attention of one head or more, with queries and keys from outside."""

    def forward(self, q: Tensor, k: Tensor, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
        return scaled_dot_product_attention(q, k, k, attn_mask=mask, scale=scale)


class ByHand(Attend):
    def forward(self, q: Tensor, k: Tensor, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
        scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -torch.inf), -1) @ k


def some(length: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, 2, length, 8)


def grown(k: Tensor, count: int = 1) -> Tensor:
    return torch.cat([k, some(count, len(k))], dim=-2)


def weights(q: Tensor, k: Tensor, scale: float = 8**-0.5) -> Tensor:
    return torch.softmax(q @ k.mT * scale, -1)


def assert_last_row(seen: Seen, q: Tensor, k: Tensor, hidden: int | None = None) -> None:
    """The last row of the last record is this query's attention to these keys."""
    expected = weights(q, k)
    if hidden is not None:
        expected[..., hidden] = 0
        expected /= expected.sum(-1, keepdim=True)
    torch.testing.assert_close(list(seen)[-1].weights(rows=[-1])[..., -k.shape[2] :], expected)


@pytest.mark.parametrize("model", [Attend(), ByHand()], ids=["fused", "by hand"])
@pytest.mark.parametrize("window", [None, 3])
def test_appended_keys_are_not_compared(model: Attend, window: int | None) -> None:
    torch.manual_seed(0)
    k, steps = some(5), []
    with headwise.watch(model) as seen:
        model(some(5), k)
        for at in range(6):
            q, k = some(1), grown(k)
            steps.append((q, k))
            with mock.patch.object(Sequence, "_candidates", side_effect=AssertionError if at else None):
                model(q, k)
            k = k if window is None else k[:, :, -window:]
    assert [record.shape for record in seen] == [(1, 2, 11, 11)]
    for at, (q, k) in enumerate(steps):
        torch.testing.assert_close(seen[0].weights(rows=[5 + at])[..., 6 + at - k.shape[2] : 6 + at], weights(q, k))


def in_place(k: Tensor) -> Tensor:
    k[:, :, 1] += 1
    return grown(k)


def in_place_after(k: Tensor) -> Tensor:
    k = grown(k)
    k[:, :, 1] += 1
    return k


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "in place": in_place,
    "in place after": in_place_after,
    "in front": lambda k: torch.cat([some(1), k], 2),
    "others": lambda k: grown(some(k.shape[2])),
    "other heads": lambda k: grown(k.flip(1)),
    "scaled": lambda k: grown(2 * k),
    "cut": lambda k: grown(k[:, :, :-1], 2),
    "inner": lambda k: grown(k[:, :, 1:-1]),
    "two keys for a row": lambda k: grown(k[:, :, 1:], 2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_other_keys_are_no_next_step(change: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model, k = Attend(), some(5)
    with headwise.watch(model) as seen:
        model(some(5), k)
        for _ in range(3):
            k = grown(k)
            model(some(1), k)
        q, k = some(1), change(k)
        model(q, k)
    assert [record.shape[2] for record in seen] == [8, 1]
    assert_last_row(seen, q, k)


def test_another_prompt_of_the_same_length() -> None:
    torch.manual_seed(0)
    model, caches = Attend(), [some(5), some(5)]
    with headwise.watch(model) as seen:
        for at, turn in enumerate((0, 1, 0, 1, 1, 1)):
            caches[turn] = caches[turn] if at < 2 else grown(caches[turn])
            q = some(5 if at < 2 else 1)
            model(q, caches[turn])
    assert [record.shape[2:] for record in seen] == [(5, 5), (5, 5), (1, 6), (3, 8)]
    assert_last_row(seen, q, caches[1])


@pytest.mark.parametrize("model", [Attend(), ByHand()], ids=["fused", "by hand"])
def test_a_step_whose_mask_hides_an_older_key(model: Attend) -> None:
    torch.manual_seed(0)
    k = some(5)
    with headwise.watch(model) as seen:
        model(some(5), k)
        for hidden in (None, None, 2, None):
            q, k = some(1), grown(k)
            mask = None if hidden is None else (torch.arange(k.shape[2]) != hidden)[None, None, None]
            model(q, k, mask)
            assert_last_row(seen, q, k, hidden)
    assert [record.shape[2] for record in seen] == [9]
    assert (seen[0].weights() == 0).nonzero().tolist() == [
        [0, head, row, key] for head in (0, 1) for row, key in HIDDEN
    ]


def test_a_step_that_sees_a_key_which_was_padding_before() -> None:
    torch.manual_seed(0)
    model, k = Attend(), some(5)
    with headwise.watch(model) as seen:
        model(some(5), k, torch.tensor([False, True, True, True, True])[None, None, None])
        for _ in range(3):
            q, k = some(1), grown(k)
            model(q, k)
            assert_last_row(seen, q, k)
    assert ((seen[0].weights()[0, 0] == 0).sum(1)).tolist() == [4, 4, 4, 4, 4, 2, 1, 0]


# The prompt is not causal here, and no step sees a key that comes later.
HIDDEN = sorted([(row, key) for row in range(8) for key in range(max(5, row + 1), 9)] + [(7, 2)])


def test_beams_that_change_places() -> None:
    torch.manual_seed(0)
    model, k = Attend(), some(5, 2)
    with headwise.watch(model) as seen:
        model(some(5, 2), k)
        for parents in ([0, 1], [1, 0], [0, 1], [1, 1], [0, 1]):
            q, k = some(1, 2), grown(k[parents])
            model(q, k)
            assert_last_row(seen, q, k)
    assert torch.equal(seen[0].k, k)
    assert [record.shape[2] for record in seen] == [10]


def joined(appended: Appended, k: Tensor, count: int = 1) -> Tensor:
    out = grown(k, count)
    appended.join(out, [k, out[:, :, -count:]], dim=2)
    return out


def test_nothing_is_known_of_keys_of_which_some_were_rejected() -> None:
    torch.manual_seed(0)
    appended, k = Appended(), some(5)
    sequence = Sequence(make_call(some(5), k, k), values=False, keys=appended.read(k))
    more = joined(appended, k, 2)
    step = make_call(some(2), more, more, mask=masks.causal())
    assert sequence.extend(step, keys=appended.read(more)) is not None
    assert sequence.cut(1, 1)
    for known in (more, more[:, :, -6:]):
        longer = joined(appended, known)
        assert sequence.extend(make_call(some(1), longer, longer), keys=appended.read(longer)) is None


def test_what_is_known_ends_with_the_tensors() -> None:
    appended, k = Appended(), some(3)
    keys = appended.read(k)
    assert keys is not None
    assert appended.read(k) is keys
    for _ in range(3):
        longer = joined(appended, k)
        found = appended.read(longer)
        assert (found.older, found.begin) == (keys, k.shape[2])
        k, keys = longer, found
    del k, longer
    assert not appended._known


def test_inference_tensors_are_compared() -> None:
    """They count no changes in place."""
    model, k = Attend(), some(3)
    with headwise.watch(model) as seen:
        model(some(3), k)
        with torch.inference_mode():
            for change in (0, 0, 1):
                k = grown(k)
                k[:, :, 0] += change
                q = some(1)
                model(q, k)
    assert [record.shape[2] for record in seen] == [5, 1]
    assert_last_row(seen, q, k)
