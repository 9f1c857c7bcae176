"""Whether `auto` chooses well: random calls on the CPU, every kernel that does not refuse them, and the one chosen.

    python benchmarks/choice.py                        # 200 calls; a few minutes
    python benchmarks/choice.py --calls 40 --seed 3 --show
    HEADWISE_NATIVE=off python benchmarks/choice.py    # without the native kernels

Each call is drawn from the seed and its index. The kernels take turns; a figure is the median of the rounds. A choice
is good if it takes at most 1.1 times as long as the fastest. Calls that take less than 0.2 ms are left out: there the
choice costs more than it could save, and it is scaled_dot_product_attention.
"""

from __future__ import annotations

import argparse
import random
import statistics
import warnings
from collections import Counter
from collections.abc import Callable

import torch

from headwise import masks
from headwise.call import AttentionCall, make_call
from headwise.kernels import KERNELS, choose, speeds
from headwise.kernels.kernel import refusal
from headwise.kernels.measure import runs, take_turns
from headwise.kernels.plan import find_name

MASKS: dict[str, Callable[[random.Random, int], masks.Mask | None]] = {
    "none": lambda draw, n: None,
    "causal": lambda draw, n: masks.causal(),
    "window": lambda draw, n: masks.window(draw.choice([31, 127, 255, 1023]), 0),
    "two-sided window": lambda draw, n: masks.window(draw.choice([32, 128, 512]), draw.choice([32, 128, 512])),
    "documents": lambda draw, n: masks.documents(torch.arange(n) // draw.choice([50, 200, 512])),
    "packed, causal": lambda draw, n: masks.documents(torch.arange(n) // draw.choice([200, 512])) & masks.causal(),
    "prefix": lambda draw, n: masks.prefix(draw.randint(1, n)),
    "padding": lambda draw, n: masks.lengths([draw.randint(n // 4, n)]),
    "big bird": lambda draw, n: masks.big_bird(n, block_size=64),
    "global tokens": lambda draw, n: masks.window(64, 64) | masks.global_tokens([0, 1]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--show", action="store_true", help="every call, not only the bad choices")
    asked = parser.parse_args()
    print(speeds.name_machine())
    chosen: Counter[str] = Counter()
    losses: list[float] = []
    for index in range(asked.calls):
        name, call, trains = drawn(asked.seed, index)
        times = measured(call, asked.rounds, trains=trains)
        fastest = min(times.values())
        if fastest < 0.2e-3:
            continue
        call = drawn(asked.seed, index)[1]  # the choice for one mask is remembered with it
        with torch.set_grad_enabled(trains):
            mine = find_name(choose(call))
        loss = times[mine] / fastest
        chosen[mine] += 1
        losses.append(loss)
        if loss > 1.1 or asked.show:
            shown = "  ".join(f"{key} {1000 * took:.2f}" for key, took in sorted(times.items(), key=lambda x: x[1]))
            about = f"{name}, {tuple(call.shape)}, D={call.q.shape[3]}"
            print(f"{index:4} {loss:5.2f}x  {mine:9} {about}: {shown} ms")
    good = sum(loss <= 1.1 for loss in losses)
    print(f"{good} of {len(losses)} choices are within 10% of the fastest kernel, the worst takes")
    print(f"    {max(losses):.2f} times as long, the mean {statistics.mean(losses):.3f} times. Chosen: {chosen}")


def drawn(seed: int, index: int) -> tuple[str, AttentionCall, bool]:
    """A call, what it is, and whether it trains."""
    draw = random.Random(f"{seed} {index}")
    torch.manual_seed(index)
    name = draw.choice(list(MASKS))
    batch, heads, length = draw.choice([1, 1, 2, 4]), draw.choice([4, 8, 12]), draw.choice([128, 300, 512, 1024, 2048])
    key_heads, width = draw.choice([heads, heads, heads // 4]), draw.choice([32, 64, 64, 128])
    dtype = draw.choice([torch.float32, torch.float32, torch.bfloat16])
    trains = draw.random() < 0.3
    sizes = ((batch, heads, length, width), *[(batch, key_heads, length, width)] * 2)
    q, k, v = (torch.randn(size, dtype=dtype, requires_grad=trains) for size in sizes)
    options: dict[str, float] = {}
    if draw.random() < 0.15:
        options["softcap"] = 30.0
    if draw.random() < 0.15:
        options["dropout"] = 0.1
    given = ", ".join([str(dtype).removeprefix("torch."), *options, *(["training"] if trains else [])])
    return f"{name}, {given}", make_call(q, k, v, mask=MASKS[name](draw, length), **options), trains


def measured(call: AttentionCall, rounds: int, *, trains: bool) -> dict[str, float]:
    """Seconds of each kernel that does not refuse the call."""
    with torch.set_grad_enabled(trains):
        ready = {
            name: kernel
            for name, kernel in KERNELS.items()
            if name not in ("flex", "reference" if call.q.shape[2] > 1024 else "") and refusal(kernel, call) is None
        }
        times = take_turns({name: runs(call, kernel) for name, kernel in ready.items()}, rounds)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning)
    main()
