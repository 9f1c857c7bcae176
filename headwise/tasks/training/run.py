"""The run folder: everything that is needed to use a trained task again, or to resume its training.

config.yaml           the task, its options, its state besides weights, versions, data, machine
weights.safetensors   the best weights
scores.json           the scores on held-out data, beside trivial baselines
last.ckpt             the last state of a training that has not ended, to resume it; the option keep_optimizer keeps it
curve.csv, curve.png  the learning curve
tensorboard/          losses, scores, and numbers of the heads
checksums.json        the checksums of config.yaml, scores.json and the task's own files; the weights carry their own
...                   the task's own files, such as a tokenizer
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import yaml

from headwise.errors import CheckpointError, FileError, HeadwiseError
from headwise.files import adding, check_seal, parsed, read_seal, read_text, seal
from headwise.language import Sentence
from headwise.renamed import renamed
from headwise.tasks.options.train import TrainOptions, make
from headwise.tasks.scores import Scores
from headwise.tasks.training.folder import CONFIG, check_there
from headwise.tasks.training.weights import load_weights
from headwise.version import __version__

if TYPE_CHECKING:
    from headwise.tasks.rows.tables import Data
    from headwise.tasks.trainable import Trainable

WEIGHTS, LAST, SCORES = "weights.safetensors", "last.ckpt", "scores.json"

TaskT = TypeVar("TaskT", bound="Trainable[Any]")


def restore(folder: Path, kind: type[TaskT]) -> TaskT:
    """Load the trained task of a run folder; the task must be of the class `kind`.

    Raises:
        CheckpointError: not a run folder, a run of another task, or weights that are missing or damaged.
    """
    folder = folder.expanduser()
    config = read_config(folder, kind)
    if not (folder / WEIGHTS).is_file():
        why = ": its training was stopped before its first epoch ended. Begin it again: resume=True, or --resume"
        if (folder / LAST).is_file():
            why = ": its training was stopped before its first validation. Go on with it: resume=True, or --resume"
        elif (folder / "export.json").is_file():
            why = ": it is an export. `headwise serve` runs it, and in Python `from headwise.export.load import load`"
        raise CheckpointError("{folder} has no {file}{why}", folder=folder, file=WEIGHTS, why=why)
    task = rebuild(folder, config, kind)
    load_weights(task, folder / WEIGHTS)
    on_gpu = task.options.accelerator != "cpu" and torch.cuda.is_available()
    return task.to("cuda" if on_gpu else "cpu").eval()


def rebuild(folder: Path, config: dict[str, Any], kind: type[TaskT]) -> TaskT:
    """Make the task of a run folder again, as it was before its first step, except for its weights.

    Raises:
        CheckpointError: its config.yaml or files are damaged, or do not fit this version.
    """
    check_seal(folder)
    try:
        return kind.restore(make(kind.options_type, config["options"]), config["state"], folder)
    except CheckpointError:
        raise
    except HeadwiseError as cause:
        raise CheckpointError(f"{folder / CONFIG}: {cause}") from cause
    except (KeyError, TypeError, ValueError, OSError) as cause:
        said = f"{type(cause).__name__}: {cause}"
        raise CheckpointError(
            "cannot restore the {name} of {folder} (headwise {versions}): {cause}",
            name=kind.name,
            folder=folder,
            versions=config.get("versions"),
            cause=said,
        ) from cause


def read_config(folder: Path, kind: type[Trainable[Any]] | None = None) -> dict[str, Any]:
    """Read the config.yaml of a run folder.

    Args:
        kind: the class of task that the run must belong to; None = any.

    Raises:
        CheckpointError: the folder or its config.yaml is missing, or the file is damaged, does not belong to a run, or
            belongs to another task.
    """
    check_there(folder)
    check_seal(folder, CONFIG)
    try:
        config = parsed(yaml.safe_load, read_text(folder / CONFIG))
    except FileNotFoundError as cause:
        raise CheckpointError(
            "{folder} is no run folder: there is no {file} in it", folder=folder, file=CONFIG
        ) from cause
    except (OSError, ValueError, yaml.YAMLError) as cause:
        raise CheckpointError(
            "cannot read {path}: {cause}", path=folder / CONFIG, cause=" ".join(str(cause).split())
        ) from cause
    kinds = {"task": str, "options": dict, "state": dict}
    if not isinstance(config, dict) or not all(isinstance(config.get(name), kind) for name, kind in kinds.items()):
        raise CheckpointError("{folder} is not a run's: expected task, options and state in it", folder=folder / CONFIG)
    if kind is not None and config["task"] != kind.name:
        raise CheckpointError(
            "{folder} is a run of {word!r}: expected one of {name!r}",
            folder=folder,
            word=config["task"],
            name=kind.name,
        )
    return config | {part: renamed(config[part]) for part in ("options", "state")}


def write_config(
    folder: Path, task: Trainable[Any], training: Data, validation: Data | None, remarks: Sequence[str]
) -> None:
    """Write config.yaml and the task's own files, before the first step.

    Args:
        remarks: notes on the training data.

    Raises:
        FileError: the files cannot be written.
    """
    import pytorch_lightning

    options = asdict(task.options)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} cores"
    config = {
        "task": task.name,
        "options": {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()},
        "state": json.loads(json.dumps(task.state())),  # then YAML knows every type in it
        "data": {"training": _told(training, remarks), "validation": _told(validation)},
        "versions": {
            "headwise": __version__,
            "torch": str(torch.__version__),
            "lightning": pytorch_lightning.__version__,
            "python": platform.python_version(),
        },
        "machine": f"{platform.system()} {platform.machine()}, {device}",
        "begun": _now(),
    }
    write_files(folder, task, config)


def ended(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a run whose training has ended now."""
    return {**config, "ended": _now()}


