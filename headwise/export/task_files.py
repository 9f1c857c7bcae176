"""The files of a task in an export, besides its graphs: config.yaml, tokenizer and labels."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml

from headwise.errors import FileError
from headwise.tasks.task import Task
from headwise.tasks.training.run import CONFIG, SCORES
from headwise.version import __version__


def write(folder: Path, task: Task[Any], run: Path | None = None) -> None:
    """Write config.yaml and the task's own files, so that the task can be rebuilt except for its weights.

    Args:
        run: the run folder from which the task was loaded; its config.yaml and scores.json are copied.

    Raises:
        FileError: a file cannot be written.
    """
    try:
        task.save_files(folder)
        if run is None:
            (folder / CONFIG).write_text(_config(task), encoding="utf-8")
        else:
            shutil.copyfile(run / CONFIG, folder / CONFIG)
            if (run / SCORES).is_file():
                shutil.copyfile(run / SCORES, folder / SCORES)
    except FileError:
        raise
    except OSError as cause:
        raise FileError(f"cannot write into {folder}: {cause.strerror or cause}") from cause


def _config(task: Task[Any]) -> str:
    """Return the text of config.yaml for a task without a run folder: its name, options, state and versions."""
    config = {
        "task": task.name,
        "options": json.loads(json.dumps(asdict(task.options))),
        "state": json.loads(json.dumps(task.state())),  # only types that YAML can write
        "versions": {"headwise": __version__, "torch": str(torch.__version__)},
    }
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)
