"""Checks of DTensors, of one process among four: attention is that of one process, and so are all gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

import headwise
from headwise import masks, parallel
from headwise.functional import editing
from headwise.masks import Mask
from tests.parallel.cases import told

BATCH, HEADS, GROUPS, DIM = 4, 8, 4, 4
NEAR = {"atol": 1e-12, "rtol": 1e-12}


def of_sequence(length: int) -> dict[str, tuple[Mask | Tensor | None, list[str]]]:
    """Masks, and the options beside them."""
    ids = torch.arange(length) ** 2 // (length * length // 5 + 1)
    differs = torch.rand(BATCH, HEADS, length, length, generator=torch.Generator().manual_seed(4)) < 0.6
    return {
        "none": (None, []),
        "causal": (masks.causal(), ["slopes", "sinks"]),
        "documents": (masks.documents(ids) & masks.causal(), ["bias"]),
        "of examples and heads": (masks.from_tensor(differs) | masks.causal(), ["bias", "sinks"]),
        "of examples": (masks.lengths(torch.tensor([length, 3, length - 1, 1])) & masks.window(5, 2), ["slopes"]),
        "a function": (masks.from_predicate(lambda b, h, q, k: (q + k + b + h) % 3 != 0, batch=BATCH, heads=HEADS), []),
    }


def option(name: str, length: int, keys: int) -> Tensor:
    shape = {"bias": (HEADS, length, keys), "slopes": (HEADS,), "sinks": (HEADS,)}[name]
    return torch.rand(shape, dtype=torch.float64)


def same(
    mesh: DeviceMesh,
    placements: list[Placement],
    mask: Mask | Tensor | None,
    named: list[str],
    length: int,
    *,
    keys: int | None = None,
    of_keys: list[Placement] | None = None,
    around: bool = False,
) -> None:
    """A call of DTensors, and the same of one process; options are DTensors that every process has."""
    keys = keys or length
    shapes = [(BATCH, HEADS, length, DIM), (BATCH, GROUPS, keys, DIM), (BATCH, GROUPS, keys, 2 * DIM)]
    whole = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    options = {name: option(name, length, keys).requires_grad_() for name in named}
    d_out = torch.randn(BATCH, HEADS, length, 2 * DIM, dtype=torch.float64)
    expected = headwise.attention(*whole, mask=mask, softcap=5.0, **options)
    wanted = torch.autograd.grad(expected, [*whole, *options.values()], d_out)

    places = [placements, of_keys or placements, of_keys or placements]
    parts = [
        distribute_tensor(x.detach(), mesh, place).requires_grad_() for x, place in zip(whole, places, strict=True)
    ]
    everywhere = [Replicate()] * mesh.ndim
    given = {name: distribute_tensor(x.detach(), mesh, everywhere).requires_grad_() for name, x in options.items()}
    if around:
        layout = parallel.chunks(length, mesh)
        with headwise.context_parallel(mesh, layout):
            out = headwise.attention(*parts, mask=mask, softcap=5.0, **given)
    else:
        out = headwise.attention(*parts, mask=mask, softcap=5.0, **given)
    assert isinstance(out, DTensor), type(out)
    assert out.placements == tuple(placements), out.placements
    found: Any = torch.autograd.grad(out, [*parts, *given.values()], distribute_tensor(d_out, mesh, placements))
    torch.testing.assert_close(out.full_tensor(), expected.detach(), **NEAR)
    for mine, full in zip(found, wanted, strict=True):
        assert isinstance(mine, DTensor), type(mine)
        torch.testing.assert_close(mine.full_tensor(), full, **NEAR)


def rows(mesh: DeviceMesh) -> None:
    """Shard(2): chunks that are uneven, and of a process that has none."""
    for length in (37, 5):
        for mask, named in of_sequence(length).values():
            same(mesh, [Shard(2)], mask, named, length)
    same(mesh, [Shard(2)], masks.causal(), ["bias"], 37, around=True)


def rows_of_one_and_keys_of_another(mesh: DeviceMesh) -> None:
    for length, keys in ((37, 21), (9, 50)):
        mask = masks.from_tensor(torch.rand(length, keys, generator=torch.Generator().manual_seed(1)) < 0.5)
        for each, named in ((mask, ["bias"]), (masks.causal(), ["slopes"]), (None, ["sinks"])):
            same(mesh, [Shard(2)], each, named, length, keys=keys)
            same(mesh, [Shard(2)], each, named, length, keys=keys, of_keys=[Replicate()])


def examples_and_heads(mesh: DeviceMesh) -> None:
    """Shard(0), Shard(1) and Replicate(): each process computes what it has of masks and options too."""
    for mask, named in of_sequence(21).values():
        for placement in (Shard(0), Shard(1), Replicate()):
            same(mesh, [placement], mask, named, 21)
        for placement in (Shard(0), Shard(1), Shard(2)):
            same(mesh, [placement], mask, named, 21, of_keys=[Replicate()])


def meshes_of_two_dimensions(mesh: DeviceMesh) -> None:
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    for mask, named in of_sequence(19).values():
        same(two, [Shard(0), Shard(2)], mask, named, 19)
        same(two, [Shard(2), Shard(1)], mask, named, 19)
        same(two, [Shard(0), Shard(1)], mask, named, 19, of_keys=[Shard(0), Replicate()])
        same(two, [Replicate(), Shard(2)], mask, named, 19)


def fewer_key_heads_than_processes(mesh: DeviceMesh) -> None:
    """Query heads that are split, of key heads that every process has: 8 query heads of 2 key heads, in 4 processes."""
    whole = [torch.randn(2, heads, 11, 4, dtype=torch.float64).requires_grad_() for heads in (8, 2, 2)]
    expected = headwise.attention(*whole, mask=masks.causal())
    wanted = torch.autograd.grad(expected.square().sum(), whole)
    places = [[Shard(1)], [Replicate()], [Replicate()]]
    parts = [
        distribute_tensor(x.detach(), mesh, place).requires_grad_() for x, place in zip(whole, places, strict=True)
    ]
    out = headwise.attention(*parts, mask=masks.causal())
    found = torch.autograd.grad(out.square().sum(), parts)
    for mine, full in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.full_tensor(), full, **NEAR)


def plain_options(mesh: DeviceMesh) -> None:
    """Tensors that are no DTensors are those of the whole call; each process has its share of their gradients."""
    q = torch.randn(2, 4, 8, 4, dtype=torch.float64)
    slopes, bias = torch.rand(4, dtype=torch.float64).requires_grad_(), torch.rand(2, 4, 8, 8, dtype=torch.float64)
    expected = headwise.attention(q, q, q, slopes=slopes, bias=bias)
    (wanted,) = torch.autograd.grad(expected.sum(), slopes)
    for place in (Shard(1), Shard(2)):
        part = distribute_tensor(q, mesh, [place])
        out, record = headwise.attention(part, part, part, slopes=slopes, bias=bias, record=True)
        torch.testing.assert_close(out.full_tensor(), expected.detach(), **NEAR)
        (mine,) = torch.autograd.grad(out.to_local().sum(), slopes)
        torch.testing.assert_close(DTensor.from_local(mine, mesh, [Partial()]).full_tensor(), wanted, **NEAR)
        assert record.weights().shape[1:3] == ((1, 8) if place == Shard(1) else (4, 2))


def shard_and_gather(mesh: DeviceMesh) -> None:
    x = torch.randn(3, 10, 2)
    layout = parallel.chunks(10, mesh)
    everywhere = distribute_tensor(x, mesh, [Replicate()])
    part = headwise.shard(everywhere, layout, mesh)
    assert part.placements == (Shard(1),)
    assert torch.equal(part.to_local(), headwise.shard(x, layout, mesh))
    assert torch.equal(headwise.gather(part, layout, mesh), x)
    assert torch.equal(headwise.gather(part, None, mesh), x)


def refused(mesh: DeviceMesh) -> None:
    """One error in every process, which says what to do."""
    x = torch.randn(2, 4, 8, 4)
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    by_rows, by_heads, everywhere = (distribute_tensor(x, mesh, [p]) for p in (Shard(2), Shard(1), Replicate()))
    partial = DTensor.from_local(x, mesh, [Partial()])
    twice = distribute_tensor(x, two, [Shard(2), Shard(2)])
    of_two = distribute_tensor(x, two, [Shard(2), Replicate()])
    in_pairs = parallel.deal(masks.causal(), 8, mesh)

    def within(*given: Tensor, layout: parallel.Layout | None = None) -> Tensor:
        with headwise.context_parallel(mesh, layout):
            return headwise.attention(*given)

    def edited(x: Tensor) -> Tensor:
        with editing(lambda call: None):
            return headwise.attention(x, x, x)

    cases = [
        (lambda: headwise.attention(partial, partial, partial), "expected q as Shard(0)"),
        (lambda: headwise.attention(distribute_tensor(x, mesh, [Shard(3)]), by_rows, by_rows), "q=S(3)"),
        (lambda: headwise.attention(by_heads, by_rows, by_rows), "expected k to be split as q is, or Replicate()"),
        (lambda: headwise.attention(by_rows, by_rows, everywhere), "expected k and v placed alike"),
        (lambda: headwise.attention(by_rows, x, x), "all DTensors, or none"),
        (lambda: headwise.attention(by_rows, of_two, of_two), "on one mesh"),
        (lambda: headwise.attention(twice, twice, twice), "expected one dimension of the mesh to split"),
        (lambda: within(by_rows, by_rows, by_rows, layout=in_pairs), "expected the rows that a DTensor has"),
        (
            lambda: headwise.attention(by_heads, by_heads, by_heads, mask=masks.lengths([1, 2, 3])),
            "mask was made for B = 3, the call has B = 2",
        ),
        (lambda: headwise.attention(by_heads, by_heads, by_heads, slopes=torch.ones(1)), "slopes must be [H] = [4]"),
        (lambda: headwise.attention(everywhere, everywhere, everywhere, dropout=0.1), "would drop other weights"),
        (lambda: edited(by_heads), "expected every process to have all heads"),
        (lambda: within(everywhere, everywhere, everywhere), "as Shard(2) along its mesh"),
        (lambda: headwise.shard(everywhere, in_pairs, mesh, dim=2), "expected the rows that a DTensor has"),
        (lambda: headwise.attention(*[distribute_tensor(x, mesh, [Shard(0)])] * 3), "for each process"),
    ]
    for run, said in cases:
        assert said in told(run), f"{said}: {told(run)}"


CHECKS = {
    "rows": rows,
    "rows of one, keys of another": rows_of_one_and_keys_of_another,
    "examples and heads": examples_and_heads,
    "two dimensions": meshes_of_two_dimensions,
    "few key heads": fewer_key_heads_than_processes,
    "plain options": plain_options,
    "shard and gather": shard_and_gather,
    "refused": refused,
}
