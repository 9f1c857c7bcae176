"""Marks that travel through real operations, and the steps that are noted on the way, checkable by hand."""

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
from headwise.doctor.reading.marks import MIXED, UNKNOWN
from headwise.doctor.reading.trace import trace
from tests.doctor.reading.following import B, M, N, follow, inputs, linear, numbered, positions, softmax_of

# Moves: the source of every number is where it stood, its token the position that it is of.

MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "a bare view": lambda x: x.view(B, 2, N, 2),
    "permute": lambda x: x.permute(2, 0, 1).contiguous().double(),
    "einops": lambda x: einops.rearrange(x, "b n (h d) -> (b h) n d", h=2),
    "unbind": lambda x: x.unflatten(-1, (2, 2)).unbind(2)[1],
    "slices": lambda x: x[:, 1:, ::2],
    "bool index": lambda x: x[torch.tensor([True, False])],
    "gather": lambda x: x.gather(-1, torch.zeros(B, N, 2, dtype=torch.long)),
    "roll and flip": lambda x: x.roll(1, dims=1).flip(0),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1).repeat(1, 2, 1),
    "expand": lambda x: x[:, None].expand(B, 2, N, M),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "cat of parts": lambda x: torch.cat((x[..., 2:], x[..., :2]), dim=-1),
    "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
    "as_strided": lambda x: x.as_strided((2, 2), (M, 1)),
    "complex and back": lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(B, N, 2, 2))).flatten(2),
    "list of rows": lambda x: torch.stack([x[:, i] for i in (2, 1, 0)], dim=1),
}


