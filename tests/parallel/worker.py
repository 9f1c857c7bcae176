"""Several processes that share a sequence: each runs the checks of a set, and writes what it came to.

python tests/parallel/worker.py FOLDER COUNT SET
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import headwise
from headwise import edits, masks, parallel
from headwise.errors import ChangedError
from headwise.masks import Mask
from headwise.models.language_model import CausalConfig, CausalLanguageModel
from headwise.nn import Cache, Encoder, MultiHeadAttention, MultiHeadLatentAttention, positions
from tests.held import check_held
from tests.parallel import cross, dtensors, meshes, records
from tests.parallel.cases import check_case, told

LENGTH = 37
IDS = torch.arange(LENGTH) // 9


def fuzz(mesh: DeviceMesh, strategy: str, first: int, count: int, length: int | None = None) -> None:
    agree = sum(check_case(seed, mesh, strategy, length) for seed in range(first, first + count))
    assert agree >= count / 2, f"{agree} of {count} were not refused"


def ring_dropout(mesh: DeviceMesh) -> None:
    """The weights are read by values that are the identity: some are 0, the others 1 / (1 - p) times what they were.

    The gradients are those of a computation that drops the same.
    """
    length, p, mask = 600, 0.3, masks.causal()
    q, k = (torch.randn(1, 2, length, 8).requires_grad_() for _ in range(2))
    v, sinks = torch.eye(length).expand(1, 2, -1, -1).clone().requires_grad_(), torch.randn(2).requires_grad_()
    whole = [q, k, v, sinks]
    layout = parallel.deal(None, length, mesh)
    parts = [headwise.shard(x.detach(), layout, mesh, dim=2).requires_grad_() for x in (q, k, v)]
    torch.manual_seed(7)  # the same in every process, which yet drops others
    with headwise.context_parallel(mesh, layout, strategy="ring"):
        out = headwise.attention(*parts, mask=mask, sinks=sinks, dropout=p)
    d_out = torch.randn(1, 2, length, length)
    found = torch.autograd.grad(out, [*parts, sinks], headwise.shard(d_out, layout, mesh, dim=2))
    dropped = headwise.gather(out, layout, mesh, dim=2)
    kept = dropped != 0
    seen = mask.to_bool(length)[0, 0]
    assert abs(float(kept[..., seen].float().mean()) - (1 - p)) < 0.01
    same_place = (int(each[290]) for each in layout.positions)  # of each process, over keys of the first
    assert not torch.equal(*(kept[0, 0, row, :290] for row in same_place))
    _, record = headwise.attention(q, k, v, mask=mask, sinks=sinks, record=True)
    scores = (q @ k.mT * 8**-0.5).masked_fill(~seen, -torch.inf)
    weights = torch.cat([scores, sinks[None, :, None, None].expand(1, 2, length, 1)], -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(weights, record.weights(), atol=1e-6, rtol=1e-5)
    expected = (weights * kept / (1 - p)) @ v
    torch.testing.assert_close(dropped, expected.detach(), atol=1e-6, rtol=1e-5)
    *wanted, d_sinks = torch.autograd.grad(expected, whole, d_out)
    for mine, full in zip(found[:3], wanted, strict=True):
        torch.testing.assert_close(headwise.gather(mine, layout, mesh, dim=2), full, atol=2e-5, rtol=1e-4)
    total = found[3].clone()
    dist.all_reduce(total)
    torch.testing.assert_close(total, d_sinks, atol=1e-4, rtol=1e-4)


def changed(mesh: DeviceMesh, strategy: str) -> None:
    """Gradients are those of the ids that forward saw; a bias that has changed is named. No Function holds any."""
    length, layout = 1300, parallel.deal(None, 1300, mesh)
    ids = torch.where(torch.arange(length) < 1260, 0, -1)
    whole = [torch.randn(1, 2, length, 8) for _ in range(3)]

    def loss(ids: Tensor, bias: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        parts = [headwise.shard(x, layout, mesh, dim=2).requires_grad_() for x in whole]
        with headwise.context_parallel(mesh, layout, strategy=strategy):
            out = headwise.attention(*parts, mask=masks.documents(ids), bias=bias)
        return out.square().sum(), parts

    wanted = torch.autograd.grad(*loss(ids.clone()))
    total, parts = loss(ids)
    expected_name = {"gather": "_Needed", "heads": "Turned", "ring": "_Ring"}[strategy]
    assert expected_name in check_held(total, [*whole, *parts, ids])
    ids[500:] = -1
    for found, expected in zip(torch.autograd.grad(total, parts), wanted, strict=True):
        torch.testing.assert_close(found, expected)
    if strategy == "ring":
        bias = torch.randn(length, length)
        total, parts = loss(ids, bias)
        check_held(total, [*parts, ids, bias])
        bias.zero_()
        with pytest.raises(ChangedError, match="bias: expected what forward saw"):
            torch.autograd.grad(total, parts)


def not_finite(mesh: DeviceMesh, strategy: str) -> None:
    """NaN in a key or value reaches only rows that may see it, with dropout too, and in the gradients."""
    length = 1300 if strategy == "ring" else 40
    layout, bad = parallel.deal(None, length, mesh), length // 2
    padding = masks.padding(torch.arange(length) != bad)
    for mask, place, dropout in ((padding, 1, 0.0), (masks.causal(), 2, 0.2)):
        whole = [torch.randn(1, 2, length, 8) for _ in range(3)]
        unseen = layout.shard(~mask.to_bool(length, length)[0, 0, None, :, bad], dist.get_rank(), 1)[0]
        found = []
        for value in (0.0, torch.nan):
            whole[place][:, :, bad] = value
            parts = [headwise.shard(x, layout, mesh, dim=2).requires_grad_() for x in whole]
            torch.manual_seed(5)
            with headwise.context_parallel(mesh, layout, strategy=strategy):
                out = headwise.attention(*parts, mask=mask, dropout=dropout)
            d_q, d_k, d_v = torch.autograd.grad(out[:, :, unseen].square().sum(), parts)
            # (A row that sees NaN gives NaN to the keys that it sees, though its gradient is 0.)
            found.append([out[:, :, unseen], d_q[:, :, unseen], d_v, *([d_k] if mask is padding else [])])
        assert not out[:, :, ~unseen].isfinite().all(-1).any()
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def gathered_batch(mesh: DeviceMesh) -> None:
    """The examples of all processes, as a loss that compares them needs them: `_Gather` holds none of them."""
    from headwise.tasks.training.shares import _Gather

    x = torch.randn(3, 4, requires_grad=True)
    assert check_held(_Gather.apply(x), [x]) == {"_Gather"}


# --- Modules ----------------------------------------------------------------------------------------------------------


def same_module(mesh: DeviceMesh, module: nn.Module, mask: Mask | None) -> None:
    """A module over a sequence that is shared: its output and all gradients are those of one process."""
    module = module.double()
    x = torch.randn(2, LENGTH, 16, dtype=torch.float64)
    expected = module(x, mask=mask)
    d_out = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, list(module.parameters()), d_out)
    layout = parallel.deal(mask, LENGTH, mesh)
    with headwise.context_parallel(mesh, layout):
        out = module(headwise.shard(x, layout, mesh), mask=mask)
    found = torch.autograd.grad(out, list(module.parameters()), headwise.shard(d_out, layout, mesh))
    torch.testing.assert_close(headwise.gather(out, layout, mesh), expected.detach(), atol=1e-10, rtol=1e-10)
    for mine, full in zip(found, wanted, strict=True):
        total = mine.clone()
        dist.all_reduce(total)
        torch.testing.assert_close(total, full, atol=1e-9, rtol=1e-9)


def modules() -> dict[str, tuple[Callable[[], nn.Module], Mask | None]]:
    causal = masks.causal()
    sizes: dict[str, Any] = {"q_rank": None, "kv_rank": 8, "nope_dim": 4, "rope_dim": 4, "value_head_dim": 4}
    return {
        "multi-head": (lambda: MultiHeadAttention(16, 4), masks.documents(IDS) & causal),
        "rope, grouped": (lambda: MultiHeadAttention(16, 4, num_kv_heads=2, positions=positions.Rope(4)), causal),
        "ALiBi": (lambda: MultiHeadAttention(16, 4, positions=positions.Alibi(4)), causal),
        "T5": (lambda: MultiHeadAttention(16, 4, positions=positions.T5Buckets(4)), None),
        "sinks, softcap": (lambda: MultiHeadAttention(16, 4, sinks=True, softcap=4.0), masks.window(5, 5)),
        "latent": (
            lambda: MultiHeadLatentAttention(16, 4, **sizes),
            causal,
        ),
        "encoder": (lambda: Encoder(16, num_layers=2, num_heads=4), masks.documents(IDS)),
    }


def padded(mesh: DeviceMesh) -> None:
    """Which tokens are real is each process's own; positions count those of the whole sequence."""
    real = torch.ones(2, LENGTH, dtype=torch.bool)
    real[0, :5], real[1, -9:] = False, False
    made = Encoder(16, num_layers=2, attention=lambda: MultiHeadAttention(16, 4, positions=positions.Rope(4)))
    x = torch.randn(2, LENGTH, 16, dtype=torch.float64)
    made = made.double()
    expected = made(x, real=real)
    layout = parallel.deal(None, LENGTH, mesh)
    with headwise.context_parallel(mesh, layout):
        out = made(headwise.shard(x, layout, mesh), real=headwise.shard(real, layout, mesh))
    found = headwise.gather(out, layout, mesh)
    torch.testing.assert_close(found[real], expected.detach()[real], atol=1e-10, rtol=1e-10)


