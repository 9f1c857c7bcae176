"""Training in 16 bits, and compiled: weights stay float32, and a compiled model learns what the eager one learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer
from safetensors.torch import load_file
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.tasks.options.train import TrainOptions
from headwise.tasks.training import strategies
from headwise.tasks.training.callbacks.seeding import Seeding

from .mini_task import MiniTask

ROWS = 24
OPTIONS: dict[str, Any] = {"accelerator": "cpu", "epochs": 1, "lr": 1e-3, "dropout": 0.0}


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)])
def test_a_step_in_16_bits(precision: Any, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[torch.dtype] = set()

    class Arranged(Seeding):
        def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
            attention = pl_module.model.encoder.layers[0].attention
            attention.register_forward_hook(lambda module, arguments, output: seen.add(output.dtype))

    monkeypatch.setattr("headwise.tasks.training.fit.Seeding", Arranged)
    MiniTask.fit(ROWS, out=tmp_path / "run", precision=precision, monitor_every=1, **OPTIONS)
    assert dtype in seen
    weights = load_file(tmp_path / "run" / "weights.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    MiniTask.fit(ROWS, out=tmp_path / "full", monitor_every=0, **OPTIONS)
    full = load_file(tmp_path / "full" / "weights.safetensors")
    assert not torch.equal(weights["model.output.weight"], full["model.output.weight"])
    torch.testing.assert_close(weights["model.output.weight"], full["model.output.weight"], rtol=0, atol=1e-2)


def test_a_compiled_model_learns_what_the_eager_one_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the compiler's first half: the second writes C++, which takes long. One graph serves all lengths."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compile_with = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: compile_with(self, backend=backend, **how))
    torch.compiler.reset()
    for name, compiles in (("eager", False), ("compiled", True)):
        MiniTask.fit(ROWS, out=tmp_path / name, compile=compiles, batch_tokens=24, monitor_every=2, **OPTIONS)
    eager, compiled = (weights_but_keys(tmp_path / name) for name in ("eager", "compiled"))
    for name in eager:
        torch.testing.assert_close(compiled[name], eager[name], rtol=0, atol=1e-5, msg=lambda said, name=name: name)
    assert 1 <= len(graphs) <= 4  # in training and in eval mode; more batches than that have lengths of their own


def weights_but_keys(run: Path) -> dict[str, Tensor]:
    """Without the biases of the keys, which softmax cancels: their gradient is rounding, which Adam makes large."""
    found = load_file(run / "weights.safetensors")
    return {name: tensor for name, tensor in found.items() if not name.endswith("qkv.bias")}


def test_compile_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "_compilers", list)
    with pytest.raises(ArgumentError, match=r"compile: torch.compile needs a C\+\+ compiler, and there is none"):
        strategies.check(TrainOptions(compile=True, accelerator="cpu"))
