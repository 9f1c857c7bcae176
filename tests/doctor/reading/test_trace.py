"""Marks that travel through real operations, and what a trace notes of products and softmaxes, checkable by hand."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import einops
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Seed, Softmax, Trace, pair_tokens
from headwise.doctor.reading.ledger import UNREGISTERED
from headwise.doctor.reading.marks import MIXED, UNKNOWN
from headwise.doctor.reading.trace import trace

B, N, M = 2, 3, 4


def follow(function: Callable[..., Tensor], *inputs: Tensor, module: nn.Module | None = None) -> Trace:
    return trace(module or nn.Module(), inputs, lambda: function(*inputs), lambda y: y)


def numbered() -> Tensor:
    """[B, N, M]: every number is its own place, so that a moved number says where it came from."""
    return torch.arange(B * N * M).float().reshape(B, N, M)


def inputs(count: int = 1, shape: tuple[int, ...] = (B, N, M)) -> list[Tensor]:
    return [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in range(count)]


def positions(run: Trace) -> list:
    assert run.out is not None
    return marks.position_of(run.out.token).tolist()


# Moves: the source of every number is where it stood, its token the position that it is of.

MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "heads": lambda x: x.view(B, N, 2, 2).transpose(1, 2),
    "a bare view": lambda x: x.view(B, 2, N, 2),
    "reshape that copies": lambda x: x.transpose(1, 2).reshape(B * M, N),
    "permute": lambda x: x.permute(2, 0, 1),
    "movedim": lambda x: x.movedim(-1, 0),
    "swapaxes": lambda x: x.swapaxes(1, 2),
    "mT": lambda x: x.mT,
    "einops": lambda x: einops.rearrange(x, "b n (h d) -> (b h) n d", h=2),
    "einsum that moves": lambda x: torch.einsum("bnm->nmb", x),
    "chunk": lambda x: x.chunk(2, dim=-1)[1],
    "split": lambda x: x.split([1, 3], dim=-1)[1],
    "unbind": lambda x: x.unflatten(-1, (2, 2)).unbind(2)[1],
    "slices": lambda x: x[:, 1:, ::2],
    "select": lambda x: x[1, -1],
    "fancy index": lambda x: x[:, torch.tensor([2, 0])],
    "bool index": lambda x: x[torch.tensor([True, False])],
    "index_select": lambda x: x.index_select(1, torch.tensor([1, 1, 0])),
    "gather": lambda x: x.gather(-1, torch.zeros(B, N, 2, dtype=torch.long)),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, dims=1),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "expand": lambda x: x[:, None].expand(B, 2, N, M),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "cat of parts": lambda x: torch.cat((x[..., 2:], x[..., :2]), dim=-1),
    "stack": lambda x: torch.stack((x, x.flip(0)), dim=1),
    "hstack": lambda x: torch.hstack((x, x)),
    "tensor_split": lambda x: x.tensor_split(2, dim=1)[0],
    "contiguous": lambda x: x.transpose(0, 1).contiguous(),
    "clone": lambda x: x.clone(),
    "double": lambda x: x.double(),
    "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
    "flatten": lambda x: x.flatten(),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "as_strided": lambda x: x.as_strided((2, 2), (M, 1)),
    "rot90": lambda x: x.rot90(1, (1, 2)),
    "complex and back": lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(B, N, 2, 2))).flatten(2),
    "list of rows": lambda x: torch.stack([x[:, i] for i in (2, 1, 0)], dim=1),
    "chained": lambda x: x.view(B, N, 2, 2).permute(2, 0, 1, 3).reshape(2 * B, N, 2).transpose(-1, -2),
}


@pytest.mark.parametrize("name", MOVES)
def test_marks_move_as_the_numbers_do(name: str) -> None:
    run = follow(MOVES[name], numbered())
    assert run.problem == ""
    assert run.out is not None
    place = run.result.long()
    assert run.out.token.shape == run.out.source.shape == run.result.shape
    assert torch.equal(marks.element_of(run.out.source), place)
    assert torch.equal(marks.position_of(run.out.token), place // M % N)
    assert torch.equal(marks.example_of(run.out.token), place // (N * M))
    assert run.out.live


def test_heads_split_by_a_bare_view_hold_some_tokens_twice() -> None:
    """What the names of the moves above mean: the first head's first number of every row."""
    right = follow(lambda x: x.view(1, 2, 2, 2).transpose(1, 2)[0, 0, :, 0], torch.zeros(1, 2, 4))
    wrong = follow(lambda x: x.view(1, 2, 2, 2)[0, 0, :, 0], torch.zeros(1, 2, 4))
    assert positions(right) == [0, 1]
    assert positions(wrong) == [0, 0]


