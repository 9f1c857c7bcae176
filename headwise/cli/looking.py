"""What `headwise view` shows of a run folder: the trained task while it works on each input."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli.files import STDIN
from headwise.cli.layers import LayerRange, choose_layers
from headwise.errors import ArgumentError

if TYPE_CHECKING:
    from headwise.viewer import Input


def run_among(texts: Sequence[str], model: str | None) -> Path | None:
    """The run folder that the arguments begin with, if they do.

    Raises:
        ArgumentError: it has its own model, a second run folder comes after it, or the first of several texts is a
            folder that is no run folder.
    """
    if not texts or not _is_run(texts[0]):
        if len(texts) > 1 and _is_folder(texts[0]):
            raise ArgumentError(
                f"{texts[0]} is a folder, but no run folder: there is no config.yaml in it. Expected texts, or a "
                "folder that headwise train wrote"
            )
        return None
    run = Path(texts[0])
    if model is not None:
        raise ArgumentError(f"{run} is a run folder, which has its own model: leave --model out")
    if any(_is_run(text) for text in texts[1:]):
        raise ArgumentError(f"{run} is a run folder: expected what it looks at after it. Received: another run folder")
    return run


def _is_run(text: str) -> bool:
    return _is_folder(text) and (Path(text) / "config.yaml").is_file()


def _is_folder(text: str) -> bool:
    """A text that is as long as to be no name is none."""
    if len(text) > 1000 or text == STDIN:
        return False
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):
        return False


def look(
    run: Path, inputs: Sequence[str], names: Sequence[str], ranges: Sequence[LayerRange] | None
) -> tuple[list[Input], str]:
    """What there is to show of each input, and the Python that makes it."""
    from headwise import tasks
    from headwise.viewer import inputs_of

    task = tasks.load(run)
    seen = task.look(list(inputs))
    pictures_of = getattr(task, "pictures", None)  # of match: what lies under the patches
    pictures = pictures_of(list(inputs)) if pictures_of is not None else None
    chosen = {layer for each in seen for layer in choose_layers(ranges, len(each.layers))}
    found = inputs_of(seen[0] if len(seen) == 1 else seen, images=pictures, layers=chosen)
    if len(found) == len(names):
        found = [dataclasses.replace(one, name=name) for one, name in zip(found, names, strict=True)]
    listed = json.dumps(list(inputs), ensure_ascii=False)
    made = f"headwise.tasks.load({json.dumps(str(run), ensure_ascii=False)}).look({listed})"
    return found, f"{made}[0]" if len(seen) == 1 else made
