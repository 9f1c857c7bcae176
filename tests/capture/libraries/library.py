"""Models of other libraries, small and with random weights, and what each is given."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# (a model, the arguments of its forward)
Case = tuple[nn.Module, dict[str, Any]]
Cases = dict[str, Callable[[], Case]]

# What is imported -> what `pip install` calls it. The file of the same name in this folder has its models.
LIBRARIES = {
    "keras": "keras",
    "timm": "timm",
    "torchvision": "torchvision",
    "x_transformers": "x-transformers",
}


def cases(library: str) -> Cases:
    """The models of a library by their names. ImportError if it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Cases = importlib.import_module(f"tests.capture.libraries.models.{library}").cases()
    return found


def given(model: nn.Module, *args: Any, **kwargs: Any) -> Case:
    """A model and its arguments, all by their names."""
    return model.eval(), dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)


class Calls(nn.Module):
    """A model that is called in another way than by its forward, or that takes no keywords."""

    def __init__(self, model: nn.Module, call: Callable[[Any], Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self) -> Any:
        return self.call(self.model)


def called(model: nn.Module, *args: Any, **kwargs: Any) -> Case:
    """The same, for a model whose forward takes anything."""
    return Calls(model, lambda m: m(*args, **kwargs)).eval(), {}


def image(size: int = 64, channels: int = 3) -> torch.Tensor:
    """[1, channels, size, size]"""
    return torch.randn(1, channels, size, size)
