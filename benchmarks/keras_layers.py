"""headwise.keras against keras.layers.MultiHeadAttention, on each backend of Keras, with the same weights.

    python benchmarks/keras_layers.py                                        # some 20 minutes
    python benchmarks/keras_layers.py --backends jax --lengths 128 1024 --rounds 5 --json results.json

Both are 512 wide with 8 heads of 64, float32, self-attention of a batch of two; each backend runs in a process of its
own. `jit` is tf.function(jit_compile=True), jax.jit or torch.compile; `eager` runs each operation by itself; `graph` is
tf.function without XLA.

Window: `attention_mask=masks.window(255, 0)`, against Keras's layer with the same mask as a tensor, a batch of one.
Long: a training step of the chunked kernel at 16k tokens, its peak of memory measured, and the scores, weights and
their gradient that the plain way would hold, reckoned.

Every figure is a ratio: the contestants take turns in the same process (A B A B ...), each round gives a ratio, and the
table shows the median ratio. Above 1× headwise is faster. Outputs are compared before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

BACKENDS = ("tensorflow", "jax", "torch")
DIM, HEADS, BATCH = 512, 8, 2
WINDOW = 256

Row = dict[str, Any]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--backends", nargs="*", choices=BACKENDS, default=BACKENDS)
    arguments.add_argument("--lengths", type=int, nargs="*", default=[128, 512, 1024, 2048, 4096])
    arguments.add_argument("--windows", type=int, nargs="*", default=[8192])
    arguments.add_argument("--long", type=int, nargs="*", default=[16384])
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--json", help="also write the figures to this file")
    arguments.add_argument("--run", help=argparse.SUPPRESS)  # one backend, in this process: figures as JSON
    chosen = arguments.parse_args()
    if chosen.run:
        part, _, length = chosen.run.partition(":")
        rows = measure_long(int(length)) if part == "long" else measure(chosen)
        print("\n" + json.dumps(rows))
        return
    results: dict[str, list[Row]] = {}
    for backend in chosen.backends:
        sizes: list[str] = []
        for name in ("lengths", "windows"):
            sizes += [f"--{name}", *map(str, getattr(chosen, name))]
        results[backend] = in_process(backend, ["--run", "all", "--rounds", str(chosen.rounds), *sizes])
        for length in chosen.long:
            results[backend] += in_process(backend, ["--run", f"long:{length}"])
        show(backend, results[backend])
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump({"about": about(), "rows": results}, file, indent=1)


def in_process(backend: str, options: list[str]) -> list[Row]:
    """The rows of one backend, from a process of its own: Keras has one backend a process, and memory one peak."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    found = subprocess.run(
        [sys.executable, __file__, *options], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    rows: list[Row] = json.loads(found.stdout.strip().splitlines()[-1])
    return rows


def about() -> dict[str, Any]:
    from importlib.metadata import version

    names = ("keras", "tensorflow-cpu", "jax", "torch")
    return {"machine": platform.processor() or platform.machine()} | {name: version(name) for name in names}


# --- One backend ------------------------------------------------------------------------------------------------------


def measure(chosen: argparse.Namespace) -> list[Row]:
    """Forward, causal and training, compiled and not; and sliding windows."""
    import keras
    import numpy as np

    import headwise.keras
    from headwise import masks

    keras.utils.set_random_seed(0)
    theirs = keras.layers.MultiHeadAttention(HEADS, DIM // HEADS)
    theirs.build((None, None, DIM), (None, None, DIM))
    ours = headwise.keras.MultiHeadAttention.from_keras(theirs)
    x_of = {
        n: keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=(BATCH, n, DIM)).astype("float32"))
        for n in {*chosen.lengths, *chosen.windows}
    }
    causal = masks.causal()
    rows = []
    for length in chosen.lengths:
        x = x_of[length]
        for way in ways():
            for what, a, b in (
                ("forward", lambda x: ours(x), lambda x: theirs(x, x)),
                (
                    "forward, causal",
                    lambda x: ours(x, attention_mask=causal),
                    lambda x: theirs(x, x, use_causal_mask=True),
                ),
            ):
                rows.append(
                    compare(what, way, length, runner(ours, a, way, x), runner(theirs, b, way, x), chosen.rounds)
                )
            steps = (stepper(layer, f, way, x) for layer, f in ((ours, ours), (theirs, lambda x: theirs(x, x))))
            rows.append(compare("training", way, length, *steps, chosen.rounds))
    for length in chosen.windows:
        x, mask = x_of[length][:1], masks.window(WINDOW - 1, 0)  # Keras's scores of one example are 2 GiB
        windowed = partial(ours, attention_mask=mask)
        dense = partial(theirs, attention_mask=keras.ops.convert_to_tensor(mask.to_bool(length)[0].numpy()))
        for way in ways():
            pair = (
                runner(ours, windowed, way, x),
                runner(theirs, lambda x, dense=dense: dense(x, x), way, x),
            )
            rows.append(compare(f"window {WINDOW}", way, length, *pair, min(3, chosen.rounds)))
    return rows


def ways() -> tuple[str, ...]:
    """How a backend runs a layer."""
    import keras

    return ("eager", "graph", "jit") if keras.backend.backend() == "tensorflow" else ("eager", "jit")