@pytest.mark.parametrize("name", MOVES)
def test_marks_move_as_the_numbers_do(name: str) -> None:
    run = follow(MOVES[name], numbered())
    assert run.problem == ""
    place = run.result.long()
    assert run.out.token.shape == run.out.source.shape == run.result.shape
    assert torch.equal(marks.element_of(run.out.source), place)
    assert torch.equal(marks.position_of(run.out.token), place // M % N)
    assert torch.equal(marks.example_of(run.out.token), place // (N * M))
    assert run.out.live


def buffer(x: Tensor, write: Callable[[Tensor, Tensor], object]) -> Tensor:
    """What the first example's first features are after something is written into zeros."""
    kept = torch.zeros(B, N, M)
    write(kept, x)
    return kept[0, :, 0]


def cached(x: Tensor) -> Tensor:
    return torch.zeros(B, 5, M).index_copy_(1, torch.tensor([4, 0, 1]), x)[0, :, 0]


# What becomes of three tokens, in the first feature: positions.
WRITES: dict[str, tuple[Callable[[Tensor], Tensor], list[int]]] = {
    "padded": (lambda x: functional.pad(x, (0, 0, 1, 0))[0, :, 0], [UNKNOWN, 0, 1, 2]),
    "two positions added": (lambda x: (x + x.roll(1, dims=1))[0, :, 0], [MIXED] * 3),
    "added to itself": (lambda x: (x + x)[0, :, 0], [0, 1, 2]),
    "mean over positions": (lambda x: x.mean(1)[0], [MIXED] * M),
    "copied into a view": (lambda x: buffer(x, lambda kept, x: kept[:, 1:].copy_(x[:, :2])), [UNKNOWN, 0, 1]),
    "added to a view": (lambda x: buffer(x, lambda kept, x: kept[:, 1:].add_(x[:, :2])), [UNKNOWN, 0, 1]),
    "assigned by index": (
        lambda x: buffer(x, lambda kept, x: kept.__setitem__((slice(None), torch.tensor([2, 0])), x[:, :2])),
        [1, UNKNOWN, 0],
    ),
    "written into a cache": (cached, [1, 2, UNKNOWN, UNKNOWN, 0]),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_and_what_meets(name: str) -> None:
    function, expected = WRITES[name]
    assert positions(follow(function, numbered())) == expected


def test_several_inputs_are_told_apart() -> None:
    run = follow(lambda x, y: torch.cat((x, y), dim=1)[0, :, 0], *inputs(2))
    assert marks.input_of(run.out.token).tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        (lambda x: (x / 2).transpose(1, 2) * torch.tensor(0.5), 0.25),
        (lambda x: 2 * x, 2.0),
        (lambda x: 1 / x, 1.0),
        (lambda x: functional.layer_norm(x / 8, (M,)), 1.0),  # a norm forgets what stood before
    ],
)
def test_the_number_by_which_everything_was_multiplied(change: Callable[[Tensor], Tensor], factor: float) -> None:
    assert follow(change, numbered() + 1).out.factor == pytest.approx(factor)


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.mul_(2).add_(1).masked_fill_(torch.ones(N, M).bool().triu(1), -9.0)
    y[0] /= 4
    return y


def every_second(x: Tensor) -> Tensor:
    """The rotation of many tutorials: out[..., ::2] and out[..., 1::2]."""
    out = torch.empty_like(x)
    out[..., ::2] = x[..., ::2] * 0.5 - x[..., 1::2] * 0.5
    out[..., 1::2] = x[..., 1::2] * 0.5 + x[..., ::2] * 0.5
    return out


def turned(x: Tensor) -> Tensor:
    z = torch.view_as_complex(x.reshape(B, N, M // 2, 2))
    phase = torch.polar(torch.ones(N, M // 2), torch.arange(N)[:, None].float().expand(N, M // 2))
    return torch.view_as_real(z * phase).flatten(2)


def masked(x: Tensor) -> Tensor:
    return torch.where(x < 9, -math.inf, x.tanh().index_put_((torch.tensor([0]),), torch.tensor(-1e9)))


@pytest.mark.parametrize("change", [in_place, every_second, turned, masked])
def test_elementwise_operations_leave_every_number_in_its_place(change: Callable[[Tensor], Tensor]) -> None:
    run = follow(change, numbered())
    assert run.problem == ""
    assert torch.equal(marks.element_of(run.out.source), numbered().long())
    assert positions(run)[0] == [[0] * 4, [1] * 4, [2] * 4]


# Biases: part of the projection that they are added to.


@pytest.mark.parametrize("later", [False, True])
def test_a_bias_is_part_of_what_a_projection_gives(later: bool) -> None:
    layer = linear()

    def project(x: Tensor) -> Tensor:
        y = torch.einsum("bnm,om->bno", x, layer.weight)
        return y.mul(2) + layer.bias if later else y + layer.bias

    run = follow(project, *inputs(), module=layer)
    (seed,) = [seed for seed in run.seeds if seed.kind == "projection"]
    made = seed.value.flatten()[marks.element_of(run.out.source)]
    assert torch.allclose(made, functional.linear(inputs()[0], layer.weight) if later else run.result)


# What is noted of the steps, of angles and of lines.


@pytest.mark.parametrize(
    ("drop", "name"),
    [
        (lambda s: functional.dropout(s, 0.5, training=True), "native_dropout"),
        (lambda s: s * (torch.rand_like(s) > 0.5), "mul"),
        (lambda s: functional.dropout(s, 0.5, training=False), ""),
    ],
)
def test_dropout_is_noise_on_what_it_acts_on(drop: Callable[[Tensor], Tensor], name: str) -> None:
    run = follow(lambda q, k: drop(q @ k.mT).softmax(-1), *inputs(2))
    noisy = [step for step in run.steps if step.noise]
    assert bool(noisy) == bool(name)
    assert all(step.order < run.softmaxes[0].order for step in noisy)


def test_angles_are_noted_with_their_dtype() -> None:
    def turn(x: Tensor) -> Tensor:
        angles = torch.arange(N, dtype=torch.bfloat16)[:, None] * torch.ones(M, dtype=torch.bfloat16)
        phases = torch.polar(torch.ones(M), torch.ones(M)).abs()
        return x * angles.cos() + x * torch.sin(angles.float()) * phases

    expected = [("polar", torch.complex64), ("cos", torch.bfloat16), ("sin", torch.float32)]
    assert [(name, dtype) for name, dtype, _ in follow(turn, *inputs()).functions] == expected


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
    for place, code in zip(places, ["q @ k.mT", "torch.einsum", "scores.softmax", "masked_fill"], strict=True):
        assert place.file == __file__
        assert code in place.code
        assert lines[place.line - first].strip() == place.code


# One forward as a whole: fused attention is made to run as its parts, and tracing leaves everything else as it was.


def test_torchs_layer_is_seen_as_its_parts_and_everything_is_left_as_it_was() -> None:
    layer = nn.MultiheadAttention(M, 2, batch_first=True).eval()
    before = torch.backends.mha.get_fastpath_enabled()
    x = inputs()[0]
    run = trace(layer, (x,), lambda: layer(x, x, x, need_weights=False), lambda y: y[0])
    assert softmax_of(run).scores.shape[-2:] == (N, N)
    assert torch.backends.mha.get_fastpath_enabled() == before
    assert [seed.name for seed in run.seeds if seed.kind == "projection"] == ["in_proj_weight", "out_proj.weight"]
    assert torch.allclose(run.result[0], layer(x, x, x)[0], atol=1e-6)
    assert all(not seed.value.requires_grad for seed in run.seeds if seed.kind != "parameter")
