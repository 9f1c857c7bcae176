"""The steps of `benchmarks/gpu.py --minutes`: each ends in its time, and what it found is in the file at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu


def test_a_step_ends_by_itself_or_at_its_limit() -> None:
    assert gpu.run_step([sys.executable, "-c", "print('found')"], 60)["outcome"] == "done"
    failed = gpu.run_step([sys.executable, "-c", "print('found'); raise SystemExit(3)"], 60)
    assert (failed["outcome"], failed["said"]) == ("failed", "found")
    slow = gpu.run_step([sys.executable, "-c", "import time; print('found', flush=True); time.sleep(600)"], 2)
    assert (slow["outcome"], slow["said"]) == ("out of time", "found")
    assert slow["seconds"] < 60


def test_without_a_gpu_it_runs_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, ran = tmp_path / "gpu.json", []

    def run_step(command: list[str], limit: float) -> dict[str, Any]:
        written = json.loads(path.read_text())["steps"] if path.exists() else []
        assert [step["step"] for step in written] == list(gpu.STEPS)[: len(ran)]  # those before are in the file
        ran.append(limit)
        return {"outcome": "done", "seconds": 0.0, "said": " ".join(command)}

    monkeypatch.setattr(gpu, "run_step", run_step)
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    assert gpu.run_steps(7, path, 2) == 1
    steps = json.loads(path.read_text())["steps"]
    assert ["--device cpu --small" in step["said"] for step in steps] == [False, True, True]
    assert "test_cuda.py" in steps[0]["said"]
    assert "There is no GPU here" in capsys.readouterr().err
    assert ran == pytest.approx([240, 140, 420], rel=0.01)  # a step that takes no time leaves it to the others