def buffers(mesh: DeviceMesh) -> None:
    """PyTorch's habit: tensors of the whole sequence are cut in place, and restored, after an error too."""
    model = CausalLanguageModel(CausalConfig(30, 16, 2, 2, 0.0)).double()
    ids, mask = torch.randint(30, (2, LENGTH)), masks.causal()
    labels, scales = ids.roll(-1, 1).T.contiguous(), torch.rand(LENGTH)
    before, view = [x.clone() for x in (ids, labels, scales)], ids[:, 3:5]
    expected = model(ids).detach()
    given: dict[str, Any] = {"buffers": [ids, labels, scales], "buffer_seq_dims": [1, 0, -1]}
    with headwise.context_parallel(mesh, mask, **given, no_restore_buffers={scales}) as shared:
        rows = shared.layout.positions[dist.get_rank()]
        for x, was, dim in zip((ids, labels, scales), before, (1, 0, 0), strict=True):
            assert torch.equal(x, was.index_select(dim, rows))
        assert torch.equal(view, before[0][:, 3:5])
        out = model(ids)
    torch.testing.assert_close(headwise.gather(out, shared.layout, mesh), expected, atol=1e-10, rtol=1e-10)
    assert torch.equal(ids, before[0])
    assert torch.equal(labels, before[1])
    assert torch.equal(scales, before[2][rows])
    try:
        with headwise.context_parallel(mesh, buffers=[ids], buffer_seq_dims=[1]):
            raise KeyError
    except KeyError:
        assert torch.equal(ids, before[0])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"buffers": [ids], "buffer_seq_dims": []}, "one for each buffer"),
        ({"buffers": [ids, scales], "buffer_seq_dims": [1, 0]}, "expected one length"),
        ({"buffers": [ids], "buffer_seq_dims": [1], "no_restore_buffers": [scales]}, "expected some of buffers"),
        ({"buffers": [ids, ids], "buffer_seq_dims": [1, 1]}, "each tensor once"),
        ({"buffers": [torch.rand(9).requires_grad_()], "buffer_seq_dims": [0]}, "not trained"),
        ({"layout": mask}, "a mask without buffers"),
    ]

    def enter(arguments: dict[str, Any]) -> None:
        with headwise.context_parallel(mesh, **arguments):
            pass

    for arguments, said in wrong:
        assert said in told(partial(enter, arguments)), said


