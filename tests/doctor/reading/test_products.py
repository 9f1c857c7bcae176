"""Products: a projection is a new source of its rows' tokens; a score is of a query and a key."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import UNREGISTERED, Seed, Trace, pair_tokens
from headwise.doctor.reading.marks import MIXED, UNKNOWN
from tests.doctor.reading.following import B, M, N, follow, inputs, linear, positions

# Projections: new sources, the tokens of their rows.

PROJECTIONS: dict[str, Callable[[nn.Linear, Tensor], Tensor]] = {
    "Linear": lambda layer, x: layer(x),
    "@": lambda layer, x: x @ layer.weight.T,
    "einsum": lambda layer, x: torch.einsum("bnm,om->bno", x, layer.weight),
    "weight first": lambda layer, x: (layer.weight @ x.transpose(1, 2)).transpose(1, 2),
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


@pytest.mark.parametrize(
    ("layer", "as_map", "expected"),
    [
        # maps of 4 x 6 pixels, in 4 patches: the first pixels are those of rows 0 and 2, columns 0 and 3
        (nn.Conv2d(M, 6, (2, 3), stride=(2, 3)), lambda x: x.mT.unflatten(-1, (4, 6)), [0, 3, 12, 15]),
        (nn.Conv2d(1, 6, 2, stride=2), lambda x: x[:, None], [MIXED] * 24),  # over the features of a token, too
        (nn.Conv1d(M, 6, 3, padding=1), lambda x: x.mT, [MIXED] * 24),
    ],
)
def test_a_patch_has_the_token_of_its_first_pixel(
    layer: nn.Module, as_map: Callable[[Tensor], Tensor], expected: list[int]
) -> None:
    run = follow(lambda x: layer(as_map(x)).flatten(2).mT[0, :, 0], torch.randn(2, 24, M), module=layer)
    assert positions(run) == expected


# Products of two tensors: whose row and whose column.

SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "@": lambda q, k: q @ k.transpose(1, 2),
    "baddbmm": lambda q, k: torch.baddbmm(torch.zeros(B, N, N), q, k.mT, beta=0, alpha=0.5),
    "einsum": lambda q, k: torch.einsum("bqd,bkd->bqk", q, k),
    "transposed": lambda q, k: (k @ q.transpose(1, 2)).transpose(1, 2),
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


@pytest.mark.parametrize(
    "attend", [lambda q, k, v: (q @ k.mT).softmax(-1) @ v, lambda q, k, v: (v.mT @ (k @ q.mT).softmax(1)).mT]
)
def test_weights_times_values_are_of_the_query(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    run = follow(attend, *inputs(3))
    assert torch.equal(run.out.token, marks.token(0, (B, N))[..., None].expand(B, N, M))
