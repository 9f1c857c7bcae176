"""The prompt and the decoding steps of two models of GPT-2's shape, plain and inside of a context, in turns.

`large` has 12 layers and is 768 wide; in `small`, 4 layers and 256 wide, all that a context does in Python shows.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from rich.table import Table

SIZES = {"small": (4, 4, 256), "large": (12, 12, 768)}  # layers, heads, width
PROMPT, STEPS = 256, 32

Context = Callable[[Any], AbstractContextManager[Any]]  # of a model


def table_of(contexts: Mapping[str, Context], rounds: int) -> Table:
    """For each model and context: milliseconds of the prompt and of a step, plain and inside, and median ratios."""
    table = Table("model", "inside", "prompt", "inside", "× plain", "step", "inside", "× plain")
    for size in SIZES:
        model = gpt2(size)
        ways: dict[str, Context] = {"": lambda _: contextlib.nullcontext(), **contexts}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, context in ways.items():
                took = seconds(model, context)
                times[name] += [took] if turn else []  # the first is to warm up
        for name in contexts:
            cells = [cell for at in (0, 1) for cell in _cells(times[""], times[name], at)]
            table.add_row(size, name, *cells)
    return table


def gpt2(size: str) -> torch.nn.Module:
    """A model with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    layers, heads, width = SIZES[size]
    config = GPT2Config(
        vocab_size=1000, n_positions=PROMPT + STEPS, n_embd=width, n_layer=layers, n_head=heads,
        bos_token_id=0, eos_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


@torch.no_grad()
def seconds(model: torch.nn.Module, context: Context) -> tuple[float, float]:
    """(of the prompt, of a step)."""
    ids = torch.arange(PROMPT)[None] % 1000
    with context(model):
        start = time.perf_counter()
        cache = model(ids, use_cache=True).past_key_values
        began = time.perf_counter()
        for _ in range(STEPS):
            model(ids[:, :1], past_key_values=cache, use_cache=True)
        return began - start, (time.perf_counter() - began) / STEPS


def _cells(plain: list[tuple[float, float]], inside: list[tuple[float, float]], at: int) -> list[str]:
    ratio = statistics.median(two[at] / one[at] for one, two in zip(plain, inside, strict=True))
    return [*(f"{statistics.median(x[at] for x in each) * 1000:.2f} ms" for each in (plain, inside)), f"{ratio:.2f}"]
