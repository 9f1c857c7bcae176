"""What watching a long text costs: the peak memory and the time of a small decoder that reads it in pieces.

    python benchmarks/long_watch.py                                     # 65,536 and 262,144 tokens; minutes
    python benchmarks/long_watch.py --lengths 8192 --ways plain watched

A random Llama of one layer and `--heads` heads of 16 reads `--chunk` tokens at a time with its cache: not watched;
watched, which keeps queries and keys; and watched with statistics alone, those of `seen.summary()`. Each in a process
of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import subprocess
import sys
import time

import torch
from rich.console import Console
from rich.table import Table

import headwise
from headwise.records.summary import RunningSummary

WAYS = ("plain", "watched", "statistics")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=[65536, 262144])
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=WAYS)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)  # this way and length, in this process
    asked = parser.parse_args()
    if asked.alone:
        print(*read(asked.alone[0], int(asked.alone[1]), asked.chunk, asked.heads))
        return
    table = Table("tokens", "", "time", "peak memory beyond the loaded model", "a token")
    for length in asked.lengths:
        for way in asked.ways:
            options = ["--chunk", str(asked.chunk), "--heads", str(asked.heads)]
            command = [sys.executable, __file__, "--alone", way, str(length), *options]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds, memory = map(float, done.stdout.split())
            each = f"{seconds:,.0f} s", f"{memory / 2**20:,.0f} MiB", f"{memory / length / 1024:.2f} KiB"
            table.add_row(f"{length:,}", way, *each)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def read(way: str, length: int, chunk: int, heads: int) -> tuple[float, float]:
    """Seconds, and bytes at the peak beyond those before the first token."""
    import transformers

    sizes = {"hidden_size": 16 * heads, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": heads}
    torch.manual_seed(0)
    model = transformers.LlamaModel(transformers.LlamaConfig(vocab_size=64, max_position_embeddings=2**20, **sizes))
    tokens = torch.randint(0, 64, (1, length))
    watches = {
        "plain": contextlib.nullcontext,
        "watched": lambda: headwise.watch(model, max_bytes=None),
        "statistics": lambda: headwise.watch(model, statistics=RunningSummary.statistics(), keep=False),
    }
    with torch.no_grad(), watches[way]():  # what is loaded at the first call
        model.eval()(tokens[:, :8])
    before, started, cache = _peak(), time.perf_counter(), None
    with torch.no_grad(), watches[way]() as seen:
        for part in tokens.split(chunk, dim=1):
            cache = model(part, past_key_values=cache, use_cache=True).past_key_values
    if seen is not None:
        assert [record.shape[2:] for record in seen] == [(length, length)]
    if way == "statistics":
        seen.summary()
    return time.perf_counter() - started, _peak() - before


def _peak() -> float:
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
