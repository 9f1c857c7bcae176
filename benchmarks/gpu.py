"""What runs on a GPU, a line each: its time, beside that of a named peer in the same rounds.

    python benchmarks/gpu.py                          # on a GPU; some minutes, most of them compiling
    python benchmarks/gpu.py --lines decode watch --rounds 9 --json results.json
    python benchmarks/gpu.py --minutes 12             # on a borrowed GPU: the tests marked gpu, then the lines of STEPS
    python benchmarks/gpu.py --device cpu --small     # only shows that every line runs

Each line and its peer take turns in the same process; the ratio is the median over the rounds of the line's time over
its peer's. Below 1× headwise is faster. What `tests/test_devices.py` and the other tests marked `gpu` test is measured
here; `attention.py --device cuda` has more masks and lengths.

With `--minutes` each step has its own limit of time, and the file of results (`--json`) is written again after each
step. Without a GPU the steps run on the CPU, small, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import headwise
from benchmarks.attention import CASES, HEAD_DIM, HEADS, REPEATS, compiled_flex, finished
from benchmarks.edit import EDITS
from benchmarks.limited import run_limited
from benchmarks.watch import gpt2
from headwise import Int8, masks
from headwise.call import make_call
from headwise.capture.pretrained import Pretrained
from headwise.files import writing
from headwise.kernels.measure import take_turns
from headwise.kernels.speeds import processor
from headwise.masks import Mask, recognise
from headwise.records import AttentionRecord
from headwise.text import Tokens

ROOT = Path(__file__).resolve().parents[1]
KEY_HEADS = 4  # of a decoding step
Run = Callable[[], object]


@dataclass(frozen=True)
class Setting:
    """Where and how much is computed.

    Args:
        length: tokens of a sequence.
        cache: tokens of the cache of a decoding step.
    """

    device: torch.device
    dtype: torch.dtype
    length: int
    cache: int

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=self.dtype, device=self.device)

    def qkv(self, *, trains: bool = False) -> list[Tensor]:
        return [self.randn(1, HEADS, self.length, HEAD_DIM).requires_grad_(trains) for _ in range(3)]

    def mask(self, name: str) -> Mask:
        """One of `benchmarks.attention`."""
        made = CASES[name](self.length)
        assert made is not None
        return made.to(self.device)


def trained(attend: Callable[..., Tensor], inputs: list[Tensor]) -> Run:
    """Forward and backward."""
    d_out = torch.randn_like(inputs[0])

    def run() -> object:
        with torch.enable_grad():
            return torch.autograd.grad(attend(*inputs), inputs, d_out)

    return run


def dense(at: Setting) -> tuple[Run, Run]:
    q, k, v = at.qkv()
    return lambda: headwise.attention(q, k, v), lambda: scaled_dot_product_attention(q, k, v)


def training(at: Setting) -> tuple[Run, Run]:
    inputs = at.qkv(trains=True)
    return (
        trained(lambda *x: headwise.attention(*x, mask=masks.causal()), inputs),
        trained(lambda *x: scaled_dot_product_attention(*x, is_causal=True), inputs),
    )


def against_sdpa(mask: Callable[[Setting], Mask], trains: bool) -> Callable[[Setting], tuple[Run, Run]]:
    def make(at: Setting) -> tuple[Run, Run]:
        inputs, made = at.qkv(trains=trains), mask(at)
        cells = made.to_bool(at.length).to(at.device)
        ours: Callable[..., Tensor] = lambda *x: headwise.attention(*x, mask=made)  # noqa: E731
        theirs: Callable[..., Tensor] = lambda *x: scaled_dot_product_attention(*x, attn_mask=cells)  # noqa: E731
        if trains:
            return trained(ours, inputs), trained(theirs, inputs)
        return lambda: ours(*inputs), lambda: theirs(*inputs)

    return make


def against_flex(at: Setting) -> tuple[Run, Run]:
    (q, k, v), mask = at.qkv(), at.mask("packed, causal")
    return lambda: headwise.attention(q, k, v, mask=mask, kernel="flex"), compiled_flex(q, k, v, mask)


def around_flex(at: Setting) -> tuple[Run, Run]:
    """A call so short that the GPU waits for Python: the difference of the two times is what our Python adds."""
    return against_flex(dataclasses.replace(at, length=min(512, at.length)))


def options(at: Setting) -> tuple[Run, Run]:
    q, k, v = at.qkv()
    slopes = 2.0 ** -torch.arange(1, HEADS + 1, device=at.device).float()
    places = torch.arange(at.length, device=at.device)
    bias = (-slopes[:, None, None] * (places[:, None] - places).abs()).to(at.dtype)[None]
    bias = bias.masked_fill((places[:, None] < places), float("-inf"))
    return (
        lambda: headwise.attention(q, k, v, mask=masks.causal(), slopes=slopes),
        lambda: scaled_dot_product_attention(q, k, v, attn_mask=bias),
    )


def capped(at: Setting) -> tuple[Run, Run]:
    q, k, v = at.qkv()
    sinks, given = at.randn(HEADS), {"mask": masks.causal(), "softcap": 30.0}
    return (
        lambda: headwise.attention(q, k, v, sinks=sinks, **given),  # type: ignore[arg-type]
        lambda: headwise.attention(q, k, v, sinks=sinks, kernel="reference", **given),  # type: ignore[arg-type]
    )


def step(at: Setting, *, int8: bool = False) -> tuple[Run, Run]:
    q = at.randn(1, HEADS, 1, HEAD_DIM)
    k, v = (at.randn(1, KEY_HEADS, at.cache, HEAD_DIM) for _ in range(2))
    given: Any = (Int8.of(k), Int8.of(v)) if int8 else (k, v)
    return lambda: headwise.attention(q, *given), lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True)


def recorded(at: Setting) -> tuple[Run, Run]:
    q, k, v = at.qkv()
    return lambda: headwise.attention(q, k, v, record=True), lambda: headwise.attention(q, k, v)


def asked(at: Setting, *names: str) -> tuple[Run, Run]:
    q, k, v = at.qkv()
    call = make_call(q, k, v, mask=masks.causal())
    return (
        lambda: AttentionRecord(call).statistics(*names),  # a new record, which remembers nothing
        lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
    )


def saved(at: Setting) -> tuple[Run, Run]:
    q, k, v = at.qkv()
    record = headwise.attention(q, k, v, mask=masks.causal(), record=True)[1]
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "run.hw"

    def save() -> None:
        assert folder  # which is deleted with this function
        headwise.Seen([record]).save(path)

    return save, lambda: path.with_suffix(".bytes").write_bytes(
        b"".join(x.cpu().contiguous().view(torch.uint8).numpy().tobytes() for x in (q, k))
    )


def recognised(at: Setting) -> tuple[Run, Run]:
    cells = at.mask("packed, causal").to_bool(at.length).to(at.device)
    return lambda: recognise(cells), lambda: cells.any(-1).sum()


def model_of(at: Setting) -> tuple[nn.Module, Tensor]:
    return gpt2(at.length, "sdpa").to(at.device, at.dtype), torch.arange(at.length, device=at.device)[None] % 1000


def watched(at: Setting, **given: Any) -> tuple[Run, Run]:
    model, ids = model_of(at)

    def run() -> None:
        with headwise.watch(model, **given):
            model(ids)

    return run, lambda: model(ids)


def edited(at: Setting, name: str) -> tuple[Run, Run]:
    model, ids = model_of(at)

    def run() -> None:
        with headwise.edit(model, EDITS[name]):
            model(ids)

    return run, lambda: model(ids)


def profiled(at: Setting) -> tuple[Run, Run]:
    from headwise.profiles import profile

    model, ids = model_of(at)
    size = at.length
    labels = tuple(f"w{i}" for i in range(size))
    tokens = Tokens(tuple(ids[0].tolist()), labels, tuple((i, i + 1) for i in range(size)), (False,) * size, "x" * size)
    pretrained = Pretrained("gpt2", model, lambda text, limit: tokens, size)
    return lambda: profile(pretrained, ["x" * size], length=size, batch=size, only=[0]), lambda: model(ids)


def shared(at: Setting) -> tuple[Run, Run]:
    """One process, as one of those that share a sequence."""
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_initialized():
        store = Path(tempfile.mkdtemp()) / "store"
        backend = "gloo" if at.device.type == "cpu" else "nccl"
        if backend == "nccl":
            torch.cuda.set_device(0)
        dist.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)
    mesh = init_device_mesh(at.device.type, (1,))
    q, k, v = at.qkv()

    def run() -> object:
        with headwise.context_parallel(mesh):
            return headwise.attention(q, k, v, mask=masks.causal())

    return run, lambda: headwise.attention(q, k, v, mask=masks.causal())


def encoder(at: Setting) -> tuple[Run, Run]:
    dim = HEADS * HEAD_DIM
    ours = headwise.nn.EncoderLayer(dim, HEADS).to(at.device, at.dtype)
    theirs = nn.TransformerEncoderLayer(dim, HEADS, 4 * dim, dropout=0.0, batch_first=True).to(at.device, at.dtype)

    def run(module: nn.Module) -> Run:
        x = at.randn(1, at.length, dim)
        return trained(module, [x.requires_grad_()])

    return run(ours), run(theirs)


LINES: dict[str, tuple[str, Callable[[Setting], tuple[Run, Run]]]] = {
    "dense": ("SDPA", dense),
    "causal, training": ("SDPA, is_causal", training),
    "window": ("SDPA, dense mask", against_sdpa(lambda at: at.mask("causal window 256"), trains=False)),
    "window, training": ("SDPA, dense mask", against_sdpa(lambda at: at.mask("causal window 256"), trains=True)),
    "rows that see nothing": ("SDPA, dense mask", against_sdpa(lambda at: masks.causal(offset=-64), trains=False)),
    "packed, by flex": ("FlexAttention, compiled", against_flex),
    "packed, by flex, 512 tokens": ("FlexAttention, compiled", around_flex),
    "ALiBi": ("SDPA, additive mask", options),
    "softcap and sinks": ("the same in matrices", capped),
    "decode": ("SDPA, enable_gqa", step),
    "decode, int8": ("SDPA, enable_gqa", lambda at: step(at, int8=True)),
    "record=True": ("record=False", recorded),
    "entropy, distance, lse": ("SDPA, is_causal", lambda at: asked(at, "entropy", "distance", "lse")),
    "and received": ("SDPA, is_causal", lambda at: asked(at, "entropy", "distance", "lse", "received")),
    "all statistics": ("SDPA, is_causal", asked),
    "save a record": ("its bytes to a file", saved),
    "recognise a mask": ("one pass over it", recognised),
    "watch": ("the plain model", watched),
    "watch, statistics": ("the plain model", lambda at: watched(at, statistics=["entropy", "lse"], keep=False)),
    **{f"edit, {name}": ("the plain model", lambda at, n=name: edited(at, n)) for name in ("ablate", "temperature")},
    "profile a layer": ("the plain model", profiled),
    "context parallel, one process": ("attention", shared),
    "encoder layer, training": ("nn.TransformerEncoderLayer", encoder),
}

# Of --minutes: a step -> its share of the time, and its lines; () = the tests marked gpu.
STEPS: dict[str, tuple[int, tuple[str, ...]]] = {
    "tests marked gpu": (4, ()),
    "around FlexAttention": (1, ("packed, by flex", "packed, by flex, 512 tokens")),
    "watch and edit": (2, ("watch", "watch, statistics", "edit, ablate", "edit, temperature")),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lines", nargs="+", choices=list(LINES), default=list(LINES), metavar="NAME")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--length", type=int, default=8192)
    arguments.add_argument("--cache", type=int, default=65536, help="tokens of the cache of a decoding step")
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    arguments.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    arguments.add_argument("--small", action="store_true", help="512 tokens, 2 rounds, float32: to see that it runs")
    arguments.add_argument("--json", type=Path, help="also write the figures to this file, as they come")
    arguments.add_argument("--minutes", type=float, help="run the steps in this time, not --lines; --json: gpu.json")
    chosen = arguments.parse_args()
    if chosen.minutes:
        raise SystemExit(run_steps(chosen.minutes, chosen.json or Path("gpu.json"), chosen.rounds))
    if chosen.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "There is no GPU here: torch sees no CUDA device. `--device cpu --small` shows that every line runs."
        )
    if chosen.small:
        chosen.length, chosen.cache, chosen.rounds, chosen.dtype = 512, 2048, 2, "float32"
    at = Setting(torch.device(chosen.device), getattr(torch, chosen.dtype), chosen.length, chosen.cache)
    on_cpu = at.device.type == "cpu"
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    machine = f"{processor()}, {torch.get_num_threads()} threads" if on_cpu else torch.cuda.get_device_name()
    about = f"{machine}, torch {torch.__version__}, {chosen.dtype}, {HEADS} heads of {HEAD_DIM}, {at.length:,} tokens"
    console.print(about)
    if on_cpu:
        console.print("There is no GPU in this: these figures show that each line runs, and nothing else.")
    table = Table("what", "ms", "peer", "ms", "× peer")
    for column in (table.columns[1], table.columns[3], table.columns[4]):
        column.justify = "right"
    rows, failed = [], []
    for name in chosen.lines:
        peer, make = LINES[name]
        if console.is_terminal:
            console.print(f"[dim]{name} …[/dim]", end="\r")
        try:
            row = {"what": name, "peer": peer, **measure(at, make, chosen.rounds)}
        except Exception as error:  # the other lines are still worth their minutes
            failed.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        rows.append(row)
        if chosen.json:
            write(chosen.json, {"about": about, "rows": rows})
        times = (f"{1000 * row[who]:,.3f}" for who in ("headwise", "of the peer"))
        table.add_row(name, next(times), peer, next(times), f"{row['ratio']:.2f}×")
    console.print(table)
    if dist.is_initialized():
        dist.destroy_process_group()
    if failed:
        raise SystemExit("\n".join(["These lines did not run:", *failed]))


def measure(at: Setting, make: Callable[[Setting], tuple[Run, Run]], rounds: int) -> dict[str, float]:
    """Median seconds of both, and the median of the rounds' ratios."""
    torch.manual_seed(0)
    with torch.no_grad():
        ours, theirs = make(at)
        times = take_turns({"ours": finished(at.device, ours), "theirs": finished(at.device, theirs)}, rounds)
    share = 1 if at.device.type == "cpu" else REPEATS
    return {
        "headwise": statistics.median(times["ours"]) / share,
        "of the peer": statistics.median(times["theirs"]) / share,
        "ratio": statistics.median(our / their for our, their in zip(times["ours"], times["theirs"], strict=True)),
    }


