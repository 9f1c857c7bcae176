"""Checks of records of a shared sequence: joined, and in files. worker.py runs them in every process."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import headwise
from headwise import masks, parallel
from headwise.errors import ArgumentError, FileError, HeadwiseError, ParallelError, RecordError
from headwise.masks import Mask
from headwise.nn import Encoder, MultiHeadAttention, positions
from headwise.records import AttentionRecord, Seen, statistics, whole
from headwise.records.statistics import Statistic

LENGTH = 53
IDS = torch.arange(LENGTH) // 17


@contextmanager
def one_folder(mesh: DeviceMesh) -> Iterator[Path]:
    """A folder of all processes."""
    with tempfile.TemporaryDirectory() as own:
        told = [own]
        dist.broadcast_object_list(told, src=0)
        yield Path(told[0])
        dist.barrier()


def same(found: Any, expected: Any, what: str) -> None:
    for x, y in zip(*(each if isinstance(each, tuple) else (each,) for each in (found, expected)), strict=True):
        torch.testing.assert_close(x, y, atol=1e-11, rtol=1e-11, msg=lambda told: f"{what}\n{told}")


def same_record(found: AttentionRecord, expected: AttentionRecord, what: str) -> None:
    """Every question to both has one answer."""
    assert found.shape == expected.shape, what
    assert found.site == expected.site, (what, found.site, expected.site)
    same(found.weights(), expected.weights(), what)
    same(found.scores(heads=[0]), expected.scores(heads=[0]), what)
    for rows, cols, heads in (
        ([40, 2, 2, 51], [0, 50, 3], 1),
        (-1, None, None),
        (slice(5, 30, 3), 7, [2, 0]),
        ([], [1], 0),
    ):
        same(found.weights(rows, cols, heads), expected.weights(rows, cols, heads), f"{what} {rows} {cols} {heads}")
    given: dict[str, Any] = {"offsets": (1, 4, -2), "first_keys": 2, "top": 5, "size": (9, 7)}
    mine, theirs = (dict(each.statistics(**given)) for each in (found, expected))
    assert mine.keys() == theirs.keys(), what
    for (weights, keys), into in ((mine.pop("top"), mine), (theirs.pop("top"), theirs)):
        into["strongest"] = weights, keys.where(weights > 1e-9, -1)  # which keys fill up a row is open
    for name in mine:
        same(mine[name], theirs[name], f"{what} {name}")
    same(found.top_k(LENGTH)[0], expected.top_k(LENGTH)[0], what)  # more keys than a process has
    same(found.lse, expected.lse, what)
    same(found.used_weights(rows=[3, 30]), expected.used_weights(rows=[3, 30]), what)


def models() -> dict[str, tuple[Callable[[], nn.Module], Mask | None]]:
    causal = masks.causal()
    grouped = lambda: MultiHeadAttention(16, 4, num_kv_heads=2, positions=positions.Rope(4))  # noqa: E731
    return {
        "causal, grouped": (grouped, causal),
        "packed, other ids in each example": (grouped, masks.documents(torch.stack([IDS, IDS.flip(0)]))),
        "everything": (lambda: Encoder(16, num_layers=2, num_heads=4), None),
        "sinks, softcap": (lambda: MultiHeadAttention(16, 4, sinks=True, softcap=4.0), masks.window(9, 0)),
        "T5": (lambda: MultiHeadAttention(16, 4, positions=positions.T5Buckets(4)), None),
        "keys that nobody sees": (lambda: MultiHeadAttention(16, 4), masks.lengths(torch.tensor([LENGTH - 9, 11]))),
    }


def run(mesh: DeviceMesh, model: nn.Module, mask: Mask | None, **given: Any) -> tuple[Seen, Seen]:
    """(what one process sees, what this process sees of the shared sequence)"""
    model = model.double()
    x = torch.randn(2, LENGTH, 16, dtype=torch.float64)
    with headwise.watch(model, **given) as one:
        model(x, mask=mask)
    layout = parallel.deal(mask, LENGTH, mesh)
    with headwise.context_parallel(mesh, layout), headwise.watch(model, **given) as seen:
        model(headwise.shard(x, layout, mesh), mask=mask)
    return one, seen


def joined_and_saved(mesh: DeviceMesh, make: Callable[[], nn.Module], mask: Mask | None) -> None:
    """Joined, from one file and from a file a process, the records are those of one process."""
    one, seen = run(mesh, make(), mask, values=True)
    together = parallel.joined(seen, mesh)
    one.tokens = together.tokens = [[f"w{i}" for i in range(LENGTH)]] * 2
    assert together.layers == one.layers
    with one_folder(mesh) as folder:
        together.save(folder / "one.hw")
        together.save(folder / "parts.hw", parts=True)
        dist.barrier()
        opened = {"joined": together}
        if dist.get_rank() == 0:
            opened |= {name: headwise.load(folder / name, verify=True) for name in ("one.hw", "parts.hw")}
        for name, each in opened.items():
            for layer in one.layers:
                same_record(each[layer], one[layer], f"{name} {layer}")
            assert each.row_labels(each.records[0], 1) == one.row_labels(one.records[0], 1)
            same(each[0, 1, "w5", ["w3", "w5"]], one[0, 1, "w5", ["w3", "w5"]], name)
            assert str(each.summary()) == str(one.summary())
            if name != "joined":
                for record, expected in zip(each, one, strict=True):
                    same(record.q, expected.q, name)
                    used = (
                        torch.ones(1, 1, LENGTH, dtype=torch.bool) if mask is None else mask.used_keys(LENGTH, LENGTH)
                    )
                    used = torch.ones(1, 1, LENGTH, dtype=torch.bool) if used is None else used
                    there = used.any(1, keepdim=True).any(0, keepdim=True)[..., None]
                    same(record.k * there, expected.k * there, name)
                    same(record.v * there, expected.v * there, name)
                    assert record.mask == expected.mask


def of_calls(mesh: DeviceMesh) -> None:
    """`record=True` of a call with a bias for every pair, or for every key."""
    q, k, v = (torch.randn(2, heads, LENGTH, 4, dtype=torch.float64) for heads in (4, 2, 2))
    for shape in ((4, LENGTH, LENGTH), (1, LENGTH), (2, 1, LENGTH, 1)):
        bias, mask = torch.randn(shape, dtype=torch.float64), masks.causal()
        _, one = headwise.attention(q, k, v, mask=mask, bias=bias, record=True)
        with headwise.context_parallel(mesh):
            parts = [parallel.shard(x, mask, mesh, dim=2) for x in (q, k, v)]
            _, mine = headwise.attention(*parts, mask=mask, bias=bias, record=True)
        together = parallel.joined(Seen([mine]), mesh)
        same_record(together[0], one, f"{shape}")
        with one_folder(mesh) as folder:
            together.save(folder / "one.hw")
            together.save(folder / "parts.hw", parts=True)
            dist.barrier()
            for name in ("one.hw", "parts.hw"):
                (record,) = headwise.load(folder / name)
                same_record(record, one, f"{name} {shape}")
                lower = torch.ones(LENGTH, LENGTH).tril()  # no process has the bias of pairs that the mask forbids
                same(record.bias * lower, bias.expand(record.bias.shape) * lower, name)  # type: ignore[operator]


def in_small_pieces(mesh: DeviceMesh) -> None:
    """A file whose tensors come in many pieces is that of few."""
    _, seen = run(mesh, Encoder(16, num_layers=2, num_heads=4), masks.window(6, 2))
    together = parallel.joined(seen, mesh)
    with one_folder(mesh) as folder:
        together.save(folder / "few.hw")
        for size in (64, 1000, 4000):
            before, whole.PIECE = whole.PIECE, size
            together.save(folder / "many.hw")
            whole.PIECE = before
            dist.barrier()
            assert (folder / "few.hw").read_bytes() == (folder / "many.hw").read_bytes(), size
            dist.barrier()


def statistics_alone(mesh: DeviceMesh) -> None:
    """Without queries and keys, what was computed in each process is joined."""
    given: dict[str, Any] = {"statistics": ["entropy", "distance", "received", "top", "pooled_mean"], "keep": False}
    one, seen = run(mesh, Encoder(16, num_layers=2, num_heads=4), masks.causal(), **given)
    together = parallel.joined(seen, mesh)
    for layer in one.layers:
        for name in ("entropy", "distance", "received", "lse"):
            same(getattr(together[layer].statistics(name), name), getattr(one[layer].statistics(name), name), name)
        assert "pooled_mean" not in dict(together[layer].statistics())
    raises(RecordError, "needs the queries and keys", lambda: together[0].pooled(64))
    raises(RecordError, "the queries and keys were not kept", lambda: together[0].weights(rows=[0]))


def positions_of_the_whole(mesh: DeviceMesh) -> None:
    """A process's own record counts distances by positions of the whole sequence."""
    one, seen = run(mesh, MultiHeadAttention(16, 4), masks.causal())
    share = seen[0].share
    found, expected = (each[0].statistics(offsets=(1, 5), first_keys=1) for each in (seen, one))
    for name in ("distance", "offset_mass", "first_visible"):
        same(getattr(found, name), getattr(expected, name)[:, :, share.rows], name)