def runner(layer: Any, f: Callable[[Any], Any], way: str, x: Any) -> Callable[[], Any]:
    """f(x), and nothing left running when it returns."""
    import keras

    match keras.backend.backend():
        case "tensorflow":
            import tensorflow as tf

            run = f if way == "eager" else tf.function(f, jit_compile=way == "jit")
            return lambda: run(x)
        case "jax":
            import jax

            weights = [w.value for w in layer.weights]

            def pure(values: list[Any], x: Any) -> Any:
                with keras.StatelessScope(state_mapping=list(zip(layer.weights, values, strict=True))):
                    return f(x)

            compiled = jax.jit(pure) if way == "jit" else (lambda _, x: f(x))
            return lambda: jax.block_until_ready(compiled(weights, x))
        case _:
            import torch

            run = f if way == "eager" else torch.compile(f)

            def forward() -> Any:
                with torch.no_grad():
                    return run(x)

            return forward


def stepper(layer: Any, f: Callable[[Any], Any], way: str, x: Any) -> Callable[[], Any]:
    """The gradients of the sum of f(x) by the layer's weights and by x."""
    import keras

    match keras.backend.backend():
        case "tensorflow":
            import tensorflow as tf

            def step() -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    loss = tf.reduce_sum(f(x) ** 2)
                return tape.gradient(loss, [x, *(w.value for w in layer.trainable_variables)])

            return step if way == "eager" else tf.function(step, jit_compile=way == "jit")
        case "jax":
            import jax

            variables = layer.trainable_variables

            def loss(values: list[Any], x: Any) -> Any:
                with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                    return (f(x) ** 2).sum()

            gradient = jax.grad(loss, argnums=(1, 0))
            gradient = jax.jit(gradient) if way == "jit" else gradient
            weights = [w.value for w in variables]
            return lambda: jax.block_until_ready(gradient(weights, x))
        case _:
            import torch

            run = f if way == "eager" else torch.compile(f)
            leaf = x.clone().requires_grad_()

            def step() -> Any:
                leaf.grad = None
                for weight in layer.trainable_variables:
                    weight.value.grad = None
                (run(leaf) ** 2).sum().backward()
                return [leaf.grad]

            return step


def measure_long(length: int) -> list[Row]:
    """A training step of the chunked kernel: seconds, and how much memory the process took for it at most."""
    import keras
    import numpy as np

    import headwise.keras

    way = (
        "graph" if keras.backend.backend() == "tensorflow" else "eager" if keras.backend.backend() == "torch" else "jit"
    )
    layer = headwise.keras.MultiHeadAttention(DIM, HEADS, kernel="chunked")
    layer.build()
    x = keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=(1, length, DIM)).astype("float32"))
    stepper(layer, layer, way, x[:, :512])()
    before = peak()
    step = stepper(layer, layer, way, x)
    begin = time.perf_counter()
    step()
    seconds = time.perf_counter() - begin
    plain = 3 * HEADS * length**2 * 4  # scores, weights and the gradient of one of them, at the same time
    found = {"what": "long, training", "way": way, "length": length, "seconds": seconds}
    return [{**found, "peak_gib": (peak() - before) / 2**30, "plain_gib": plain / 2**30}]


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def compare(what: str, way: str, length: int, ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> Row:
    """The median of the rounds' ratios; the two take turns."""
    import keras
    import numpy as np

    found = (f() for f in (ours, theirs))  # the output, or gradients, of which that by x comes first
    first = (x[0] if isinstance(x, (list, tuple)) else x for x in found)
    a, b = (np.asarray(keras.ops.convert_to_numpy(x)) for x in first)
    difference = float(np.abs(a - b).max() / max(1.0, float(np.abs(b).max())))
    if difference > 1e-4:
        raise SystemExit(f"{what} at {length}, {way}: the outputs differ by {difference}")
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(rounds):
        for name, f in (("ours", ours), ("theirs", theirs)):
            begin = time.perf_counter()
            repeats = 0
            while repeats == 0 or time.perf_counter() - begin < 0.05:
                f()
                repeats += 1
            times[name].append((time.perf_counter() - begin) / repeats)
    ratio = statistics.median(b / a for a, b in zip(times["ours"], times["theirs"], strict=True))
    medians = {f"{name}_ms": 1e3 * statistics.median(found) for name, found in times.items()}
    row = {"what": what, "way": way, "length": length, "ratio": ratio, **medians}
    print(row, file=sys.stderr)
    return row


def show(backend: str, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "tokens", "way", "headwise", "Keras", "ratio", title=f"On {backend}", title_justify="left")
    for row in rows:
        if "ratio" in row:
            cells = [f"{row['ours_ms']:,.1f} ms", f"{row['theirs_ms']:,.1f} ms", f"{row['ratio']:.2f}×"]
        else:
            cells = [f"{row['seconds']:,.1f} s, {row['peak_gib']:.2f} GiB", f"plain: {row['plain_gib']:.0f} GiB", ""]
        table.add_row(row["what"], f"{row['length']:,}", row["way"], *cells)
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(table)


if __name__ == "__main__":
    main()