# --- Watching and editing ---------------------------------------------------------------------------------------------


def watched(mesh: DeviceMesh) -> None:
    """Each process's record has its rows over the keys that it got; together they are the weights."""
    model = MultiHeadAttention(16, 4, positions=positions.Rope(4)).double()
    x, mask = torch.randn(1, LENGTH, 16, dtype=torch.float64), masks.causal()
    with headwise.watch(model) as whole:
        model(x, mask=mask)
    layout = parallel.deal(mask, LENGTH, mesh)
    with headwise.context_parallel(mesh, layout), headwise.watch(model) as seen:
        model(headwise.shard(x, layout, mesh), mask=mask)
    rows = layout.positions[dist.get_rank()]
    keys = seen[0].mask.cols
    expected = whole[0].weights()[0][:, rows]
    torch.testing.assert_close(seen[0].weights()[0], expected[..., keys], atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(seen[0].entropy(), whole[0].entropy()[:, :, rows], atol=1e-8, rtol=1e-8)


def compiled(mesh: DeviceMesh) -> None:
    """What was compiled runs uncompiled: it sees the whole sequence."""
    mask = masks.causal()
    module = MultiHeadAttention(16, 4).double()
    x = torch.randn(1, LENGTH, 16, dtype=torch.float64)
    again = torch.compile(lambda x: module(x, mask=mask), backend="eager")
    expected = again(x)
    layout = parallel.deal(mask.to_bool(LENGTH)[0, 0], LENGTH, mesh)  # a tensor is a mask, too
    with headwise.context_parallel(mesh, layout):
        out = again(headwise.shard(x, layout, mesh))
    torch.testing.assert_close(headwise.gather(out, layout, mesh), expected.detach(), atol=1e-10, rtol=1e-10)


def edited(mesh: DeviceMesh) -> None:
    """Positions are those of the whole sequence, in whichever process they are."""
    model, mask = Encoder(16, num_layers=2, num_heads=4).double(), masks.causal() & masks.documents(IDS)
    x = torch.randn(2, LENGTH, 16, dtype=torch.float64)
    layout = parallel.deal(mask, LENGTH, mesh)
    plain = model(x, mask=mask)
    last = LENGTH - 1
    made = {
        "ablate": edits.ablate("layers.0", heads=[1]),
        "block": edits.block("layers.0", queries=[3, 30, last], keys=[2, 28, slice(33, 35)]),
        "block, one place": edits.block("layers.1", keys=0, heads=[2]),
        "block, from the end": edits.block("layers.1", queries=-2, keys=-3),
        "only": edits.only("layers.0", keys=range(0, LENGTH, 2)),
        "steer": edits.steer("layers.0", keys=[5, 20], by=1.5),
        "window": edits.window("layers.1", 2, first=1),
        "topk": edits.topk("layers.0", 2),
    }
    for name, edit in made.items():
        with headwise.edit(model, [edit]):
            expected = model(x, mask=mask)
        with headwise.edit(model, [edit]), headwise.context_parallel(mesh, layout):
            out = model(headwise.shard(x, layout, mesh), mask=mask)
        found = headwise.gather(out, layout, mesh)
        torch.testing.assert_close(found, expected.detach(), atol=1e-10, rtol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
        assert (expected - plain).abs().max() > 1e-3, name


# --- What cannot be ---------------------------------------------------------------------------------------------------


def refused(mesh: DeviceMesh, run: Callable[[int], object], said: str) -> None:
    """One error on every process."""

    def shared() -> None:
        with headwise.context_parallel(mesh):
            run(dist.get_rank())

    assert said in (received := told(shared)), received


def qkv(rows: int, heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(1, heads, rows, 4) for _ in range(3))  # type: ignore[return-value]


def mistakes() -> dict[str, tuple[Callable[[int], object], str]]:
    attention = headwise.attention
    return {
        "another mask": (lambda rank: attention(*qkv(8), mask=masks.window(rank, 0)), "expected the same mask"),
        "another mask's ids": (
            lambda rank: attention(*qkv(8), mask=masks.documents([0] * 15 + [rank])),
            "expected the same mask",
        ),
        "other heads": (lambda rank: attention(*qkv(8, heads=2 + rank)), "expected the same H"),
        "another option": (lambda rank: attention(*qkv(8), softcap=1.0 + rank), "expected the same options"),
        "other rows": (lambda rank: attention(*qkv(8 + 4 * rank)), "expected the rows that were dealt"),
        "a mask of one's own rows": (
            lambda rank: attention(*qkv(8), mask=masks.documents([0] * 8)),
            "the mask was made for K = 8",
        ),
        "keys of a cache": (
            lambda rank: attention(qkv(1)[0], *qkv(8)[1:]),
            "expected queries and keys of the same rows",
        ),
        "a cache": (
            lambda rank: MultiHeadAttention(16, 4)(torch.randn(1, 8, 16), cache=Cache()),
            "expected cache=None",
        ),
        "positions that nobody knows": (
            lambda rank: MultiHeadAttention(8, 2, positions=positions.Rope(4))(torch.randn(1, 8, 8)),
            "must know which rows this process holds",
        ),
        "cross-attention": (
            lambda rank: MultiHeadAttention(8, 2)(torch.randn(1, 8, 8), torch.randn(1, 8, 8)),
            "expected a module that reads its own sequence",
        ),
    }


def gone(mesh: DeviceMesh) -> None:
    """The last process ends before its call; the others hear of it."""
    if dist.get_rank() == dist.get_world_size() - 1:
        sys.exit(0)
    refused(mesh, lambda rank: headwise.attention(*qkv(8)), "lost the others")


def sets() -> dict[str, dict[str, Callable[[DeviceMesh], object]]]:
    masked = {
        f"module: {name}": (lambda mesh, make=make, mask=mask: same_module(mesh, make(), mask))
        for name, (make, mask) in modules().items()
    }
    wrong = {f"mistake: {name}": partial(refused, run=run, said=said) for name, (run, said) in mistakes().items()}
    return {
        "calls": {
            "auto": lambda mesh: fuzz(mesh, "auto", 0, 12),
            "heads": lambda mesh: fuzz(mesh, "heads", 300, 4),
            "ring": lambda mesh: fuzz(mesh, "ring", 400, 4, 1300),
            "ring, dropout": ring_dropout,
            "gathered batch": gathered_batch,
            **{f"not finite, {name}": partial(not_finite, strategy=name) for name in ("gather", "heads", "ring")},
            **{f"changed, {name}": partial(changed, strategy=name) for name in ("gather", "heads", "ring")},
        },
        "modules": {
            **masked,
            "padding": padded,
            "buffers": buffers,
            "watch": watched,
            "edit": edited,
            "compile": compiled,
            **cross.CHECKS,
            **wrong,
        },
        "records": records.checks(),
        "dtensors": {**dtensors.CHECKS, **meshes.CHECKS},
        "gone": {"gone": gone},
    }


def work(folder: Path, rank: int, count: int, name: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=count, timeout=timedelta(seconds=60)
    )
    dist.barrier()  # all are connected before one may end
    mesh = init_device_mesh("cpu", (count,))
    found: dict[str, str] = {}
    for check, run in sets()[name].items():
        torch.manual_seed(0)
        try:
            run(mesh)
            found[check] = ""
        except Exception:
            found[check] = traceback.format_exc()
    (folder / f"found-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    folder, count, name = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    children = []
    for rank in range(count):  # by fork: torch is imported once
        child = os.fork()
        if child == 0:
            try:
                work(folder, rank, count, name)
            except Exception:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