# --- What travels -----------------------------------------------------------------------------------------------------


@contextmanager
def counting() -> Iterator[list[int]]:
    """The bytes that this process receives in collectives, added up in a list of one number."""
    counted = [0]
    kept = {name: getattr(dist, name) for name in ("all_gather", "broadcast", "all_reduce", "all_to_all_single")}

    def count(name: str) -> Callable[..., Any]:
        def counting(x: Any, *args: Any, **named: Any) -> Any:
            counted[0] += sum(each.nbytes for each in (x if isinstance(x, list) else [x]))
            return kept[name](x, *args, **named)

        return counting

    for name in kept:
        setattr(dist, name, count(name))
    try:
        yield counted
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)


def only_what_is_asked(mesh: DeviceMesh) -> None:
    one, seen = run(mesh, MultiHeadAttention(16, 4, num_kv_heads=2), masks.causal())
    together = parallel.joined(seen, mesh)
    batch, heads, length, _ = one[0].shape
    agreed = 16 * 8 * mesh.size()  # numbers by which the processes see that they ask the same
    with counting() as counted:
        found = together[0].weights(rows=[5], cols=[0, 3])
    assert counted[0] == batch * heads * 1 * 2 * 8 + agreed, counted
    same(found, one[0].weights(rows=[5], cols=[0, 3]), "weights")
    with counting() as counted:
        together[0].weights(rows=[5, 6], heads=1)
    assert counted[0] <= 2 * batch * 2 * length * 8 + agreed, counted
    with counting() as counted:
        together[0].received()
    assert counted[0] == batch * heads * length * 8 + agreed, counted
    with counting() as counted:
        together[0].weights()
    assert counted[0] >= batch * heads * length * length * 8


