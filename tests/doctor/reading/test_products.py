"""Products: a projection is a new source of its rows' tokens; a score is of a query and a key."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import pair_tokens
from headwise.doctor.reading.marks import MIXED
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
    assert marks.seed_of(run.out.source).unique().tolist() == [seed.number for seed in found]


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
}


@pytest.mark.parametrize("style", SCORES)
def test_a_score_is_of_a_query_and_a_key(style: str) -> None:
    run = follow(SCORES[style], *inputs(2))
    assert run.problem == ""
    (seed,) = [seed for seed in run.seeds if seed.kind == "product"]
    pair = torch.stack(pair_tokens(seed, run.out.source)).sort(0).values  # tokens of the first input come first
    query, key = (marks.token(which, (B, N)) for which in (0, 1))
    assert torch.equal(pair[0], query[:, :, None].expand(B, N, N))
    assert torch.equal(pair[1], key[:, None].expand(B, N, N))