def test_what_is_padded_on_is_of_no_token() -> None:
    run = follow(lambda x: functional.pad(x, (0, 0, 1, 0))[0, :, 0], numbered())
    assert positions(run) == [UNKNOWN, 0, 1, 2]


def test_several_inputs_are_told_apart() -> None:
    run = follow(lambda x, y: torch.cat((x, y), dim=1)[0, :, 0], *inputs(2))
    assert run.out is not None
    assert marks.input_of(run.out.token).tolist() == [0, 0, 0, 1, 1, 1]
    assert positions(run) == [0, 1, 2, 0, 1, 2]


# Single numbers.


def test_operations_on_single_numbers_keep_the_marks() -> None:
    run = follow(lambda x: (x * 2 + 1).tanh().masked_fill(torch.ones(N, M).triu().bool(), 0.0), numbered())
    assert run.out is not None
    assert torch.equal(marks.element_of(run.out.source), numbered().long())


def test_two_positions_that_are_added_are_mixed() -> None:
    assert positions(follow(lambda x: (x + x.roll(1, dims=1))[0, :, 0], numbered())) == [MIXED] * 3
    assert positions(follow(lambda x: (x + x)[0, :, 0], numbered())) == [0, 1, 2]


def test_a_sum_over_positions_is_of_several_tokens() -> None:
    assert set(positions(follow(lambda x: x.mean(1)[0], numbered()))) == {MIXED}


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        (lambda x: x / 8, 1 / 8),
        (lambda x: x * 3 / 6, 0.5),
        (lambda x: x * torch.tensor(0.25), 0.25),
        (lambda x: (x / 2).transpose(1, 2) / 2, 0.25),
        (lambda x: 2 * x, 2.0),
        (lambda x: 1 / x, 1.0),
        (lambda x: functional.layer_norm(x / 8, (M,)), 1.0),  # a norm forgets what stood before
    ],
)
def test_the_number_by_which_everything_was_multiplied(change: Callable[[Tensor], Tensor], factor: float) -> None:
    run = follow(change, numbered() + 1)
    assert run.out is not None
    assert run.out.factor == pytest.approx(factor)


# In place.


def test_what_is_written_in_place_is_seen_in_every_view() -> None:
    def fill(x: Tensor) -> Tensor:
        buffer = torch.zeros(B, N, M)
        part = buffer[:, 1:]
        part.copy_(x[:, :2])
        return buffer[0, :, 0]

    run = follow(fill, numbered())
    assert positions(run) == [UNKNOWN, 0, 1]


def test_what_is_added_to_a_view_is_seen_in_the_whole() -> None:
    def fill(x: Tensor) -> Tensor:
        buffer = torch.zeros(B, N, M)
        part = buffer[:, 1:]
        part += x[:, :2]
        return buffer[0, :, 0]

    run = follow(fill, numbered())
    assert positions(run) == [UNKNOWN, 0, 1]
    assert run.out is not None
    assert marks.element_of(run.out.source).tolist() == [UNKNOWN, 0, M]


def test_what_is_written_over_a_projection_changes_nothing_of_what_it_was() -> None:
    layer = linear()

    def change(x: Tensor) -> Tensor:
        y = layer(x)
        y[:, 0] = y[:, 1]
        return y[0, :, 0]

    run = follow(change, *inputs(), module=layer)
    assert positions(run) == [1, 1, 2]
    (seed,) = [seed for seed in run.seeds if seed.kind == "projection"]
    assert marks.position_of(seed.token[0, :, 0] if seed.token.ndim == 3 else seed.token[:3, 0]).tolist() == [0, 1, 2]


def test_assignment_by_index() -> None:
    def fill(x: Tensor) -> Tensor:
        buffer = torch.zeros(B, N, M)
        buffer[:, torch.tensor([2, 0])] = x[:, :2]
        return buffer[0, :, 0]

    assert positions(follow(fill, numbered())) == [1, UNKNOWN, 0]