# --- What cannot be ---------------------------------------------------------------------------------------------------


def raises(kind: type[HeadwiseError], said: str, run: Callable[[], object]) -> None:
    with pytest.raises(kind) as told:
        run()
    assert type(told.value) is kind, repr(told.value)
    assert said in str(told.value), repr(told.value)


def other_questions(mesh: DeviceMesh) -> None:
    """What the processes ask is compared before anything travels; the next question is answered again."""
    one, seen = run(mesh, Encoder(16, num_layers=2, num_heads=4), masks.causal())
    together, rank = parallel.joined(seen, mesh), dist.get_rank()
    record = together[0]
    differing: dict[str, tuple[Callable[[], object], str]] = {
        "rows": (lambda: record.weights(rows=[rank], cols=[0]), "expected the same rows in every process"),
        "cols": (lambda: record.weights(rows=[1], cols=slice(rank)), "expected the same cols in every process"),
        "names": (lambda: record.statistics("lse", ("entropy", "received")[min(rank, 1)]), "expected the same names"),
        "options": (lambda: record.top_k(2 + rank), "expected the same options"),
        "kinds": (
            lambda: record.weights(rows=[1]) if rank else record.entropy(),
            "expected every process to do this now",
        ),
        "layers": (lambda: together[min(rank, 1)].weights(rows=[1]), "expected every process to do this now"),
        "one invalid": (lambda: record.weights(rows=[LENGTH * rank]), "expected the same rows in every process"),
        "files": (lambda: together.save("nowhere/run.hw", parts=rank == 0), "expected the same parts in every process"),
        "joining": (
            lambda: parallel.joined(seen if rank else seen.only(0), mesh),
            "expected the same number of records",
        ),
    }
    for name, (ask, said) in differing.items():
        raises(ParallelError, said, ask)
        same(record.weights(rows=[7]), one[0].weights(rows=[7]), name)
    raises(ArgumentError, "rows must lie in", lambda: record.weights(rows=[LENGTH]))
    raises(ArgumentError, "statistics: the names are lse", lambda: record.statistics("nothing"))
    raises(ParallelError, "expected the same names", lambda: record.statistics("nothing" if rank else "entropy"))
    raises(ArgumentError, "rows= cannot be asked of a record in parts", lambda: record.statistics("lse", rows=4))
    raises(RecordError, "its queries and keys are with", lambda: record.q)
    raises(RecordError, "expected a record of a shared sequence", lambda: parallel.joined(one, mesh))


