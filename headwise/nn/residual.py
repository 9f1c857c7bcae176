"""The base class of transformer layers: branches that are added to their input (the last is a feed-forward network)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from headwise.nn import options
from headwise.nn.cache import Cache
from headwise.nn.drop_path import DropPath
from headwise.nn.dropout import Dropout
from headwise.nn.feed_forward import Activation, FeedForward
from headwise.nn.norm import NORMS


class LayerOptions(TypedDict, total=False):
    """The options that both encoder and decoder layers have. Stacks pass these options to their layers."""

    ffn_dim: int | None
    norm: Literal["layer", "rms"]
    norm_first: bool
    activation: Activation
    dropout: float
    attention_dropout: float | None
    ffn_dropout: float | None
    norm_eps: float
    bias: bool
    device: torch.device | str | None
    dtype: torch.dtype | None


class ResidualLayer(nn.Module):
    """A layer made of branches, each added to its input. A subclass makes its attention, then calls `_make_mlp`.

    `_make_mlp` sets `mlp`, `mlp_norm`, `dropout` and `drop_path`.
    """

    mlp: FeedForward
    mlp_norm: nn.Module
    dropout: nn.Module
    drop_path: nn.Module

    def __init__(self, dim: int, norm_first: bool) -> None:
        super().__init__()
        self.dim = options.whole("dim", dim)
        self.norm_first = norm_first

    def _make_mlp(
        self,
        ffn_dim: int | None,
        activation: Activation,
        norm: str,
        norm_eps: float,
        factory: dict[str, Any],
        *,
        dropout: float,
        ffn_dropout: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        within = dropout if ffn_dropout is None else ffn_dropout
        self.mlp = FeedForward(self.dim, ffn_dim, activation=activation, dropout=within, **factory)
        self.mlp_norm = make_norm(norm, self.dim, norm_eps, **factory)
        self.dropout = Dropout(dropout)
        self.drop_path = DropPath(options.probability("drop_path", drop_path))

    def _add(self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor], *, residual: bool = True) -> Tensor:
        """Return x plus the branch's output, with the norm before the branch or after the sum. residual=False: no x."""
        found = self.drop_path(self.dropout(branch(norm(x) if self.norm_first else x)))
        y = x + found if residual else found
        return y if self.norm_first else norm(y)

    @property
    def has_positions(self) -> bool:
        """Whether any attention of this layer has a position scheme."""
        return any(has_positions(part) for part in self.children())

    def reset_parameters(self) -> None:
        """Initialise all submodules again."""
        reset_parts(self.children())

    def extra_repr(self) -> str:
        """Return the options that the repr of the submodules does not show."""
        return f"{self.dim}, norm_first={self.norm_first}"


def has_positions(module: object) -> bool:
    """Return whether an attention module has a position scheme."""
    return getattr(module, "positions", None) is not None


def make_norm(
    norm: str, dim: int, eps: float, bias: bool, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.Module:
    """Make a norm of width `dim`: a LayerNorm for "layer", an RMSNorm for "rms"."""
    options.check_known("norm", norm, NORMS)
    with_bias = {"bias": bias} if norm == "layer" else {}
    return NORMS[norm](dim, eps=eps, device=device, dtype=dtype, **with_bias)


def reset_parts(parts: Iterable[nn.Module]) -> None:
    """Call `reset_parameters` of those modules that have this method."""
    for part in parts:
        reset = getattr(part, "reset_parameters", None)
        if reset is not None:
            reset()


def find_child(cache: Cache | None, name: str) -> Cache | None:
    """Return the cache of the submodule `name`, `cache.child(name)`; None if there is no cache."""
    return None if cache is None else cache.child(name)
