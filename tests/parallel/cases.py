"""Random calls that several processes share, and the same call by one process.

torchrun --nproc-per-node 4 tests/parallel/cases.py --first 0 --count 100
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import headwise
from headwise import masks, parallel
from headwise.errors import HeadwiseError, KernelRefused
from headwise.masks import Mask

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5}


def mask_for(draw: random.Random, length: int, batch: int, heads: int) -> Mask | None:
    """A mask, or several that are joined."""
    ids = sorted(draw.randrange(5) for _ in range(length))
    tables = [[min(i, draw.randrange(length)) for i in range(length)] for _ in range(batch)]
    kinds: list[Mask | None] = [
        None,
        masks.causal(),
        masks.window(draw.randrange(1, length), draw.randrange(length)),
        masks.documents(torch.tensor(ids)),
        masks.documents(torch.tensor([sorted(each) for each in tables])),
        masks.lengths(torch.tensor([draw.randrange(1, length + 1) for _ in range(batch)])),
        masks.prefix(draw.randrange(1, length)),
        masks.global_tokens(draw.randrange(length)) | masks.window(3, 3),
        masks.from_tensor(
            torch.rand(length, length, generator=torch.Generator().manual_seed(draw.randrange(99))) < 0.3
        ),
        masks.from_tensor(
            torch.rand(heads, length, length, generator=torch.Generator().manual_seed(draw.randrange(99))) < 0.3
        ),
        masks.dilated(draw.randrange(1, 4), draw.randrange(1, 4)),
    ]
    mask = draw.choice(kinds)
    other = draw.choice(kinds[1:5])
    if mask is not None and other is not None and draw.random() < 0.4:
        return mask & other if draw.random() < 0.7 else mask | other
    return mask


def options_for(draw: random.Random, length: int, heads: int, dtype: torch.dtype) -> dict[str, Any]:
    """Options of a call, each now and then."""
    made: dict[str, Any] = {}
    if draw.random() < 0.3:
        made["softcap"] = 5.0
    if draw.random() < 0.3:
        made["sinks"] = torch.randn(heads, dtype=dtype).requires_grad_()
    if draw.random() < 0.3:
        made["slopes"] = torch.rand(heads, dtype=dtype).requires_grad_(draw.random() < 0.5)
    if draw.random() < 0.3:
        shape = (draw.choice([1, heads]), draw.choice([1, length]), length)
        made["bias"] = torch.randn(shape, dtype=dtype).requires_grad_(draw.random() < 0.5)
    return made


def check_case(seed: int, mesh: DeviceMesh, strategy: str = "auto", length: int | None = None) -> bool:
    """One random call: output and gradients are those of one process. False if the strategy refuses it."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    dtype = torch.float32 if strategy == "ring" else draw.choice([torch.float32, torch.float64])
    length = length or draw.randrange(mesh.size(), 90)
    batch, groups, size, dim = draw.randrange(1, 3), draw.choice([2, 4]), draw.choice([1, 2]), draw.choice([4, 8])
    heads = groups * size
    mask = mask_for(draw, length, batch, heads)
    options = options_for(draw, length, heads, dtype)
    if strategy == "ring":
        options = {name: x.detach() if name != "sinks" and isinstance(x, Tensor) else x for name, x in options.items()}
    shapes = [(batch, n, length, width) for n, width in ((heads, dim), (groups, dim), (groups, 2 * dim))]
    whole = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    d_out = torch.randn(batch, heads, length, 2 * dim, dtype=dtype)
    learned = [x for x in options.values() if isinstance(x, Tensor) and x.requires_grad]

    expected = headwise.attention(*whole, mask=mask, **options)
    wanted = torch.autograd.grad(expected, [*whole, *learned], d_out)

    layout = parallel.deal(mask, length, mesh)
    parts = [parallel.shard(x.detach(), layout, mesh, dim=2).requires_grad_() for x in whole]
    with headwise.context_parallel(mesh, strategy=strategy):
        try:
            out = headwise.attention(*parts, mask=mask, **options)
        except KernelRefused:
            return False
    found = torch.autograd.grad(out, [*parts, *learned], parallel.shard(d_out, layout, mesh, dim=2))

    how = f"seed {seed}, {mesh.size()} processes, {strategy}, length {length}, mask {mask!r}, {sorted(options)}"
    near = {"atol": TOLERANCES[dtype], "rtol": TOLERANCES[dtype], "msg": lambda told: f"{how}\n{told}"}
    torch.testing.assert_close(parallel.gather(out, layout, mesh, dim=2), expected.detach(), **near)
    for mine, full in zip(found, wanted[: len(parts)], strict=False):
        torch.testing.assert_close(parallel.gather(mine, layout, mesh, dim=2), full, **near)
    for mine, full in zip(found[len(parts) :], wanted[len(parts) :], strict=True):
        total = mine.clone()
        dist.all_reduce(total)
        torch.testing.assert_close(total, full, **{**near, "atol": 10 * TOLERANCES[dtype]})
    return True


def told(run: Callable[[], object]) -> str:
    """What the error of headwise says."""
    try:
        run()
    except HeadwiseError as error:
        return str(error)
    return "nothing was raised"


def start() -> DeviceMesh:
    """Join the processes of torchrun. One that waits longer than a minute has lost the others."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    return init_device_mesh("cpu", (dist.get_world_size(),))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--first", type=int, default=0)
    arguments.add_argument("--count", type=int, default=100)
    arguments.add_argument("--strategy", default="auto")
    arguments.add_argument("--length", type=int)
    chosen = arguments.parse_args()
    mesh = start()
    seeds = range(chosen.first, chosen.first + chosen.count)
    agree = sum(check_case(seed, mesh, chosen.strategy, chosen.length) for seed in seeds)
    if dist.get_rank() == 0:
        print(f"{agree} of {chosen.count} calls agree, the others were refused", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