def begun_again(config: dict[str, Any], epochs: int) -> dict[str, Any]:
    """Return the config of a run whose training goes on to more epochs than before."""
    config = {**config, "options": {**config["options"], "epochs": epochs}}
    return {name: value for name, value in config.items() if name != "ended"}


def is_over(folder: Path, config: dict[str, Any]) -> bool:
    """Return whether the training of a run has ended, and left nothing from which it could go on."""
    return "ended" in config and (folder / WEIGHTS).is_file() and not (folder / LAST).is_file()


def write_files(folder: Path, task: Trainable[Any], config: dict[str, Any], scores: Scores | None = None) -> None:
    """Write config.yaml, scores.json, the task's own files, and the checksums of all.

    Raises:
        FileError: the files cannot be written.
    """
    try:
        with adding(folder) as part:
            told = yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)
            (part / CONFIG).write_text(told, encoding="utf-8")
            if scores is not None:
                said = json.dumps(scores.to_json(), indent=2, ensure_ascii=False)
                (part / SCORES).write_text(said + "\n", encoding="utf-8")
            task.save_files(part)
            seal(part)
    except FileError:
        raise
    except OSError as cause:
        raise FileError("cannot write into {folder}: {cause}", folder=folder, cause=cause.strerror or cause) from cause


def find_files(folder: Path) -> list[Path]:
    """Return the files of a run folder that its predictions depend on. A folder without checksums may have others."""
    own = {folder / name for name in read_seal(folder)} or {*folder.glob("*.json"), *folder.glob("*.safetensors")}
    own |= {folder / CONFIG, folder / WEIGHTS}
    return sorted(path for path in own if path.name != SCORES and path.is_file())


def read_scores(folder: Path) -> Scores | None:
    """Read the scores in scores.json; None if the file is missing, because nothing was held out.

    Raises:
        CheckpointError: the file cannot be read.
    """
    path = folder / SCORES
    if not path.is_file():
        return None
    try:
        return Scores.from_json(parsed(json.loads, read_text(path)))
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise CheckpointError(
            "cannot read {path}: {kind}: {cause}", path=path, kind=type(cause).__name__, cause=cause
        ) from cause


def check_same(
    folder: Path,
    config: dict[str, Any],
    options: TrainOptions,
    names: set[str],
    training: Data,
    validation: Data | None,
) -> None:
    """Check that a run can be resumed with these options and data. It may get more epochs, if its last.ckpt is there.

    Args:
        names: the names of the options that were given; the others have the values of the run.

    Raises:
        CheckpointError: an option or the data differ from those of the run, or it has ended and its optimizer is gone.
    """
    had = make(type(options), config["options"])
    for name in sorted(names - MAY_CHANGE):
        if getattr(had, name) != getattr(options, name):
            raise CheckpointError(
                "{folder} cannot be resumed with another {name}: expected {expected!r}. Received: {received!r}. "
                "Leave it out, or start a new training in another folder",
                folder=folder,
                name=name,
                expected=getattr(had, name),
                received=getattr(options, name),
            )
    if options.epochs < had.epochs:
        raise CheckpointError(
            f"{folder} cannot be resumed with fewer epochs: expected at least {had.epochs}. Received: {options.epochs}"
        )
    if options.epochs > had.epochs and is_over(folder, config):
        raise CheckpointError(
            f"{folder} has ended without keep_optimizer (--keep-optimizer), so it cannot be resumed to more epochs: "
            f"expected {LAST}, the optimizer's state. Received: none. If its text encoder is a BERT, begin a new run "
            f"with it, in another folder: model={str(folder)!r} (--model {folder})"
        )
    for part, data in (("training", training), ("validation", validation)):
        before, now = config.get("data", {}).get(part) or {}, _told(data) or {}
        if any(before.get(word) != now.get(word) for word in ("rows", "fingerprint")):
            raise CheckpointError(
                "{folder} cannot be resumed with other {part} data: expected {expected}. Received: {received}. "
                "Start a new training in another folder",
                folder=folder,
                part=part,
                expected=_named(before),
                received=_named(now),
            )


# Options that may change when a run is resumed: they do not change its result, except for more epochs.
MAY_CHANGE = {
    "epochs",
    "keep_optimizer",
    "time_limit",
    "accelerator",
    "devices",
    "nodes",
    "strategy",
    "compile",
    "monitor_every",
    "context_parallel",
}


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _told(data: Data | None, remarks: Sequence[str] = ()) -> dict[str, Any] | None:
    if data is None:
        return None
    found: dict[str, Any] = {"name": data.name, "rows": len(data), "fingerprint": data.fingerprint}
    said = {"left_out": list(map(str, data.left_out)), "remarks": list(map(str, remarks))}  # YAML has no sentences
    return found | {word: sentences for word, sentences in said.items() if sentences}


def _named(told: dict[str, Any]) -> str:
    if not told:
        return Sentence("none")
    return Sentence("{rows} rows of {name} (fingerprint {fingerprint})").format(**told)
