"""What an export holds of a task besides its graphs: what it was trained with, its tokenizer and labels."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml

from headwise.errors import FileError
from headwise.tasks.task import Task
from headwise.tasks.training.run import CONFIG, SCORES, save_files

RANDOM_ONLY = "No real inputs were given: it was compared with PyTorch on random ones alone."


def write(folder: Path, task: Task[Any], run: Path | None = None) -> None:
    """config.yaml and the files of the task's own, so that it can be made again, except for its weights.

    Args:
        run: the folder that the task was loaded from, whose config.yaml and scores.json are then taken as they are.

    Raises:
        FileError: they cannot be written.
    """
    training = task.model.training
    task.model.train()  # a task whose weights are not learned yet saves none: here its tokenizer is wanted alone
    try:
        save_files(task, folder)
    finally:
        task.model.train(training)
    try:
        if run is None:
            (folder / CONFIG).write_text(_config(task), encoding="utf-8")
        else:
            shutil.copyfile(run / CONFIG, folder / CONFIG)
            if (run / SCORES).is_file():
                shutil.copyfile(run / SCORES, folder / SCORES)
    except OSError as cause:
        raise FileError(f"cannot write into {folder}: {cause.strerror or cause}") from cause


def _config(task: Task[Any]) -> str:
    """As much of a run's config.yaml as can be told without its training."""
    config = {
        "task": task.name,
        "options": json.loads(json.dumps(asdict(task.options))),
        "state": json.loads(json.dumps(task.state())),  # YAML then knows every kind in it
        "versions": {"headwise": importlib.metadata.version("headwise"), "torch": str(torch.__version__)},
    }
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)
