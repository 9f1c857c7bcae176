"""The modules of headwise.nn against PyTorch's and Hugging Face's, with the same weights.

    python benchmarks/modules.py                          # some minutes
    python benchmarks/modules.py --lengths 128 512 --caches 4096 --rounds 5 --json results.json

Multi-head: MultiHeadAttention against nn.MultiheadAttention, 512 wide, 8 heads, self-attention of a batch of two.
`weights` is need_weights=True there and record=True here; `weights, made` also makes the same matrix of the record,
averaged over heads. Decoding: a step of MultiHeadLatentAttention on a cache against Hugging Face's DeepSeek-V3
attention of the same shape (eager and SDPA) with its own cache. Latents: LatentAttention against full self-attention.

Every figure is a ratio: the contestants take turns in the same process (A B A B ...), each round gives a ratio, and the
table shows the median ratio. Above 1× headwise is faster. Outputs are compared before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import headwise
from headwise import masks
from headwise.nn import Cache, LatentAttention, MultiHeadAttention, MultiHeadLatentAttention

DIM, HEADS, BATCH = 512, 8, 2

# DeepSeek-V3's attention with 16 heads of its 128, 2,048 wide.
DEEPSEEK = {
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 32768,
}

Row = dict[str, Any]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lengths", type=int, nargs="*", default=[128, 512, 1024, 2048, 4096])
    arguments.add_argument("--caches", type=int, nargs="*", default=[4096, 16384])
    arguments.add_argument("--inputs", type=int, nargs="*", default=[16384])
    arguments.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the multi-head ones")
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--json", help="also write the figures to this file")
    chosen = arguments.parse_args()

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    about = {
        "machine": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "headwise": headwise.__version__,
        "rounds": chosen.rounds,
    }
    console.print("  ".join(f"{name} {value}" for name, value in about.items()))
    rows = [row for length in chosen.lengths for row in multi_head(length, getattr(torch, chosen.dtype), chosen.rounds)]
    show(console, "MultiHeadAttention against nn.MultiheadAttention", rows)
    steps = [row for length in chosen.caches for row in decoding(length, chosen.rounds)]
    show(console, "A step of MultiHeadLatentAttention against Hugging Face's DeepseekV3Attention", steps)
    if steps:
        few, full = steps[0]["token_bytes"], steps[0]["full_token_bytes"]
        console.print(
            f"a token's cache: {few:,} B; of MultiHeadAttention with as many heads of 128 {full:,} B, "
            f"{full / few:.2f}× as much; with DeepSeek-V3's 128 heads {8 * full / few:.2f}×"
        )
    reads = [row for length in chosen.inputs for row in latents(length, chosen.rounds)]
    show(console, "LatentAttention against self-attention over the input", reads)
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump({"about": about, "rows": [*rows, *steps, *reads]}, file, indent=1)


def multi_head(length: int, dtype: torch.dtype, rounds: int) -> list[Row]:
    """Forward and training, with weights and without."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True, dtype=dtype).eval()
    ours = MultiHeadAttention.from_torch(theirs)
    x = torch.randn(BATCH, length, DIM, dtype=dtype)
    causal, hidden = masks.causal(), torch.ones(length, length, dtype=torch.bool).triu(1)

    def averaged() -> tuple[Tensor, Tensor]:
        out, record = ours(x, record=True)
        return out, record.weights().mean(1)

    def train(run: Callable[[], Any]) -> Callable[[], Any]:
        def step() -> Any:
            ours.zero_grad()
            theirs.zero_grad()
            out = first(run())
            out.sum().backward()
            return out

        return step

    rows = []
    with torch.inference_mode():
        rows += [
            compare("forward", length, lambda: ours(x), {"torch": lambda: theirs(x, x, x, need_weights=False)}, rounds),
            compare(
                "forward, causal",
                length,
                lambda: ours(x, mask=causal),
                {"torch": lambda: theirs(x, x, x, attn_mask=hidden, is_causal=True, need_weights=False)},
                rounds,
            ),
            compare(
                "forward, weights", length, lambda: ours(x, record=True), {"torch": lambda: theirs(x, x, x)}, rounds
            ),
            compare("forward, weights, made", length, averaged, {"torch": lambda: theirs(x, x, x)}, rounds),
        ]
    ours.train()
    theirs.train()
    return [
        *rows,
        compare(
            "training",
            length,
            train(lambda: ours(x)),
            {"torch": train(lambda: theirs(x, x, x, need_weights=False))},
            rounds,
        ),
        compare(
            "training, weights",
            length,
            train(lambda: ours(x, record=True)),
            {"torch": train(lambda: theirs(x, x, x))},
            rounds,
        ),
    ]