def test_every_second_feature_written_in_turn() -> None:
    """The rotation of many tutorials: out[..., ::2] and out[..., 1::2]."""

    def rotate(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out[..., ::2] = x[..., ::2] * 0.5 - x[..., 1::2] * 0.5
        out[..., 1::2] = x[..., 1::2] * 0.5 + x[..., ::2] * 0.5
        return out[0]

    run = follow(rotate, numbered())
    assert run.out is not None
    assert positions(run) == [[0] * 4, [1] * 4, [2] * 4]
    assert marks.element_of(run.out.source[0]).tolist() == [0, 1, 2, 3]


def test_in_place_operations_keep_the_marks() -> None:
    def change(x: Tensor) -> Tensor:
        y = x.clone()
        y.mul_(2).add_(1).masked_fill_(torch.ones(N, M).bool().triu(1), -9.0)
        y[0] /= 4
        return y

    run = follow(change, numbered())
    assert run.out is not None
    assert torch.equal(marks.element_of(run.out.source), numbered().long())
    assert [s.name for s in run.steps if s.name != "add"] == ["mul", "masked_fill", "div"]


# Projections: new sources, the tokens of their rows.


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(M, 6)


PROJECTIONS: dict[str, Callable[[nn.Linear, Tensor], Tensor]] = {
    "Linear": lambda layer, x: layer(x),
    "functional": lambda layer, x: functional.linear(x, layer.weight),
    "@": lambda layer, x: x @ layer.weight.T,
    "einsum": lambda layer, x: torch.einsum("bnm,om->bno", x, layer.weight),
    "turned einsum": lambda layer, x: torch.einsum("om,bnm->bno", layer.weight, x),
    "matmul by rows": lambda layer, x: torch.stack([torch.mm(row, layer.weight.T) for row in x]),
    "weight first": lambda layer, x: (layer.weight @ x.transpose(1, 2)).transpose(1, 2),
    "tensordot": lambda layer, x: torch.tensordot(x, layer.weight, dims=([2], [1])),
    "convolution": lambda layer, x: functional.conv1d(x.transpose(1, 2), layer.weight[..., None]).transpose(1, 2),
}


@pytest.mark.parametrize("style", PROJECTIONS)
def test_a_projection_is_one_in_any_style(style: str) -> None:
    layer = linear()
    run = follow(lambda x: PROJECTIONS[style](layer, x), *inputs(), module=layer)
    found = [seed for seed in run.seeds if seed.kind == "projection"]
    assert {seed.name for seed in found} == {"weight"}
    assert run.out is not None
    assert run.out.live
    assert torch.equal(marks.position_of(run.out.token), torch.arange(N)[None, :, None].expand(B, N, 6))
    made = torch.stack([found[int(n)].value.flatten()[int(e)] for n, e in _sources(run, found)])
    assert torch.equal(made, run.result.flatten())  # torch's addmm adds the bias itself


def _sources(run: Trace, found: list[Seed]) -> list[tuple[int, int]]:
    assert run.out is not None
    numbers = [seed.number for seed in found]
    seeds, elements = marks.seed_of(run.out.source).flatten(), marks.element_of(run.out.source).flatten()
    return [(numbers.index(int(n)), int(e)) for n, e in zip(seeds, elements, strict=True)]


@pytest.mark.parametrize("style", ["of its own", "of a turned input"])
def test_a_bias_is_part_of_what_a_projection_gives(style: str) -> None:
    layer = linear()

    def project(x: Tensor) -> Tensor:
        if style == "of its own":
            return torch.einsum("bnm,om->bno", x, layer.weight) + layer.bias
        return layer(x.transpose(0, 1))  # torch then adds the bias after the product

    run = follow(project, *inputs(), module=layer)
    assert run.out is not None
    (seed,) = [seed for seed in run.seeds if seed.kind == "projection"]
    made = seed.value.flatten()[marks.element_of(run.out.source)]
    assert torch.equal(made, run.result)


def test_what_is_added_later_is_no_bias_of_the_projection() -> None:
    layer = linear()
    run = follow(lambda x: functional.linear(x, layer.weight).mul(2) + layer.bias, *inputs(), module=layer)
    (seed,) = [seed for seed in run.seeds if seed.kind == "projection"]
    assert torch.allclose(seed.value.view(B, N, 6), functional.linear(inputs()[0], layer.weight))


def test_a_projection_that_the_module_does_not_know_of_is_said_to_be_so() -> None:
    hidden = linear()
    run = follow(lambda x: hidden(x), *inputs(), module=nn.Identity())
    assert [seed.name for seed in run.seeds if seed.kind == "projection"] == [UNREGISTERED]


def test_a_looked_up_embedding_is_a_projection_of_the_token() -> None:
    table = nn.Embedding(10, 6)
    ids = torch.tensor([[1, 2, 3]])
    run = follow(lambda x: table(x), ids, module=table)
    assert [seed.name for seed in run.seeds if seed.kind == "projection"] == ["weight"]
    assert positions(run) == [[[0] * 6, [1] * 6, [2] * 6]]


def test_a_wide_convolution_mixes_positions() -> None:
    conv = nn.Conv1d(M, 6, 3, padding=1)
    run = follow(lambda x: conv(x.transpose(1, 2)).transpose(1, 2), *inputs(), module=conv)
    assert run.out is not None
    assert run.out.token.unique().tolist() == [MIXED]


# Products of two tensors: whose row and whose column.

SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "@": lambda q, k: q @ k.transpose(1, 2),
    "bmm": lambda q, k: torch.bmm(q, k.transpose(1, 2)),
    "baddbmm": lambda q, k: torch.baddbmm(torch.zeros(B, N, N), q, k.mT, beta=0, alpha=0.5),
    "einsum": lambda q, k: torch.einsum("bqd,bkd->bqk", q, k),
    "transposed": lambda q, k: (k @ q.transpose(1, 2)).transpose(1, 2),
    "keys by example": lambda q, k: torch.stack([a @ b.T for a, b in zip(q, k, strict=True)]),
    "row by row": lambda q, k: torch.stack([torch.stack([k[b] @ q[b, i] for i in range(N)]) for b in range(B)]),
}


