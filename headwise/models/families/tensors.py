"""Maps the tensors of a checkpoint to the parameters of a model, one to one, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from headwise.errors import CheckpointError
from headwise.models.families.config import BertConfig
from headwise.models.families.family import Family


def check_sizes(family: Family, config: BertConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if the tensors have other sizes than the config says. Called before a model is built."""
    layers = {name[len(family.layer) :].split(".")[0] for name in tensors if name.startswith(family.layer)}
    sizes = {"num_layers": (config.num_layers, len(layers))}
    width = "dim" if config.embedding_dim is None else "embedding_dim"
    for ours, attributes in {
        "embeddings.word": ("vocab_size", width),
        "embeddings.position": ("max_positions", width),
        "embeddings.token_type": ("num_token_types", width),
        "mlp.up": ("ffn_dim", "dim"),
    }.items():
        if not any(ours in each.split() for each in family.tensors):
            continue
        begins = "layers.0." if ours.startswith("mlp") else ""
        ((together, names),) = family.places([f"{begins}{ours}.weight"])
        found = tensors.get(names[0])
        if found is None or found.ndim != 2:
            continue
        rows, columns = found.shape[0] // len(together), found.shape[1]
        rows -= config.first_position if ours == "embeddings.position" else 0
        sizes |= {name: (getattr(config, name), size) for name, size in zip(attributes, (rows, columns), strict=True)}
    for attribute, (said, size) in sizes.items():
        if said != size:
            raise CheckpointError(f"config.json: expected {attribute}={size}, as the tensors have. Received: {said}")


def match(family: Family, model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the model's parameters, by our names, taken from the tensors of a checkpoint.

    Raises:
        CheckpointError: a tensor that the model or the checkpoint lacks, or a tensor of another shape or kind.
    """
    own = dict(model.named_parameters())
    places = family.places(own)
    wanted = [name for _, theirs in places for name in theirs]
    if missing := [name for name in wanted if name not in tensors]:
        raise CheckpointError(f"the checkpoint lacks {_some(missing)} of the model that its config.json describes")
    if extra := sorted(tensors.keys() - set(wanted)):
        raise CheckpointError(f"the checkpoint has {_some(extra)}, which the model of its config.json does not have")
    found: dict[str, Tensor] = {}
    for ours, theirs in places:
        rows = [own[name].shape[0] for name in ours]
        shape = [sum(rows) // len(theirs), *own[ours[0]].shape[1:]]
        for name in theirs:
            if list(tensors[name].shape) != shape or not tensors[name].is_floating_point():
                raise CheckpointError(
                    f"{name}: config.json makes it {shape} of floating-point numbers, "
                    f"the checkpoint has {list(tensors[name].shape)} of {tensors[name].dtype}"
                )
        whole = tensors[theirs[0]] if len(theirs) == 1 else torch.cat([tensors[name] for name in theirs])
        parts = [whole] if len(ours) == 1 else [part.clone() for part in whole.split(rows)]
        found |= zip(ours, parts, strict=True)
    return found


def named(family: Family, parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Undo `match`: return our parameters, by their names in a checkpoint, on the CPU."""
    own = {name: parameter.detach().cpu() for name, parameter in parameters}
    found: dict[str, Tensor] = {}
    for ours, theirs in family.places(own):
        whole = torch.cat([own[name] for name in ours])
        found |= zip(theirs, (part.contiguous() for part in whole.chunk(len(theirs))), strict=True)
    return found


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{len(names)} tensors ({shown}, ...)"