def write(path: Path, results: dict[str, Any]) -> None:
    with writing(path) as part:
        part.write_text(json.dumps(results, indent=1), encoding="utf-8")


def run_steps(minutes: float, path: Path, rounds: int) -> int:
    """Run the steps, and write what each found to the file. Return 1 without a GPU or if one failed, else 0."""
    there = torch.cuda.is_available()
    no_gpu = (
        "There is no GPU here: torch sees no CUDA device. Tests are skipped, and the figures only show that it runs."
    )
    about = f"{torch.cuda.get_device_name() if there else no_gpu}, torch {torch.__version__}"
    print(about, flush=True)
    results: dict[str, Any] = {"about": about, "minutes": minutes, "steps": []}
    end = time.monotonic() + 60 * minutes
    for i, (name, (share, lines)) in enumerate(STEPS.items()):
        # What a step leaves of its time is for those after it.
        limit = (end - time.monotonic()) * share / sum(each for each, _ in list(STEPS.values())[i:])
        rows = path.with_suffix(f".{i}.json")
        command = ["-m", "benchmarks.gpu", "--rounds", str(rounds), "--json", str(rows.resolve()), "--lines", *lines]
        if not there:
            command += ["--device", "cpu", "--small"]
        if not lines:
            tests = [str(each) for each in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in each.read_text("utf-8")]
            command = [
                "-m",
                "pytest",
                "-m",
                "gpu and (slow or not slow)",
                *["-q", "-rfE", "-p", "no:cacheprovider"],
                *tests,
            ]
        step = {"step": name, **run_step([sys.executable, *command], limit)}
        with contextlib.suppress(FileNotFoundError):
            step |= json.loads(rows.read_text("utf-8"))
            rows.unlink()
        results["steps"].append(step)
        write(path, results)
        print(f"{name}: {step['outcome']}, {step['seconds']:.0f} s of {limit:.0f}\n{step['said']}", flush=True)
    if not there:
        print(no_gpu, file=sys.stderr)
    return int(not there or any(step["outcome"] != "done" for step in results["steps"]))


def run_step(command: Sequence[str], limit: float) -> dict[str, Any]:
    """Run a command in a process of its own for at most `limit` seconds; return how it ended, and its last lines."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as said:
        outcome = run_limited(command, limit, said=said, at=ROOT)
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").splitlines()
    return {"outcome": outcome, "seconds": time.monotonic() - began, "said": "\n".join(lines[-30:])}


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    main()
