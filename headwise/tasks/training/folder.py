"""Whether a run folder is free. Imports nothing heavy, so that the command can look before anything else."""

from __future__ import annotations

from pathlib import Path

from headwise.errors import ArgumentError

CONFIG = "config.yaml"


def check_new(folder: Path) -> None:
    """Nothing is overwritten. Raises ArgumentError if the folder holds a run."""
    if (folder / CONFIG).exists():
        raise ArgumentError(
            f"{folder} holds a run already: resume it (resume=True, --resume), or choose another folder"
        )
