"""Makes the content of the page of `headwise view`, from recorded attention or from a trained task's run folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.cli.files import STDIN
from headwise.cli.layers import LayerRange, choose_layers
from headwise.cli.scores import number
from headwise.errors import ArgumentError
from headwise.language import Sentence
from headwise.tasks.training.folder import check_first, is_run

if TYPE_CHECKING:
    from headwise.records import Seen
    from headwise.tasks.task import Task
    from headwise.viewer import Input


def run_among(texts: Sequence[str], model: str | None) -> Path | None:
    """Return the path of the run folder, if the first argument is one; otherwise None.

    Raises:
        CheckpointError: a run folder stands behind a text.
        ArgumentError: --model or a second run folder was given, too; or there are several texts, and the first is the
            name of a folder that is not a run folder.
    """
    if not texts or not is_run(texts[0]):
        check_first("".join(texts[:1]), texts[1:])
        if len(texts) > 1 and _is_folder(texts[0]):
            raise ArgumentError(
                Sentence(
                    "{texts} is a folder without a config.yaml. Expected texts, or a run folder that headwise train "
                    "wrote"
                ).format(texts=texts[0])
            )
        return None
    run = Path(texts[0])
    if model is not None:
        raise ArgumentError(
            Sentence("{run} is a run folder, which contains its own model. Leave --model out").format(run=run)
        )
    if any(is_run(text) for text in texts[1:]):
        raise ArgumentError(
            Sentence("{run} is a run folder: expected its inputs after it. Received: another run folder").format(
                run=run
            )
        )
    return run


def _is_folder(text: str) -> bool:
    """Return whether a text names a folder; False if it is too long to be a path."""
    if len(text) > 1000 or text == STDIN:
        return False
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):
        return False


def named_inputs(seen: Sequence[Seen], names: Sequence[str], layers: Collection[int], **given: Any) -> list[Input]:
    """Make the inputs of a page from recorded attention. They get the names `names`, if there is one per input.

    `given`: see `inputs_of`.
    """
    from headwise.viewer import inputs_of

    found = inputs_of(seen[0] if len(seen) == 1 else list(seen), layers=layers, **given)
    if len(found) != len(names):
        return found
    return [dataclasses.replace(one, name=name) for one, name in zip(found, names, strict=True)]


def look(
    run: Path, inputs: Sequence[str], names: Sequence[str], ranges: Sequence[LayerRange] | None
) -> tuple[list[Input], str, list[Sentence]]:
    """Run a trained task on its inputs.

    Returns (the inputs of the page, the Python code that makes their records, a sentence with each prediction).
    """
    from headwise import tasks

    task = tasks.load(run)
    seen = task.look(list(inputs))
    pictures_of = getattr(task, "pictures", None)  # only `match` has it: the images behind the patches
    pictures = pictures_of(list(inputs)) if pictures_of is not None else None
    chosen = {layer for each in seen for layer in choose_layers(ranges, len(each.layers))}
    found = named_inputs(seen, names, chosen, images=pictures)
    listed = json.dumps(list(inputs), ensure_ascii=False)
    made = f"headwise.tasks.load({json.dumps(str(run), ensure_ascii=False)}).look({listed})"
    return found, f"{made}[0]" if len(seen) == 1 else made, _predictions(task, inputs, names)


def _predictions(task: Task[Any], inputs: Sequence[str], names: Sequence[str]) -> list[Sentence]:
    """Say what the task predicts for each input, if that is a label or an answer."""
    from headwise.tasks import Answer, Classify

    if not isinstance(task, Answer | Classify):
        return []
    told = Sentence("{name}: predicted {answer}, probability {probability}")
    return [
        told.format(name=name, answer=row.get("label", row.get("answer")), probability=number(row["probability"]))
        for name, row in zip(names, task.predict(list(inputs)), strict=True)
    ]