def decoding(length: int, rounds: int) -> list[Row]:
    """One token after a cache of `length` tokens, whose latents are random: that they are does not matter for time."""
    from transformers import DeepseekV3Config, DynamicCache
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

    torch.manual_seed(0)
    config = DeepseekV3Config(**DEEPSEEK)
    theirs = {}
    for name in ("eager", "sdpa"):
        each = DeepseekV3Config(**DEEPSEEK)
        each._attn_implementation = name
        theirs[name] = DeepseekV3Attention(each, layer_idx=0).eval()
    ours = MultiHeadLatentAttention.from_hf(config).eval()
    theirs["sdpa"].load_state_dict(theirs["eager"].state_dict())
    ours.load_state_dict(theirs["eager"].state_dict())
    rotary = DeepseekV3RotaryEmbedding(config)
    rank, rope = DEEPSEEK["kv_lora_rank"], DEEPSEEK["qk_rope_head_dim"]
    x = torch.randn(1, 1, DEEPSEEK["hidden_size"])
    latent, k_rope = torch.randn(1, 1, length, rank), torch.randn(1, 1, length, rope)
    cos_sin = rotary(x, torch.tensor([[length]]))
    cache = Cache()
    # They turn pairs (0, 32), (1, 33), …, and we (0, 1), (2, 3), …: the same numbers in another order.
    k_ours = k_rope.unflatten(-1, (2, rope // 2)).mT.flatten(-2)
    cache.bind(ours)
    cache.append(torch.cat([latent, k_ours], -1))
    their_caches = {name: DynamicCache() for name in theirs}
    for each in their_caches.values():
        each.update(latent, k_rope, 0)

    # As in a generation, each step leaves its token in the cache.
    def our_step() -> Tensor:
        return ours(x, mask=masks.causal(), cache=cache)

    def their_step(name: str) -> Callable[[], Tensor]:
        return lambda: theirs[name](x, cos_sin, None, past_key_values=their_caches[name])[0]

    with torch.inference_mode():
        row = compare("decode", length, our_step, {f"HF, {name}": their_step(name) for name in theirs}, 2 * rounds)
    # DeepSeek-V2, table 1: R + rope_dim numbers a token, where full heads keep 2 · H · d_h.
    full, few = Cache(), torch.randn(1, 8, DEEPSEEK["hidden_size"])
    MultiHeadAttention(DEEPSEEK["hidden_size"], DEEPSEEK["num_attention_heads"])(few, cache=full)
    return [{**row, "token_bytes": cache.bytes // cache.length, "full_token_bytes": full.bytes // full.length}]


def latents(length: int, rounds: int) -> list[Row]:
    """64 latents that read a long input, and self-attention over all of it."""
    torch.manual_seed(0)
    x = torch.randn(1, length, DIM)
    reader = LatentAttention(64, DIM, num_heads=HEADS).eval()
    full = MultiHeadAttention(DIM, HEADS).eval()
    with torch.inference_mode():
        return [
            compare("64 latents", length, lambda: reader(x), {"self-attention": lambda: full(x)}, rounds, check=False)
        ]


def compare(
    name: str,
    length: int,
    ours: Callable[[], Any],
    peers: dict[str, Callable[[], Any]],
    rounds: int,
    *,
    check: bool = True,
) -> Row:
    """Median seconds of each contestant, and the median of the rounds' ratios."""
    contestants = {"headwise": ours, **peers}
    rounds *= max(1, 1024 // length)  # short calls vary more, and cost less
    outputs = {who: first(run()) for who, run in contestants.items()}  # warms up
    if check:
        for who, out in outputs.items():
            near = {"rtol": 1e-3, "atol": 1e-4} if out.dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
            torch.testing.assert_close(out, outputs["headwise"], **near, msg=lambda m, w=who: f"{w}: {m}")
    del outputs
    times: dict[str, list[float]] = {who: [] for who in contestants}
    for _ in range(rounds):
        for who, run in contestants.items():
            start = time.perf_counter()
            run()
            times[who].append(time.perf_counter() - start)
    ratio = {
        who: statistics.median(their / our for their, our in zip(times[who], times["headwise"], strict=True))
        for who in peers
    }
    return {
        "what": name,
        "length": length,
        "seconds": {who: statistics.median(values) for who, values in times.items()},
        "ratio": ratio,
    }


def first(found: Any) -> Tensor:
    return found[0] if isinstance(found, tuple) else found


def show(console: Console, title: str, rows: list[Row]) -> None:
    if not rows:
        return
    peers = list(rows[0]["ratio"])
    table = Table("what", "tokens", "headwise", *peers, *(f"×{peer}" for peer in peers), title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        seconds = [f"{row['seconds'][who] * 1000:,.2f} ms" for who in ("headwise", *peers)]
        ratios = [f"{row['ratio'][who]:.2f}×" for who in peers]
        table.add_row(row["what"], f"{row['length']:,}", *seconds, *ratios)
    console.print(table)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    main()
