"""The mean of the weights over the steps: its numbers, what is saved, and what the training itself does not notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.tasks.training.callbacks.averaging import Averaging

from .mini_task import MiniTask

ROWS = 60
OPTIONS: dict[str, Any] = {"accelerator": "cpu", "monitor_every": 0, "epochs": 2}
NAME = "model.output.bias"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """One of the parameters after each step."""
    found: list[Tensor] = []
    before = Averaging.on_train_batch_end

    def noted(self: Averaging, trainer: Any, pl_module: Any, *rest: Any) -> None:
        found.append(pl_module.state_dict()[NAME].clone())
        before(self, trainer, pl_module, *rest)

    monkeypatch.setattr(Averaging, "on_train_batch_end", noted)
    return found


@pytest.mark.parametrize("validation_share", [0.0, 0.25])
def test_what_is_saved_is_the_mean(validation_share: float, steps: list[Tensor], tmp_path: Path) -> None:
    torch.manual_seed(0)
    MiniTask.fit(ROWS, out=tmp_path / "run", average=0.5, validation_share=validation_share, **OPTIONS, patience=0)
    decays = [min(0.5, step / (step + 10)) for step in range(1, len(steps) + 1)]
    first = tmp_path / "first"
    MiniTask.fit(ROWS, out=first, lr=1e-30, validation_share=0.0, **OPTIONS)
    mean = load_file(first / "weights.safetensors")[NAME]  # before the first step
    means = []
    for decay, weights in zip(decays, steps, strict=True):
        mean = decay * mean + (1 - decay) * weights
        means.append(mean)
    saved = load_file(tmp_path / "run" / "weights.safetensors")[NAME]
    ends = [means[-1]] if validation_share == 0 else [means[len(means) // 2 - 1], means[-1]]
    assert any(torch.allclose(saved, end, atol=1e-6) for end in ends)
    assert not any(torch.allclose(saved, each, atol=1e-6) for each in steps)


def test_the_training_does_not_notice_it(steps: list[Tensor], tmp_path: Path) -> None:
    MiniTask.fit(ROWS, average=0.9, **OPTIONS)
    averaged = steps.copy()
    steps.clear()
    MiniTask.fit(ROWS, average=1e-9, **OPTIONS)
    assert all(torch.equal(one, other) for one, other in zip(averaged, steps, strict=True))


def test_a_resumed_run_has_the_same_mean(tmp_path: Path) -> None:
    MiniTask.fit(ROWS, out=tmp_path / "whole", average=0.9, **OPTIONS)
    MiniTask.fit(ROWS, out=tmp_path / "parts", average=0.9, time_limit=1e-9, **OPTIONS)
    MiniTask.fit(ROWS, out=tmp_path / "parts", resume=True, time_limit=None)
    whole, parts = (load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_decay_of_one_is_refused() -> None:
    with pytest.raises(ArgumentError, match="average: expected less than 1"):
        MiniTask.fit(ROWS, average=1.0, **OPTIONS)