@pytest.mark.parametrize("style", SCORES)
def test_a_score_is_of_a_query_and_a_key(style: str) -> None:
    run = follow(SCORES[style], *inputs(2))
    assert run.problem == ""
    assert run.out is not None
    products = [seed for seed in run.seeds if seed.kind == "product"]
    met = set()
    for seed in products:
        rows, columns = pair_tokens(seed, run.out.source)
        for b in range(B):
            for i in range(N):
                for j in range(N):
                    pair = {int(rows[b, i, j]), int(columns[b, i, j])} - {UNKNOWN}
                    if pair:
                        met.add((b, i, j))
                        query, key = (marks.token(which, (B, N))[b, at] for which, at in ((0, i), (1, j)))
                        assert pair == {int(query), int(key)}
    assert len(met) == B * N * N


def test_weights_times_values_are_of_the_query() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v

    def attend_turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (v.mT @ (k @ q.mT).softmax(1)).mT

    for function in (attend, attend_turned):
        run = follow(function, *inputs(3))
        assert run.out is not None
        assert torch.equal(run.out.token, marks.token(0, (B, N))[..., None].expand(B, N, M))


# Softmaxes.


def softmax_of(run: Trace) -> Softmax:
    assert len(run.softmaxes) == 1
    return run.softmaxes[0]


