"""Attention written by hand: what a record says beside the weights, and random programs. Styles: test_styles.py."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from random import Random
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

import headwise
from headwise.errors import RecordError
from headwise.records import AttentionRecord, Seen
from tests.capture.parity import assert_weights, tensors
from tests.capture.styles.style import BIAS, CAUSAL, B, Block, D, H, Q


class HandAttention(Block):
    """A class that is called attention."""


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    q, k, v = torch.randn(3, B, H, Q, D, dtype=torch.float64).to(dtype).unbind()
    return q, k, v


def see(body: Callable[..., Any], *args: Tensor, **options: Any) -> tuple[Seen, Any]:
    model = HandAttention(body)
    given = args or inputs()
    plain = model(*given)
    with headwise.watch(model, **options) as seen:
        out = model(*given)
    for x, y in zip(tensors(out), tensors(plain), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
    return seen, out


def the_record(seen: Seen) -> AttentionRecord:
    assert [(site.name, site.status) for site in seen.coverage()] == [("HandAttention", "seen")], str(seen.coverage())
    return seen.records[0]


def at(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    w = (q @ k.mT * 0.3).softmax(-1)
    return w @ v, w


def test_queries_against_keys_by_hand() -> None:
    """softmax([1 · 1, 1 · 2]) of one query and two keys of width 1, to be worked out on paper."""
    q, k, v = torch.tensor([[1.0]]), torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [0.0]])
    seen, _ = see(lambda q, k, v: (q @ k.T).softmax(-1) @ v, q, k, v)
    first = 1 / (1 + math.e)
    torch.testing.assert_close(the_record(seen).weights().flatten(), torch.tensor([first, 1 - first]))


def test_a_softcap_of_scores_less_their_maximum() -> None:
    """The number that is subtracted from a whole row cancels in a softmax, but not inside tanh."""
    q, k, v = torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]]), torch.tensor([[1.0], [0.0]])
    seen, _ = see(lambda q, k, v: torch.tanh(q @ k.T - 3.0).softmax(-1) @ v, q, k, v)
    first = math.exp(math.tanh(-1.0)) / (math.exp(math.tanh(-1.0)) + 1)
    torch.testing.assert_close(the_record(seen).weights().flatten(), torch.tensor([first, 1 - first]))


@pytest.mark.parametrize("dtype", [torch.bool, torch.long])
def test_a_mask_of_bools_or_integers_that_is_added_is_a_bias_of_ones(dtype: torch.dtype) -> None:
    """softmax([2 + 1, 3 + 0]): both keys get 1 / 2."""
    q, k, v = torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]]), torch.tensor([[1.0], [0.0]])
    mask = torch.tensor([[1, 0]], dtype=dtype)
    seen, _ = see(lambda q, k, v: (q @ k.T + mask).softmax(-1) @ v, q, k, v)
    assert the_record(seen).weights().flatten().tolist() == [0.5, 0.5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_lowest_number_of_the_dtype_rounds_the_scores_that_it_is_added_to(dtype: torch.dtype) -> None:
    """2 + finfo.min and 3 + finfo.min are both finfo.min; of 2 + finfo.min and 3 the second has all the weight."""
    q, k, v = (torch.tensor(x, dtype=dtype) for x in ([[1.0], [1.0]], [[2.0], [3.0]], [[1.0], [0.0]]))
    low = torch.finfo(dtype).min
    bias = torch.tensor([[low, low], [low, 0.0]], dtype=dtype)
    seen, _ = see(lambda q, k, v: (q @ k.T + bias).softmax(-1) @ v, q, k, v)
    record = the_record(seen)
    assert record.weights()[0, 0].tolist() == [[0.5, 0.5], [0.0, 1.0]]
    assert record.call.bias.shape[-1] == 1  # one number for each row


def test_float16_rounds_scores_beside_its_lowest_number_to_multiples_of_32() -> None:
    """20 - 65504 and 18 - 65504 are both -65472 in float16, -20 - 65504 is -inf; below, the row is not forbidden."""
    q, k, v = (torch.tensor(x).half() for x in ([[1.0], [0.0]], [[20.0], [18.0], [-20.0]], [[1.0], [0.0], [0.0]]))
    bias = torch.tensor([[torch.finfo(torch.float16).min], [0.0]]).half().expand(2, 3)
    seen, _ = see(lambda q, k, v: (q @ k.T + bias).softmax(-1) @ v, q, k, v)
    expected = torch.tensor([[1 / 2, 1 / 2, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(the_record(seen).weights()[0, 0], expected)


def test_the_highest_score_of_a_forbidden_row_that_is_subtracted_leaves_its_scores_rounded() -> None:
    """2 + finfo.min and 3 + finfo.min are both finfo.min: minus the highest both are 0."""
    q, k, v = torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]]), torch.tensor([[1.0], [0.0]])

    def body(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = q @ k.T + torch.finfo(torch.float32).min
        return (s - s.max(-1, keepdim=True).values).softmax(-1) @ v

    seen, _ = see(body, q, k, v)
    assert the_record(seen).weights().flatten().tolist() == [0.5, 0.5]


def test_sinks_beside_the_keys() -> None:
    sinks = torch.linspace(-2, 2, H)

    def body(first: bool, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        column = sinks.view(1, H, 1, 1).expand(B, H, Q, 1)
        s = (q @ k.mT).masked_fill(~CAUSAL, -math.inf)
        w = torch.cat([column, s] if first else [s, column], dim=-1).softmax(-1)
        w = w[..., 1:] if first else w[..., :-1]
        return w @ v, w

    for first in (True, False):
        seen, (_, weights) = see(lambda *x, first=first: body(first, *x))
        record = the_record(seen)
        assert_weights(record, weights, atol=1e-6)
        torch.testing.assert_close(record.sinks, sinks)


def test_each_query_has_a_sink_of_its_own() -> None:
    """e^0 / (e^0 + e^0 + e^sink), with sinks of log 2 and log 6."""
    q, k, v = torch.zeros(2, 1), torch.zeros(2, 1), torch.ones(2, 1)
    sinks = torch.tensor([[2.0], [6.0]]).log()
    seen, _ = see(lambda q, k, v: torch.cat([q @ k.T, sinks], -1).softmax(-1)[..., :-1] @ v, q, k, v)
    expected = torch.tensor([[1 / 4, 1 / 4], [1 / 8, 1 / 8]])
    torch.testing.assert_close(the_record(seen).weights()[0, 0], expected)


def test_dropout_is_told_and_left_out_of_the_weights() -> None:
    kept: list[Tensor] = []

    def body(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        w = (q @ k.mT).softmax(-1)
        kept.append(w)
        return functional.dropout(w, 0.25) @ v

    model = HandAttention(body)
    with headwise.watch(model) as seen:
        model(*inputs())
    assert the_record(seen).dropout == pytest.approx(0.25)
    assert_weights(the_record(seen), kept[0], atol=1e-6)


def test_repeated_key_heads_are_kept_once() -> None:
    q, k, v = inputs()
    k, v = (x[:, :2].repeat_interleave(2, 1) for x in (k, v))
    seen, (_, weights) = see(at, q, k, v)
    record = the_record(seen)
    assert_weights(record, weights)
    assert record.k.shape == (B, 2, Q, D)
    assert (record.site.heads, record.site.key_heads) == (4, 2)


# dtypes and modes.


def test_rows_that_finite_fills_forbid_as_a_whole_attend_to_all_keys_alike() -> None:
    """softmax of -1e9 everywhere is uniform, and that is what the model computed."""
    rows = CAUSAL.clone()
    rows[2] = False

    def body(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        w = (q @ k.mT).masked_fill(~rows, -1e9).softmax(-1)
        return w @ v, w

    seen, (_, weights) = see(body)
    record = the_record(seen)
    torch.testing.assert_close(record.weights(rows=2), torch.full((B, H, 1, Q), 1 / Q))
    assert_weights(record, weights)


class LinearAttention(HandAttention):
    pass


class Mixer(HandAttention):
    pass


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


def test_a_product_without_queries_and_keys_is_named() -> None:
    model = LinearAttention(linear)
    with headwise.watch(model) as seen:
        model(*inputs())
        model(*inputs())
    (site,) = seen.coverage()
    assert (site.name, site.status, site.calls) == ("LinearAttention", "missed", 4)
    assert "its scores come from no product of queries and keys" in site.how
    assert site.where.startswith("tests/capture/test_handwritten.py:")
    with pytest.raises(RecordError, match="no attention was seen"):
        seen["LinearAttention"]


def test_a_model_without_attention_says_what_was_looked_for() -> None:
    model = Mixer(lambda q, k, v: q + k + v)
    with headwise.watch(model) as seen:
        model(*inputs())
    assert len(seen) == 0
    assert len(seen.coverage()) == 0
    (note,) = seen.coverage().notes
    assert note.startswith("no attention was seen")
    assert "scaled_dot_product_attention" in note
    assert "Mixer" in note
    assert "no attention was seen" in repr(seen)
    with pytest.raises(RecordError, match="no attention was seen"):
        seen[0]


def test_two_computations_in_one_module_have_names_of_their_own() -> None:
    def body(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first = (q @ k.mT).softmax(-1)
        second = (q @ k.mT * 2).softmax(-1)
        return first @ v - second @ v, first, second

    model = HandAttention(body)
    with headwise.watch(model) as seen:
        outs = [model(*inputs()), model(*inputs())]
    assert seen.layers == ["HandAttention", "HandAttention#2"]
    assert [record.site.call for record in seen if record.site] == [0, 0, 1, 1]
    for call, (_, first, second) in enumerate(outs):
        assert_weights(seen.call(call)["HandAttention"], first)
        assert_weights(seen.call(call)["HandAttention#2"], second)


@pytest.mark.parametrize("changed", ["key", "bias"])
def test_what_is_changed_in_place_afterwards_is_noticed(changed: str) -> None:
    bias, (q, k, v) = BIAS.clone(), inputs()
    seen, _ = see(lambda q, k, v: (q @ k.mT + bias).softmax(-1) @ v, q, k, v)
    (k if changed == "key" else bias)[0, 0, 0, 0] += 1
    with pytest.raises(RecordError, match="changed in place"):
        the_record(seen).weights()


# Random programs: whatever is seen is true.

STEPS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "scale": lambda s, r: s * r.choice([0.4, 1.7, -1.0, 0.0, 1e-3]),
    "divide": lambda s, r: s / r.choice([0.5, 3.0, -1.0]),
    "temperature": lambda s, r: s * torch.linspace(-1, 1.5, s.shape[1]).view(-1, 1, 1),
    "row temperature": lambda s, r: s / torch.linspace(1, 2, s.shape[-2]).view(-1, 1),
    "column factor": lambda s, r: s * torch.linspace(0.5, 1.5, s.shape[-1]),
    "softcap": lambda s, r: torch.tanh(s / 0.7) * 0.7,
    "tanh": lambda s, r: torch.tanh(s),
    "bias": lambda s, r: s + torch.linspace(-1, 1, s.shape[-1] * s.shape[-2]).view(s.shape[-2:]),
    "head bias": lambda s, r: torch.linspace(-1, 1, s.shape[1]).view(-1, 1, 1) + s,
    "number": lambda s, r: s - 0.5,
    "less from": lambda s, r: 1.0 - s,
    "causal": lambda s, r: s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), r.choice([-math.inf, -1e9, -1e4])),
    "weak fill": lambda s, r: s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), -3.0),
    "padding": lambda s, r: torch.where(torch.arange(s.shape[-1]) < s.shape[-1] - 1, s, r.choice([-math.inf, -1e9])),
    "added mask": lambda s, r: (
        s + torch.zeros(s.shape[-2:]).masked_fill(torch.ones(s.shape[-2:]).tril(-2).bool(), torch.finfo(s.dtype).min)
    ),
    "row away": lambda s, r: s.masked_fill((torch.arange(s.shape[-2]) == 1)[:, None], r.choice([-1e9, -1e4])),
    "clamp": lambda s, r: s.clamp(min=r.choice([-0.2, -1e4])),
    "relu": lambda s, r: s.relu(),
    "in place": lambda s, r: s.mul_(0.5).add_(0.25),
    "heads flipped": lambda s, r: s.flip(1),
    "heads chosen": lambda s, r: s[:, [1, 0]] if s.shape[1] == 2 else s[:, :],
    "heads mixed": lambda s, r: torch.einsum(
        "bhij,hg->bgij", s, torch.linspace(-1, 1, s.shape[1] ** 2).view(s.shape[1], -1)
    ),
    "rows flipped": lambda s, r: s.flip(-2),
    "keys rolled": lambda s, r: s.roll(1, -1),
    "transposed": lambda s, r: s.mT if s.shape[-1] == s.shape[-2] else s,
    "folded": lambda s, r: s.flatten(0, 1).unflatten(0, s.shape[:2]),
    "viewed": lambda s, r: s.reshape(s.shape[1], s.shape[0], *s.shape[2:]).reshape(s.shape),
    "cumulated": lambda s, r: s + s.cumsum(-1),
    "less its maximum": lambda s, r: s - s.amax(-1, keepdim=True),
    "less its mean over heads": lambda s, r: s - s.mean(1, keepdim=True),
    "less its mean over rows": lambda s, r: s - s.mean(-2, keepdim=True),
    "doubled by itself": lambda s, r: s + s,
    "cast": lambda s, r: s.double().float(),
    "zeros": lambda s, r: s + torch.zeros_like(s),
    "of a slice": lambda s, r: s[..., :],
    "by numpy": lambda s, r: torch.from_numpy(s.detach().numpy() * 0.5),
    "by data": lambda s, r: _by_data(s),
}
AFTER: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "nothing": lambda w, r: w,
    "head mask": lambda w, r: w * r.choice([0.0, 1.0]),
    "renormalised": lambda w, r: (w * 1.5) / (w * 1.5).sum(-1, keepdim=True),
    "cast": lambda w, r: w.to(torch.float32),
    "flipped": lambda w, r: w.flip(1),
    "in place": lambda w, r: w.mul_(0.5),
    "nan to num": lambda w, r: torch.nan_to_num(w),
    "folded": lambda w, r: w.reshape(-1, *w.shape[2:]).view(w.shape),
    "transposed": lambda w, r: w.mT if w.shape[-1] == w.shape[-2] else w,
    "by data": lambda w, r: _by_data(w),
}


def _by_data(x: Tensor) -> Tensor:
    x.data.mul_(0.5)
    return x


def _multiply(how: int, q: Tensor, k: Tensor) -> Tensor:
    if how == 0:
        return q @ k.mT
    if how == 1:
        return torch.einsum("bhjd,bhid->bhij", k, q)
    b, h, _, _ = q.shape
    return torch.baddbmm(torch.ones(()), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0.5, alpha=0.7).unflatten(0, (b, h))


# What no operation tells of, and numbers that are below any other: which of these is lowest, rounding decides.
SNEAKY = {"by numpy", "by data", "row away", "less its mean over rows"}

programs = st.tuples(
    st.integers(0, 2),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=5),
    st.sampled_from(["nothing"] * 8 + sorted(AFTER)),
    st.sampled_from([(2, 2, 4, 4), (1, 2, 3, 5), (2, 4, 4, 4), (2, 3, 1, 4)]),
    st.randoms(use_true_random=False),
)


def _run(program: tuple[int, list[str], str, tuple[int, ...], Any]) -> tuple[Seen, Tensor]:
    how, steps, after, (batch, heads, q_len, k_len), random = program
    torch.manual_seed(random.randrange(10**6))
    q, k, v = (torch.randn(batch, heads, n, 3) for n in (q_len, k_len, k_len))
    true: list[Tensor] = []

    def body(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = _multiply(how, q, k)
        for step in steps:
            s = STEPS[step](s, random)
        w = AFTER[after](s.softmax(-1), random)
        true.append(w.clone().nan_to_num(0.0))
        return w @ v

    model = HandAttention(body)
    model.num_heads = heads
    with headwise.watch(model) as seen, torch.no_grad():
        model(q, k, v)
    assert sum(site.calls for site in seen.coverage()) >= 1
    if steps.count("rows flipped") % 2:  # a record has each row where its query is
        true[0] = true[0].flip(2)
    return seen, true[0]


@settings(max_examples=250)
@given(programs)
def test_whatever_is_seen_of_a_random_program_is_true(
    program: tuple[int, list[str], str, tuple[int, ...], Any],
) -> None:
    seen, true = _run(program)
    for record in seen:
        assert_weights(record, true, empty=(true.sum(-1) == 0).any(1))


@settings(max_examples=250)
@given(programs)
def test_what_is_recognised_is_true_without_a_look_at_the_weights(
    program: tuple[int, list[str], str, tuple[int, ...], Any],
) -> None:
    """Of a long call only some rows are compared with the model's weights: the operations must say enough."""
    assume(not SNEAKY & {*program[1], program[2]})
    with mock.patch("headwise.capture.recogniser.wrong_weights", return_value=None):
        seen, true = _run(program)
    for record in seen:
        assert_weights(record, true, empty=(true.sum(-1) == 0).any(1))


SIMPLE = ["scale", "bias", "causal", "head bias", "padding", "cast", "folded", "row temperature", "less its maximum"]


@pytest.mark.parametrize("steps", list(itertools.combinations(SIMPLE, 2)), ids=", ".join)
def test_plain_programs_are_seen(steps: tuple[str, ...]) -> None:
    """Refusing everything would be true too."""
    seen, true = _run((0, list(steps), "nothing", (B, H, Q, Q), Random(2)))  # which draws factors above 0
    assert_weights(the_record(seen), true, empty=(true.sum(-1) == 0).any(1), atol=2e-6)
