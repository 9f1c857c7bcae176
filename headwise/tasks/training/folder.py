"""Checks whether a run folder exists. Imports nothing heavy, so that the command can check first."""

from __future__ import annotations

from pathlib import Path

from headwise.errors import ArgumentError, CheckpointError

CONFIG = "config.yaml"


def check_new(folder: Path) -> None:
    """Raise ArgumentError if the folder already holds a run, because nothing is overwritten."""
    if (folder / CONFIG).exists():
        raise ArgumentError(
            f"{folder} holds a run already: resume it (resume=True, --resume), or choose another folder"
        )


def check_there(folder: Path) -> None:
    """Raise CheckpointError if there is no such folder."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "is not there"
        raise CheckpointError(
            f"{folder} {what}: expected a run folder. `headwise train ... --out {folder}` writes one; --resume only "
            "continues it"
        )