def by_hand(s: Tensor) -> Tensor:
    e = torch.exp(s - s.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def in_place(s: Tensor) -> Tensor:
    s = s - s.amax(-1, keepdim=True)
    e = s.exp_()
    return e.div_(e.sum(-1, keepdim=True))


def with_a_guard(s: Tensor) -> Tensor:
    e = s.exp() * torch.ones_like(s).tril()
    return e / (e.sum(dim=-1, keepdim=True) + 1e-9)


SOFTMAXES: dict[str, Callable[[Tensor], Tensor]] = {
    "method": lambda s: s.softmax(-1),
    "functional": lambda s: functional.softmax(s, dim=2),
    "float32": lambda s: functional.softmax(s, dim=-1, dtype=torch.float32).to(s.dtype),
    "module": lambda s: nn.Softmax(dim=-1)(s),
    "by hand": by_hand,
    "in place": in_place,
    "guarded": with_a_guard,
    "times the inverse": lambda s: s.exp() * (1 / s.exp().sum(-1, keepdim=True)),
    "less the log-sum-exp": lambda s: (s - s.logsumexp(-1, keepdim=True)).exp(),
    "exp of log_softmax": lambda s: functional.log_softmax(s, -1).exp(),
    "normalize": lambda s: functional.normalize(s.exp(), p=1, dim=-1),
    "powers of two": lambda s: (lambda e: e / e.sum(-1, keepdim=True))((s / math.log(2)).exp2()),
    "powers of two in place": lambda s: (lambda e: e / e.sum(-1, keepdim=True))((s / math.log(2)).exp2_()),
    "two exponentials": lambda s: torch.exp(s) / torch.exp(s).sum(-1)[..., None],
}
WRITTEN_OUT = list(SOFTMAXES)[4:]
SHIFTED = ("by hand", "in place", "less the log-sum-exp", "exp of log_softmax")  # what exp was given


@pytest.mark.parametrize("style", SOFTMAXES)
def test_a_softmax_is_one_in_any_style(style: str) -> None:
    run = follow(lambda q, k: SOFTMAXES[style](q @ k.mT), *inputs(2))
    found = softmax_of(run)
    q, k = inputs(2)
    assert found.dims == (2,)
    assert found.by_hand == (style in WRITTEN_OUT)
    assert torch.allclose(found.weights, run.result, atol=1e-6)
    moved = found.scores - q @ k.mT
    if style in SHIFTED:
        moved = moved - moved.mean(-1, keepdim=True)
    assert float(moved.abs().max()) < 1e-5
    product = next(seed for seed in run.seeds if seed.kind == "product")
    assert torch.equal(marks.element_of(found.source), torch.arange(B * N * N).reshape(B, N, N))
    assert set(marks.seed_of(found.source).flatten().tolist()) == {product.number}


def test_a_softmax_over_two_dims_by_hand() -> None:
    def all_pairs(q: Tensor, k: Tensor) -> Tensor:
        e = (q @ k.mT).exp()
        return e / e.sum((1, 2), keepdim=True)

    assert softmax_of(follow(all_pairs, *inputs(2))).dims == (1, 2)


def test_weights_that_go_through_a_dropout_of_nothing_are_one_softmax_still() -> None:
    run = follow(lambda q, k: by_hand(q @ k.mT) * 1.0 / 1.0, *inputs(2))
    assert len(run.softmaxes) == 1


FILLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "masked_fill": lambda s, later: s.masked_fill(later, -1e9),
    "in place": lambda s, later: s.masked_fill_(later, -math.inf),
    "by a tensor": lambda s, later: s.masked_fill(later, torch.tensor(-1e9)),
    "where": lambda s, later: torch.where(later, -math.inf, s),
    "where of a method": lambda s, later: s.where(~later, torch.tensor(-1e9)),
    "added": lambda s, later: s + torch.zeros(N, N).masked_fill(later, -math.inf),
    "baddbmm's way": lambda s, later: torch.full((N, N), -1e9).triu(1) + s,
    "subtracted": lambda s, later: s - later.float() * 1e9,
    "assigned": lambda s, later: s.index_put_((torch.arange(B)[:, None, None], *_at(later)), torch.tensor(-1e9)),
    "clamped first": lambda s, later: s.clamp(-50, 50).masked_fill(later, -1e9),
}