def one_that_cannot_answer(mesh: DeviceMesh) -> None:
    """A record that was changed in one process is that process's error; the others hear that it cannot answer."""
    q = torch.randn(1, 2, LENGTH, 4)
    with headwise.context_parallel(mesh):
        part = parallel.shard(q, None, mesh, dim=2)
        _, mine = headwise.attention(part, part, part, record=True)
    together, rank = parallel.joined(Seen([mine]), mesh), dist.get_rank()
    with one_folder(mesh) as folder:
        together.save(folder / "run.hw")
        before = (folder / "run.hw").read_bytes() if rank == 0 else b""
        if rank == 1:
            part.zero_()
        for ask in (
            lambda: together[0].weights(rows=[0]),
            lambda: together.save(folder / "run.hw"),
            lambda: together.save(folder / "parts.hw", parts=True),
        ):
            if rank == 1:
                raises(RecordError, "was changed in place after the call", ask)
            else:
                raises(ParallelError, "process 1 cannot", ask)
        assert rank or (folder / "run.hw").read_bytes() == before
        assert rank or [each.name for each in folder.glob("*.part")] == []


def files_that_cannot_be_written(mesh: DeviceMesh) -> None:
    _, seen = run(mesh, MultiHeadAttention(16, 4), masks.causal())
    together, rank = parallel.joined(seen, mesh), dist.get_rank()
    with one_folder(mesh) as folder:
        nowhere = folder / "nowhere" / "run.hw"
        if rank == 0:
            raises(FileError, "cannot write", lambda: together.save(nowhere))
        else:
            raises(ParallelError, "process 0 cannot do its part", lambda: together.save(nowhere))
        together.save(folder / "run.hw", parts=True)
        together.save(folder / "run.hw", parts=True)  # in the place of the first
        dist.barrier()
        same(headwise.load(folder / "run.hw")[0].weights(rows=[3]), together[0].weights(rows=[3]), "again")
        dist.barrier()
        if rank == 0:
            (folder / "run.hw" / "other.hw").write_bytes(b"")
        dist.barrier()
        raises(
            FileError,
            "expected a folder without other records. Received: other.hw",
            lambda: together.save(folder / "run.hw", parts=True),
        )


class Odd(Statistic):
    """One that does not say how its answers are joined."""

    name = "odd"
    unit = "share"
    sentence = "The largest weight of a query."

    def update(self, tile: Any) -> None:
        self.answer[:, tile.rows] = tile.weights.amax(-1)


class Highest(Odd):
    name = "highest"
    of_shares = "rows"


def registered(mesh: DeviceMesh) -> None:
    """A statistic of another package is joined if it says how."""
    one, seen = run(mesh, MultiHeadAttention(16, 4), masks.causal())
    together = parallel.joined(seen, mesh)
    try:
        statistics.register(Odd)
        statistics.register(Highest)
        same(together[0].statistics("highest").highest, one[0].weights().amax(-1), "highest")
        raises(RecordError, "it does not say how it follows", lambda: together[0].statistics("odd"))
        assert together[0].statistics().odd is None
    finally:
        for each in (Odd, Highest):
            statistics.STATISTICS.pop(each.name, None)


def edited(mesh: DeviceMesh) -> None:
    """The records of a run that is edited are joined too."""
    model, mask = Encoder(16, num_layers=2, num_heads=4).double(), masks.causal()
    x = torch.randn(1, LENGTH, 16, dtype=torch.float64)
    layout = parallel.deal(mask, LENGTH, mesh)

    def watched(edit: Any) -> tuple[Seen, Seen]:
        with headwise.edit(model, [edit]), headwise.watch(model) as one:
            model(x, mask=mask)
        with headwise.context_parallel(mesh, layout), headwise.edit(model, [edit]), headwise.watch(model) as seen:
            model(headwise.shard(x, layout, mesh), mask=mask)
        return one, seen

    one, seen = watched(headwise.edits.ablate("layers.0", heads=[1]))
    same(parallel.joined(seen, mesh)["layers.1"].weights(), one["layers.1"].weights(), "ablated")

    def nearer(call: Any, where: Any) -> Any:
        return dataclasses.replace(call, mask=call.mask & masks.window(3, 3))

    _, seen = watched(headwise.edits.call("layers.1", nearer))
    raises(RecordError, "an edit gave it another mask", lambda: parallel.joined(seen, mesh))
    assert len(parallel.joined(seen.only("layers.0"), mesh)) == 1


def checks() -> dict[str, Callable[[DeviceMesh], object]]:
    return {
        **{
            name: lambda mesh, make=make, mask=mask: joined_and_saved(mesh, make, mask)
            for name, (make, mask) in models().items()
        },
        "calls": of_calls,
        "small pieces": in_small_pieces,
        "statistics alone": statistics_alone,
        "positions": positions_of_the_whole,
        "bytes": only_what_is_asked,
        "other questions": other_questions,
        "one cannot": one_that_cannot_answer,
        "no file": files_that_cannot_be_written,
        "registered": registered,
        "edited": edited,
    }
