"""Makes the vector of a text from its hidden states: pooling, and the modules that may follow the pooling.

The definitions are those of sentence-transformers (`Pooling`, `Dense`, `LayerNorm`, `Normalize`), for unpadded texts.
Dimension letters: S tokens of one text, M model, N texts.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import CheckpointError
from headwise.files import read_json
from headwise.models.checkpoint import load_tensors

# The name of a pooling -> the function that makes a vector [M] from states [S, M], without the first `skipped`.
POOLING: dict[str, Callable[[Tensor, int], Tensor]] = {
    "cls": lambda x_SM, skipped: x_SM[skipped],
    "max": lambda x_SM, skipped: x_SM[skipped:].amax(0),
    "mean": lambda x_SM, skipped: x_SM[skipped:].mean(0),
    "mean_sqrt_len_tokens": lambda x_SM, skipped: x_SM[skipped:].sum(0) / (len(x_SM) - skipped) ** 0.5,
    "weightedmean": lambda x_SM, skipped: _weighted_mean(x_SM, skipped),
    "lasttoken": lambda x_SM, skipped: x_SM[-1],
}


def _weighted_mean(x_SM: Tensor, skipped: int) -> Tensor:
    """Compute a mean in which later tokens weigh more: 1, 2, 3 … (SGPT, Muennighoff 2022, arXiv:2202.08904)."""
    weights_S1 = torch.arange(skipped + 1, len(x_SM) + 1, dtype=x_SM.dtype)[:, None]
    return (x_SM[skipped:] * weights_S1).sum(0) / weights_S1.sum()


def pooled(x_SM: Tensor, names: Sequence[str], skipped: int = 0) -> Tensor:
    """Make the vector [M · number of names] of a text, in float32: the results of several poolings, concatenated.

    Args:
        x_SM: the hidden states of the text's real tokens.
        names: keys of `POOLING`.
        skipped: the number of first tokens that are ignored, such as those of a prompt.
    """
    x_SM = x_SM.float()
    found = [POOLING[name](x_SM, skipped) for name in names]
    return found[0] if len(found) == 1 else torch.cat(found)


def later_module(kind: str, folder: Path) -> nn.Module:
    """Load a module that follows the pooling: it turns vectors [N, M] into other vectors.

    Args:
        kind: a key of `LATER`.
        folder: the folder with its config.json and weights.

    Raises:
        CheckpointError: a file is missing or damaged, or has a setting that headwise does not support.
    """
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else {}
    for name in ("module_input_name", "module_output_name"):
        if (of := config.get(name) or "sentence_embedding") != "sentence_embedding":
            raise CheckpointError(f"{path}: expected {name} of the vector, sentence_embedding. Received: {of!r}")
    try:
        return LATER[kind](config, folder).eval()
    except (KeyError, TypeError, RuntimeError) as cause:
        raise CheckpointError(f"{folder}: its weights and its config.json do not fit ({cause})") from cause


class Normalize(nn.Module):
    """Scales vectors to length 1."""

    def forward(self, x_NM: Tensor) -> Tensor:
        return nn.functional.normalize(x_NM, dim=-1)


class Dense(nn.Module):
    """A linear layer and an activation; with `use_residual` the input is added to the result."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        sizes = config["in_features"], config["out_features"]
        self.linear = nn.Linear(*sizes, bias=config.get("bias", True))
        self.activation = _activation(config.get("activation_function", "torch.nn.Tanh"))
        self.residual: nn.Module | None = None
        if config.get("use_residual"):
            self.residual = nn.Identity() if sizes[0] == sizes[1] else nn.Linear(*sizes, bias=False)

    def forward(self, x_NM: Tensor) -> Tensor:
        y_NM = self.activation(self.linear(x_NM))
        return y_NM if self.residual is None else y_NM + self.residual(x_NM)


class LayerNorm(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config["dimension"])

    def forward(self, x_NM: Tensor) -> Tensor:
        return self.norm(x_NM)


def _activation(path: str) -> nn.Module:
    """Make the activation with a path such as "torch.nn.Tanh": only a class of torch, so that no other code runs."""
    found = getattr(nn, path.rpartition(".")[2], None) if path.startswith("torch.nn.") else None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise CheckpointError(f"activation_function: expected a module of torch.nn. Received: {path!r}")
    return found()


def _loaded(make: Callable[[dict[str, Any]], nn.Module]) -> Callable[[dict[str, Any], Path], nn.Module]:
    def load(config: dict[str, Any], folder: Path) -> nn.Module:
        module = make(config)
        module.load_state_dict(_tensors(folder))
        return module.float()

    return load


def _tensors(folder: Path) -> dict[str, Tensor]:
    old = folder / "pytorch_model.bin"
    if (folder / "model.safetensors").is_file() or not old.is_file():
        return load_tensors(folder)
    try:
        tensors: dict[str, Tensor] = torch.load(old, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as cause:
        raise CheckpointError(f"cannot read {old}, it is damaged ({cause}). Download it again") from cause
    return tensors


# The class of a module in sentence-transformers -> the function that makes it from its config and its folder.
LATER: dict[str, Callable[[dict[str, Any], Path], nn.Module]] = {
    "Dense": _loaded(Dense),
    "LayerNorm": _loaded(LayerNorm),
    "Normalize": lambda config, folder: Normalize(),
    "Dropout": lambda config, folder: nn.Identity(),
}
