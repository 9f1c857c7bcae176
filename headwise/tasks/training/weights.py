"""Writes the weights of a run as safetensors, completely or not at all; reads them strictly: all names must match."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from headwise.errors import CheckpointError, FileError
from headwise.records.tensor_file import read_tensors, write_tensors


def save_weights(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors under their names. Of tensors that share memory (tied weights), only the first is written.

    Raises:
        FileError: the file cannot be written; an older file stays unchanged.
    """
    kept: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    for name, tensor in tensors.items():
        kept.setdefault((tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride()), name)
    try:
        write_tensors(path, {name: tensors[name] for name in kept.values()}, {})
    except FileError as cause:
        raise FileError(f"{cause}. What was there before is intact") from cause


def load_weights(module: nn.Module, path: Path) -> None:
    """Load the tensors of a file into a module. Both must have the same names of parameters and buffers.

    Raises:
        CheckpointError: the file is missing or damaged, or its tensors are not the tensors of the module.
    """
    try:
        tensors = read_tensors(path)
    except FileError as cause:
        raise CheckpointError(f"cannot read {path}, it is damaged or cut short ({cause})") from cause
    own = module.state_dict(keep_vars=True)
    filled = {id(own[name]) for name in tensors if name in own}
    missing = [name for name, tensor in own.items() if name not in tensors and id(tensor) not in filled]
    unknown = [name for name in tensors if name not in own]
    if missing or unknown:
        which = f"{missing[0]} is missing" if missing else f"{unknown[0]} is unknown"
        raise CheckpointError(f"{path} does not fit the model of its config.yaml: {which}")
    for name, tensor in tensors.items():
        if own[name].shape != tensor.shape:
            raise CheckpointError(
                f"{path} does not fit the model of its config.yaml: {name}: expected {list(own[name].shape)}. "
                f"Received: {list(tensor.shape)}"
            )
    module.load_state_dict(tensors, strict=False)
