"""Reads how a text becomes one vector, from the files that sentence-transformers writes into a checkpoint.

    modules.json                         the modules, in order, each with its folder
    1_Pooling/config.json                which tokens make the vector; other modules: Dense, LayerNorm, Normalize
    sentence_bert_config.json            how many tokens of a text are read, and whether it is lowercased
    config_sentence_transformers.json    prompts (texts that are put before each text)

Files of versions 2 to 6 are understood (compared with 6.2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from headwise.errors import CheckpointError, brief
from headwise.files import parsed, read_json, read_text
from headwise.models.sentence_head import LATER, POOLING, later_module

_FLAGS = {  # the flags of versions before 6, in the order in which the vectors are concatenated
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ENDLESS = 10**9  # a tokenizer without a limit says 10**30


@dataclass(frozen=True)
class SentenceSettings:
    """The settings by which a text becomes one vector.

    Args:
        folder: the folder of the checkpoint.
        pooling: names of `sentence_head.POOLING`, whose vectors are concatenated.
        include_prompt: whether the pooling includes the tokens of the prompt.
        later: the modules that follow the pooling, in order.
        max_tokens: a text with more tokens is cut; None = only the encoder limits the length.
        cut_left: True = a longer text loses its beginning; False = its end.
        lowercase: whether texts are lowercased before they are tokenized.
        prompts: the name of a prompt -> the text that is put before each text.
        default_prompt: the name of the prompt that is used if none is requested; None = no prompt.
        width: the number of first elements of the vector that are kept; None = all.
        stated: whether the checkpoint has a modules.json. Without it the vector is the mean over all tokens.
    """

    folder: Path
    pooling: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    later: tuple[nn.Module, ...] = ()
    max_tokens: int | None = None
    cut_left: bool = False
    lowercase: bool = False
    prompts: Mapping[str, str] | None = None
    default_prompt: str | None = None
    width: int | None = None
    stated: bool = False


def read_settings(folder: Path) -> SentenceSettings:
    """Read the settings from a checkpoint's folder.

    Raises:
        CheckpointError: a file is damaged, or has a setting that headwise does not support.
    """
    if not (folder / "modules.json").is_file():
        limit, cut_left = _read_tokenizer(folder)
        return SentenceSettings(folder, max_tokens=limit, cut_left=cut_left)
    (first, place), (second, pooling_place), *others = _modules(folder)
    if (first, second) != ("Transformer", "Pooling") or Path(place) != Path():
        received = f"{first} in {place!r}, then {second}"
        raise _unknown(folder / "modules.json", f"a Transformer in '', then a Pooling. Received: {received}")
    own = _read_own(folder)
    limit, cut_left = _read_tokenizer(folder)
    pooling, include_prompt = _pooling(folder / pooling_place / "config.json")
    about = _optional(folder / "config_sentence_transformers.json")
    prompts = about.get("prompts") or {}
    return SentenceSettings(
        folder,
        pooling,
        include_prompt,
        tuple(later_module(name, folder / path) for name, path in others),
        own.get("max_seq_length") or limit,
        cut_left,
        bool(own.get("do_lower_case")),
        {str(name): str(text or "") for name, text in prompts.items()},
        about.get("default_prompt_name"),
        about.get("truncate_dim"),
        stated=True,
    )


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Read the kind and the folder of each module. The kind is the name of its class, the same in all versions."""
    path = folder / "modules.json"
    try:
        found = parsed(json.loads, read_text(path))
        modules = [(str(each["type"]), str(each["path"])) for each in found]
    except (OSError, ValueError, TypeError, KeyError) as cause:
        raise CheckpointError(f"cannot read {path}: expected a list of modules with type and path ({cause})") from cause
    for kind, place in modules:
        if not kind.startswith("sentence_transformers.") or kind.rpartition(".")[2] not in _KINDS:
            raise _unknown(path, f"modules of {', '.join(_KINDS)} of sentence_transformers. Received: {kind}")
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise _unknown(path, f"folders inside of the checkpoint. Received: {place}")
    if len(modules) < 2:
        raise _unknown(path, f"a Transformer and a Pooling. Received: {len(modules)} modules")
    return [(kind.rpartition(".")[2], place) for kind, place in modules]


_KINDS = ("Transformer", "Pooling", *LATER)


def _pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    config = read_json(path)
    if "pooling_mode" not in config:
        others = [flag for flag in config if flag.startswith("pooling_mode_") and flag not in _FLAGS and config[flag]]
        if others:
            raise _unknown(path, f"flags of {', '.join(_FLAGS)}. Received: {brief(others[0])}")
    given = config.get("pooling_mode", [name for flag, name in _FLAGS.items() if config.get(flag)] or "mean")
    names = (given,) if isinstance(given, str) else tuple(given)
    if unknown := [name for name in names if name not in POOLING]:
        raise _unknown(path, f"pooling of {', '.join(POOLING)}. Received: {brief(unknown[0])}")
    return names, bool(config.get("include_prompt", True))


def _read_own(folder: Path) -> dict[str, Any]:
    """Read the file with the encoder's settings. In old checkpoints, its name has the family's name in it."""
    path = next(iter(sorted(folder.glob("sentence_*_config.json"))), folder / "sentence_bert_config.json")
    own = _optional(path)
    if (task := own.get("transformer_task", "feature-extraction")) != "feature-extraction":
        raise _unknown(path, f"the task feature-extraction. Received: transformer_task={task!r}")
    for name in ("processing_kwargs", "processor_kwargs", "tokenizer_args", "query_expansion"):
        if own.get(name):
            raise _unknown(path, f"no {name}. Received: {brief(own[name])}")
    return own


def _read_tokenizer(folder: Path) -> tuple[int | None, bool]:
    """Read the tokenizer's settings: the maximum number of tokens (None = no limit), whether it cuts at the left."""
    settings = _optional(folder / "tokenizer_config.json")
    limit = settings.get("model_max_length")
    cut_left = settings.get("truncation_side") == "left"
    return (int(limit) if isinstance(limit, int | float) and 0 < limit < _ENDLESS else None), cut_left


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _unknown(path: Path, expected: str) -> CheckpointError:
    return CheckpointError(f"{path}: expected {expected}. headwise cannot make the vectors of this checkpoint")
