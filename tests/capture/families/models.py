"""Which families the installed transformers has, and a model of each with random weights."""

from __future__ import annotations

import importlib
import math
import random
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

from tests.capture.families.configs import Size, tiny
from tests.capture.families.overrides import OVERRIDES

MOST = 150_000_000  # parameters


class TooLargeError(Exception):
    """A model of more than MOST parameters."""


def families() -> list[str]:
    """Every model type that has a model of its own; the others are parts of these."""
    return [family for family in CONFIG_MAPPING_NAMES if class_names(family)]


def class_names(family: str) -> list[str]:
    """The classes of a family: the base model, else the first of its heads."""
    if "MODEL" in OVERRIDES.get(family, {}):
        return [OVERRIDES[family]["MODEL"]]
    mappings = sorted(
        name for name in vars(modeling_auto) if name.endswith("_MAPPING_NAMES") and name != "CONFIG_MAPPING_NAMES"
    )
    for mapping in ("MODEL_MAPPING_NAMES", *mappings):
        name = getattr(modeling_auto, mapping).get(family)
        if name is not None:
            return [name] if isinstance(name, str) else list(name)
    return []


def model_class(family: str) -> Any:
    """The class of a family's model."""
    (name, *_) = class_names(family)
    if hasattr(transformers, name):
        return getattr(transformers, name)
    module = model_type_to_module_name(family)
    return getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"), name)


def seed(number: int = 0) -> None:
    """The generators that models draw from."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def build(family: str, how: str, size: Size) -> Any:
    """A model of random weights whose attention does not look everywhere alike."""
    cls = model_class(family)
    config = tiny(family, size, how)
    with torch.device("meta"):
        count = sum(x.numel() for x in cls._from_config(config, attn_implementation=how).parameters())
    if count > MOST:
        raise TooLargeError(f"{count / 1e6:.0f} million parameters")
    seed()
    model = cls._from_config(tiny(family, size, how), attn_implementation=how).eval()
    randomise(model)
    return model


def randomise(model: nn.Module) -> None:
    """Weights that keep the size of what goes through them; what is 0 at the beginning becomes small."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if not x.requires_grad:  # sinusoids
                continue
            if not x.is_floating_point() or ("norm" in name.lower() and x.ndim < 2):
                continue
            if x.ndim >= 2 and "A_log" not in name:
                x.copy_(torch.randn(x.shape, generator=generator) / math.sqrt(max(1, x[0].numel())))
            elif not bool(x.any()):
                x.copy_(0.1 * torch.randn(x.shape, generator=generator))
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.weight.requires_grad:
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator))
