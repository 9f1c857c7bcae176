"""Parts of a training step on the CPU against torch's: dropout, the loss of a vocabulary, gradients of short sequences.

    python benchmarks/training.py                 # a minute
    python benchmarks/training.py --rounds 21 --json results.json

Ours and the peers take turns in one process. Each round gives a ratio; the table shows the median and, in brackets, the
least and the greatest. Above 1× ours is faster. Each time is of forward and backward together. The loss is the summed
cross-entropy, with label smoothing 0.1, of 3,000 tokens whose logits a linear layer gives; "in bf16" is under autocast.
`linear_cross_entropy` of torch has no label smoothing in pieces, so it gets none, and neither does ours beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention

import headwise
from headwise.kernels.measure import take_turns
from headwise.kernels.speeds import processor
from headwise.models.cross_entropy import linear_cross_entropy
from headwise.native.library import instruction_set
from headwise.nn.dropout import Dropout

TOKENS = 3000
Contestants = dict[str, Callable[[], object]]  # ours, and a peer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    threads = f"{torch.get_num_threads()} threads"
    console.print(f"{processor()}, {instruction_set()}, {threads}, torch {torch.__version__}", highlight=False)
    table, figures = Table("", "ours, ms", "against", "its ms", "ours is … times as fast"), {}
    for name, contestants in cases().items():
        (_, ours), (peer, theirs) = take_turns(contestants, chosen.rounds).items()
        ratios = sorted(y / x for x, y in zip(ours, theirs, strict=True))
        figures[name] = {"seconds": {"ours": ours, peer: theirs}, "ratios": ratios}
        shown = [f"{1e3 * statistics.median(each):.2f}" for each in (ours, theirs)]
        table.add_row(
            name, shown[0], peer, shown[1], f"{statistics.median(ratios):.2f}× [{ratios[0]:.2f}–{ratios[-1]:.2f}]"
        )
    console.print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def cases() -> dict[str, Contestants]:
    """Contestants by the name of what they compute."""
    torch.manual_seed(0)
    found: dict[str, Contestants] = {}
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bf16")):
        x = torch.randn(TOKENS, 384, dtype=dtype, requires_grad=True)
        found[f"dropout 0.1, {name}"] = {
            "ours": differentiated(lambda x=x: Dropout(0.1)(x), x),
            "nn.Dropout": differentiated(lambda x=x: nn.Dropout(0.1)(x), x),
        }
    for words in (6000, 30_000):
        for autocast in (False, True):
            found |= losses(words, autocast=autocast)
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bf16")):
        drawn = (torch.randn(190, 20, 4, 32, dtype=dtype).transpose(1, 2) for _ in range(3))
        q, k, v = (x.requires_grad_() for x in drawn)
        found[f"attention [190, 4, 20, 32], {name}"] = {
            "ours": differentiated(lambda q=q, k=k, v=v: headwise.attention(q, k, v, kernel="native"), q, k, v),
            "SDPA": differentiated(lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v), q, k, v),
        }
    return found


def losses(words: int, *, autocast: bool) -> dict[str, Contestants]:
    hidden, weight = torch.randn(TOKENS, 256, requires_grad=True), (torch.randn(words, 256) / 16).requires_grad_()
    labels = torch.randint(words, (TOKENS,))

    def of(function: Callable[[], Tensor]) -> Callable[[], object]:
        def run() -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                return function()

        return differentiated(run, hidden, weight)

    def plain() -> Tensor:
        return cross_entropy(linear(hidden, weight).float(), labels, label_smoothing=0.1, reduction="sum")

    name = f"loss of {words:,} words, {'bf16' if autocast else 'float32'}"
    found: dict[str, Contestants] = {
        name: {
            "ours": of(lambda: linear_cross_entropy(hidden, weight, labels, label_smoothing=0.1)),
            "cross_entropy(linear(…))": of(plain),
        }
    }
    if hasattr(nn.functional, "linear_cross_entropy"):  # from torch 2.13 on
        pieces = {"reduction": "sum", "options": nn.LinearCrossEntropyOptions()}
        found[f"{name}, no smoothing"] = {
            "ours": of(lambda: linear_cross_entropy(hidden, weight, labels)),
            "torch's linear_cross_entropy": of(
                lambda: nn.functional.linear_cross_entropy(hidden, weight, labels, **pieces)
            ),
        }
    return found


def differentiated(function: Callable[[], Tensor], *inputs: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(function().sum(), inputs)


if __name__ == "__main__":
    main()