def _at(later: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = later.nonzero(as_tuple=True)
    return rows[None, None], columns[None, None]


@pytest.mark.parametrize("style", FILLS)
def test_a_mask_leaves_every_score_where_it_was(style: str) -> None:
    later = torch.ones(N, N, dtype=torch.bool).triu(1)
    run = follow(lambda q, k: FILLS[style](q @ k.mT, later).softmax(-1), *inputs(2))
    assert run.problem == ""
    found = softmax_of(run)
    assert torch.equal(marks.element_of(found.source), torch.arange(B * N * N).reshape(B, N, N))
    assert bool((found.scores[:, later] < -1e8).all())


def test_the_dtype_of_a_softmax() -> None:
    run = follow(lambda q, k: (q @ k.mT).to(torch.bfloat16).softmax(-1), *inputs(2))
    assert softmax_of(run).dtypes == (torch.bfloat16, torch.bfloat16)


def test_fused_attention_is_seen_as_its_parts() -> None:
    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    q, k, v = inputs(3)
    run = follow(fused, q, k, v)
    found = softmax_of(run)
    expected = (q @ k.mT / math.sqrt(M)).masked_fill(~torch.ones(N, N).bool().tril(), -math.inf)
    assert torch.allclose(found.scores, expected, atol=1e-6)
    assert [seed.kind for seed in run.seeds].count("product") == 2
    assert run.out is not None
    assert torch.equal(run.out.token, marks.token(0, (B, N))[..., None].expand(B, N, M))
    assert torch.allclose(run.result, functional.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-6)


def test_torchs_layer_is_seen_as_its_parts_and_its_fast_path_is_left_as_it_was() -> None:
    layer = nn.MultiheadAttention(M, 2, batch_first=True).eval()
    before = torch.backends.mha.get_fastpath_enabled()
    run = follow(lambda x: layer(x, x, x, need_weights=False)[0], *inputs(), module=layer)
    assert softmax_of(run).scores.shape[-2:] == (N, N)
    assert torch.backends.mha.get_fastpath_enabled() == before
    names = [seed.name for seed in run.seeds if seed.kind == "projection"]
    assert names == ["in_proj_weight", "out_proj.weight"]


# What else a trace notes.


def test_the_line_of_every_product_and_softmax_is_known() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        scores = scores.masked_fill(torch.ones(N, N).triu(1).bool(), -1e9)
        weights = scores.softmax(-1)
        return torch.einsum("bqk,bkd->bqd", weights, v)

    run = follow(attend, *inputs(3))
    lines, first = inspect.getsourcelines(attend)
    places = [seed.where for seed in run.seeds if seed.kind == "product"] + [run.softmaxes[0].where]
    places += [step.where for step in run.steps if step.name == "masked_fill"]
    expected = ["q @ k.mT", "torch.einsum", "scores.softmax", "masked_fill"]
    assert len(places) == len(expected)
    for place, code in zip(places, expected, strict=True):
        assert place is not None
        assert place.file == __file__
        assert code in place.code
        assert lines[place.line - first].strip() == place.code


def test_dropout_is_noise_on_what_it_acts_on() -> None:
    run = follow(lambda q, k: functional.dropout(q @ k.mT, 0.5, training=True).softmax(-1), *inputs(2))
    assert [step.noise for step in run.steps] == [True]
    assert run.steps[0].order < run.softmaxes[0].order
    still = follow(lambda q, k: functional.dropout(q @ k.mT, 0.5, training=False).softmax(-1), *inputs(2))
    assert not any(step.noise for step in still.steps)


def test_a_dropout_of_its_own_is_noise_too() -> None:
    def drop(q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT
        return (scores * (torch.rand_like(scores) > 0.5)).softmax(-1)

    run = follow(drop, *inputs(2))
    assert [step.name for step in run.steps if step.noise] == ["mul"]


def test_angles_are_noted_with_their_dtype() -> None:
    def turn(x: Tensor) -> Tensor:
        angles = torch.arange(N, dtype=torch.bfloat16)[:, None] * torch.ones(M, dtype=torch.bfloat16)
        return x * angles.cos() + x * torch.sin(angles.float())

    run = follow(turn, *inputs())
    assert [(name, dtype) for name, dtype, _ in run.functions] == [("cos", torch.bfloat16), ("sin", torch.float32)]


def test_learned_numbers_are_named_by_the_step_that_they_act_in() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = nn.Parameter(torch.tensor(2.0))

    module = Scaled()
    run = follow(lambda q, k: (q @ k.mT * module.temperature.exp() / 2).softmax(-1), *inputs(2), module=module)
    assert [(step.name, step.names) for step in run.steps] == [("mul", {"temperature"}), ("div", frozenset())]


def test_phases_are_noted_too() -> None:
    run = follow(lambda x: x * torch.polar(torch.ones(M), torch.ones(M)).abs(), *inputs())
    assert [name for name, _, _ in run.functions] == ["polar"]


def test_complex_rotation_keeps_positions_and_features() -> None:
    def turn(x: Tensor) -> Tensor:
        z = torch.view_as_complex(x.reshape(B, N, M // 2, 2))
        phase = torch.polar(torch.ones(N, M // 2), torch.arange(N)[:, None].float().expand(N, M // 2))
        return torch.view_as_real(z * phase).flatten(2)

    run = follow(turn, *inputs())
    assert run.problem == ""
    assert run.out is not None
    assert torch.equal(marks.element_of(run.out.source), torch.arange(B * N * M).reshape(B, N, M))
    assert positions(run)[0] == [[0] * 4, [1] * 4, [2] * 4]


def test_tracing_changes_no_result() -> None:
    layer = nn.MultiheadAttention(M, 2, batch_first=True).eval()
    x = inputs()[0]
    run = trace(layer, (x,), lambda: layer(x, x, x), lambda y: y[0])
    assert torch.allclose(run.result[0], layer(x, x, x)[0], atol=1e-6)
    assert all(not seed.value.requires_grad for seed in run.seeds if seed.kind != "parameter")
