"""Models of transformers with attn_implementation="headwise", against "eager", "sdpa" and "flex_attention".

    python benchmarks/hugging_face.py                          # all models and works; half an hour on two cores
    python benchmarks/hugging_face.py --models gemma2 mistral --works "prefill 2048" "training 2048"
    python benchmarks/hugging_face.py --rounds 3 --json results.json

Models of random weights, 2 layers and 512 wide: the implementations take turns in one process, and the median of each
is shown; "attention" is the time inside the attention function of the registry, "model" that of the whole
model. The ratio is the best of the others to headwise: above 1, headwise is quicker. What an implementation refuses
says so. Masks are made anew in every forward, as models make them.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AttentionInterface

import headwise.transformers  # noqa: F401 (it registers "headwise")

IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "headwise")
SMALL: dict[str, Any] = {
    **{"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8},
    **{"num_key_value_heads": 4, "head_dim": 64, "vocab_size": 1000, "max_position_embeddings": 32768},
}
ENCODER = {name: SMALL[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", SMALL),
    "mistral": ("MistralForCausalLM", {**SMALL, "sliding_window": 1024}),
    "gemma2": ("Gemma2ForCausalLM", {**SMALL, "sliding_window": 1024, "query_pre_attn_scalar": 64}),
    "gpt-oss": (
        "GptOssForCausalLM",
        {**SMALL, "sliding_window": 128, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "bert": ("BertModel", {**ENCODER, "num_attention_heads": 8, "vocab_size": 1000, "max_position_embeddings": 8192}),
    "vit": ("ViTModel", {**ENCODER, "num_attention_heads": 8, "image_size": 448, "patch_size": 16}),
}
DECODERS = ("llama", "mistral", "gemma2", "gpt-oss")
WORKS = {
    **{f"prefill {n}": (*DECODERS, "bert", *(("vit",) if n == 2048 else ())) for n in (512, 2048, 8192)},
    **{"training 2048": (*DECODERS, "bert"), "packed training 2048": DECODERS},
    **{f"decoding {n}": DECODERS for n in (1024, 16384)},
}

Run = tuple[Callable[[], Any], Callable[[Any], Any]]  # what is made before, untimed, and what it is given to
_inside = [0.0]  # seconds inside attention functions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--works", nargs="*", choices=WORKS, default=list(WORKS))
    parser.add_argument("--rounds", type=int, default=5, help="of each work; five times as many of decoding")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    count_time()
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"transformers {transformers.__version__}",
        highlight=False,
    )
    columns = [f"{name}, {what}" for what in ("attention", "model") for name in (*IMPLEMENTATIONS, "×")]
    table, rows = Table("model", "work", *columns), []
    for name in asked.models:
        for work in [work for work in asked.works if name in WORKS[work]]:
            row = {"model": name, "work": work, **measure(name, work, asked.rounds, getattr(torch, asked.dtype))}
            rows.append(row)
            table.add_row(name, work, *show(row))
            print(json.dumps(row), file=sys.stderr, flush=True)
    console.print(table)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def count_time() -> None:
    """Make every attention function of the registry add its time to `_inside`; eager attention is registered too."""
    original = AttentionInterface.get_interface

    def timed(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(self, name, default)

        def attend(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            out = function(*args, **kwargs)
            _inside[0] += time.perf_counter() - start
            return out

        return attend

    AttentionInterface.get_interface = timed


def measure(name: str, work: str, rounds: int, dtype: torch.dtype) -> dict[str, Any]:
    """Time one work of one model: {"eager": [attention, model] in seconds, or why it does not run}, …."""
    runs: dict[str, Run] = {}
    found: dict[str, Any] = {}
    for implementation in IMPLEMENTATIONS:
        try:
            runs[implementation] = prepare(name, work, implementation, dtype)
            before, run = runs[implementation]
            run(before())
        except Exception as error:  # noqa: PERF203
            runs.pop(implementation, None)
            found[implementation] = " ".join(f"{type(error).__name__}: {error}".split())[:100]
    times: dict[str, list[tuple[float, float]]] = {implementation: [] for implementation in runs}
    for _ in range(5 * rounds if work.startswith("decoding") else rounds):
        for implementation, (before, run) in runs.items():
            made = before()
            _inside[0], start = 0.0, time.perf_counter()
            run(made)
            whole = time.perf_counter() - start
            times[implementation].append((_inside[0], whole))
    for implementation, pairs in times.items():
        found[implementation] = [statistics.median(x) for x in zip(*pairs, strict=True)]
    return found


def prepare(name: str, work: str, implementation: str, dtype: torch.dtype) -> Run:
    """Make the model, and a function that does the work once."""
    cls, options = MODELS[name]
    kind = getattr(transformers, cls)
    torch.manual_seed(0)
    model = kind._from_config(kind.config_class(**options), attn_implementation=implementation).eval().to(dtype)
    what, length = work.rsplit(" ", 1)
    draw = torch.Generator().manual_seed(1)
    if name == "vit":  # 785 patches
        given: dict[str, Any] = {"pixel_values": torch.randn(1, 3, 448, 448, generator=draw).to(dtype)}
    else:
        given = {"input_ids": torch.randint(3, 1000, (1, int(length)), generator=draw)}
    if what == "prefill":
        return lambda: None, lambda _: infer(model, given)
    if what == "decoding":
        return decode(model, given["input_ids"])
    if what.startswith("packed"):
        lengths = [300, 500, 248, 700, 300]
        given["position_ids"] = torch.cat([torch.arange(n) for n in lengths])[None]
    given |= {"use_cache": False} if name in DECODERS else {}
    return lambda: None, lambda _: train(model.train(), given)


@torch.no_grad()
def infer(model: Any, given: dict[str, Tensor]) -> None:
    model(**given, **({"use_cache": False} if "input_ids" in given and hasattr(model, "lm_head") else {}))


def train(model: Any, given: dict[str, Any]) -> None:
    model.zero_grad(set_to_none=True)
    model(**given)[0].square().mean().backward()


def decode(model: Any, ids: Tensor) -> Run:
    """Eight steps of one token after a prompt, each time with a copy of the prompt's cache, which headwise fills."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation("headwise")  # at 16,384 tokens, eager attention would need tens of gigabytes
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
    model.set_attn_implementation(implementation)

    @torch.no_grad()
    def run(cache: Any) -> None:
        for _ in range(8):
            model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)

    return lambda: copy.deepcopy(cache), run


def show(row: dict[str, Any]) -> list[str]:
    """Cells of the table: milliseconds of each, and the best of the others over headwise."""
    cells = []
    for at in (0, 1):
        times = {name: row[name][at] * 1e3 for name in IMPLEMENTATIONS if isinstance(row[name], list)}
        cells += [f"{times[name]:.1f}" if name in times else "–" for name in IMPLEMENTATIONS]
        others = [times[name] for name in IMPLEMENTATIONS[:-1] if name in times]
        cells.append(f"{min(others) / times['headwise']:.2f}" if others and "headwise" in times else "–")
    return cells


if __name__ == "__main__":
    main()
