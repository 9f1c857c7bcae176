"""Products: a projection is a new source of its rows' tokens; a score is of a query and a key."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Seed, Trace, pair_tokens
from headwise.doctor.reading.events import UNREGISTERED
from headwise.doctor.reading.marks import MIXED, UNKNOWN
from tests.doctor.reading.following import B, M, N, follow, inputs, linear, positions

# Projections: new sources, the tokens of their rows.

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
    assert run.out.live
    assert torch.equal(marks.position_of(run.out.token), torch.arange(N)[None, :, None].expand(B, N, 6))
    made = torch.stack([found[int(n)].value.flatten()[int(e)] for n, e in _sources(run, found)])
    assert torch.equal(made, run.result.flatten())  # torch's addmm adds the bias itself


def _sources(run: Trace, found: list[Seed]) -> list[tuple[int, int]]:
    assert run.out is not None
    numbers = [seed.number for seed in found]
    seeds, elements = marks.seed_of(run.out.source).flatten(), marks.element_of(run.out.source).flatten()
    return [(numbers.index(int(n)), int(e)) for n, e in zip(seeds, elements, strict=True)]


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


def test_a_patch_has_the_token_of_its_first_pixel() -> None:
    conv = nn.Conv2d(M, 6, (2, 3), stride=(2, 3))
    x = torch.randn(2, 4 * 6, M)  # maps of 4 x 6 pixels, in 4 patches
    run = follow(lambda x: conv(x.mT.unflatten(-1, (4, 6))).flatten(2).mT, x, module=conv)
    assert run.out is not None
    expected = torch.tensor([0, 3, 12, 15])  # of rows 0 and 2, columns 0 and 3
    assert torch.equal(marks.position_of(run.out.token), expected[None, :, None].expand(2, 4, 6))


def test_patches_that_share_a_token_are_mixed() -> None:
    conv = nn.Conv2d(1, 6, 2, stride=2)  # over the features of a token, too
    run = follow(lambda x: conv(x[:, None]).flatten(2).mT, torch.randn(2, 4, M), module=conv)
    assert bool((run.out.token == marks.MIXED).all())


def test_a_wide_convolution_mixes_positions() -> None:
    conv = nn.Conv1d(M, 6, 3, padding=1)
    run = follow(lambda x: conv(x.transpose(1, 2)).transpose(1, 2), *inputs(), module=conv)
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
        assert torch.equal(run.out.token, marks.token(0, (B, N))[..., None].expand(B, N, M))
