"""The options of multi-head attention that its PyTorch and its Keras module have in common, and their checks."""

from __future__ import annotations

from typing import Any, Literal

from headwise.errors import ArgumentError
from headwise.nn import options
from headwise.options import check_scale, check_softcap

PROJECTIONS = ("per_head", "shared")


class HeadSizes:
    """The checked sizes of the heads and options of their scores. A class calls `_take_sizes`, then `_take_scoring`."""

    is_unfused = False  # whether `unfuse` has split the projection `qkv` into three

    def _take_sizes(
        self,
        dim: int,
        num_heads: int,
        num_kv_heads: int | None,
        head_dim: int | None,
        value_head_dim: int | None,
        kdim: int | None,
        vdim: int | None,
        projection: Literal["per_head", "shared"],
    ) -> None:
        """Set the sizes as attributes, with their defaults. ArgumentError for sizes that do not fit each other."""
        self.dim = options.whole("dim", dim)
        self.num_heads = options.whole("num_heads", num_heads)
        self.num_kv_heads = options.whole("num_kv_heads", num_heads if num_kv_heads is None else num_kv_heads)
        options.divisible("num_heads", num_heads, "num_kv_heads", self.num_kv_heads)
        if head_dim is None:
            head_dim = options.divisible("dim", dim, "num_heads", num_heads)
        self.head_dim = options.whole("head_dim", head_dim)
        self.value_head_dim = options.whole("value_head_dim", head_dim if value_head_dim is None else value_head_dim)
        self.kdim = options.whole("kdim", dim if kdim is None else kdim)
        self.vdim = options.whole("vdim", self.kdim if vdim is None else vdim)
        options.check_known("projection", projection, PROJECTIONS)
        self.projection = projection
        if projection == "shared":
            self._check_shared()

    def _take_scoring(
        self, dropout: float, scale: float | None, softcap: float | None, positions: Any, kind: type[Any]
    ) -> None:
        """Set the options of the scores. ArgumentError for numbers or `positions` that are invalid or do not fit."""
        self.dropout = options.probability("dropout", dropout)
        check_scale(scale)
        check_softcap(softcap)
        self.scale, self.softcap = scale, softcap
        if positions is not None:
            if not isinstance(positions, kind):
                package = kind.__module__.rpartition(".")[0]
                raise ArgumentError(
                    f"positions: expected a scheme of {package}. Received: positions={type(positions).__name__}"
                )
            positions.check(self.num_heads, self.head_dim)
            if positions.uses_values and dropout:
                raise ArgumentError(
                    f"dropout: expected 0 with positions that add to the values. Received: dropout={dropout}"
                )
        self.positions = positions

    @property
    def is_fused(self) -> bool:
        """Whether queries, keys and values are projected by one matrix, `qkv`."""
        return self.projection == "shared" or (self.dim == self.kdim == self.vdim and not self.is_unfused)

    @property
    def projection_sizes(self) -> tuple[int, int, int]:
        """The output widths of the projections of queries, keys and values; with projection="shared", of one head."""
        if self.projection == "shared":
            return (self.head_dim,) * 3
        heads, kv_heads = self.num_heads, self.num_kv_heads
        return heads * self.head_dim, kv_heads * self.head_dim, kv_heads * self.value_head_dim

    def _check_shared(self) -> None:
        """Raise ArgumentError unless q, k and v all have D columns per head, because a shared projection is D × D."""
        wanted = {
            "num_kv_heads": (self.num_kv_heads, self.num_heads),
            "head_dim": (self.head_dim * self.num_heads, self.dim),
            "value_head_dim": (self.value_head_dim, self.head_dim),
            "kdim": (self.kdim, self.dim),
            "vdim": (self.vdim, self.dim),
        }
        for name, (received, expected) in wanted.items():
            if received != expected:
                raise ArgumentError(
                    f'{name}: projection="shared" projects a head\'s own D = M / H columns, the same for all, so it '
                    f"cannot be chosen, expected {name}={expected}. Received: {name}={received}"
                )
