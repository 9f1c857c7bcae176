"""Marks that travel through real operations, and the steps that are noted on the way, checkable by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import einops
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.reading import marks
from headwise.doctor.reading.marks import MIXED, UNKNOWN
from tests.doctor.reading.following import B, M, N, follow, inputs, linear, numbered, positions, softmax_of

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
    assert marks.input_of(run.out.token).tolist() == [0, 0, 0, 1, 1, 1]
    assert positions(run) == [0, 1, 2, 0, 1, 2]


# Single numbers.


def test_operations_on_single_numbers_keep_the_marks() -> None:
    run = follow(lambda x: (x * 2 + 1).tanh().masked_fill(torch.ones(N, M).triu().bool(), 0.0), numbered())
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


def test_what_is_copied_to_places_of_a_cache() -> None:
    """Three tokens written to the places 4, 0 and 1 of a cache of five."""

    def write(x: Tensor) -> Tensor:
        return torch.zeros(B, 5, M).index_copy_(1, torch.tensor([4, 0, 1]), x)

    assert positions(follow(write, numbered()))[0] == [[1] * M, [2] * M, [-1] * M, [-1] * M, [0] * M]


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
    assert torch.equal(marks.element_of(run.out.source), numbered().long())
    assert [s.name for s in run.steps if s.name != "add"] == ["mul", "masked_fill", "div"]


# Biases: part of the projection that they are added to.


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


# Masks: scores stay where they were.

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


# What is noted of the steps, and of angles.


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
    assert torch.equal(marks.element_of(run.out.source), torch.arange(B * N * M).reshape(B, N, M))
    assert positions(run)[0] == [[0] * 4, [1] * 4, [2] * 4]
