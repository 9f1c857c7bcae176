"""Run folders and option files of version 0.1.0, with the names that they had, load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from headwise import tasks
from headwise.cli import task_options
from headwise.export import task_files
from headwise.renamed import renamed
from headwise.tasks.options.translate import TranslateOptions
from headwise.tasks.training.weights import save_weights
from tests.export import tiny

BERT = {"dim": "hidden_size", "ffn_dim": "intermediate_size"}

# What to make, and where its config.yaml had other names in 0.1.0: the path of a dict -> today's names and those.
RUNS: dict[str, tuple[Callable[[], Any], dict[str, dict[str, str]]]] = {
    "a small encoder": (tiny.classifier, {"state.encoder": {"dim": "hidden_size"}}),
    "latents": (lambda: tiny.classifier("latent"), {"state.encoder": {"dim": "hidden_size"}}),
    "a bert": (tiny.masked, {"state": BERT}),
    "a causal model": (tiny.causal, {}),
    "images and texts": (
        tiny.matcher,
        {"state.model": {"dim": "width", "shared_dim": "shared_width"}, "state.model.text": BERT},
    ),
    "an encoder-decoder": (tiny.translator, {}),
}


def as_written_by_0_1(config: dict[str, Any], old: dict[str, dict[str, str]]) -> None:
    for path, names in {"options": {"vocab_size": "vocabulary"}, **old}.items():
        part = config
        for step in path.split("."):
            part = part[step]
        for new, name in names.items():
            part[name] = part.pop(new)


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_of_0_1_loads(kind: str, tmp_path: Path) -> None:
    make, old = RUNS[kind]
    task = make()
    task_files.write(tmp_path, task)
    save_weights(task.state_dict(), tmp_path / "weights.safetensors")
    path = tmp_path / "config.yaml"
    config = yaml.safe_load(path.read_text())
    as_written_by_0_1(config, old)
    path.write_text(yaml.safe_dump(config))
    loaded = tasks.load(tmp_path)
    assert loaded.options == task.options
    for name, tensor in task.state_dict().items():
        assert torch.equal(loaded.state_dict()[name].cpu(), tensor)


def test_options_in_a_file_of_0_1_are_read(tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text("vocabulary: 300\ndim: 32\n")
    assert task_options.read_config(path, "translate", TranslateOptions) == {"vocab_size": 300, "dim": 32}


def test_a_column_that_has_an_old_name_keeps_it() -> None:
    state = {"series": {"width": 1.0, "vocabulary": 2.0}, "channels": ["width"]}
    assert renamed(state) == state
