"""Forecasts by attention over patches of a series, with an encoder (PatchTST) or a decoder (as GPT writes tokens).

The encoder writes the whole future at once; the decoder writes it patch by patch.

Dimension letters: N series (each channel separately), S context (steps of the past), F future steps, P patch length,
K patches, M model, O outputs per step: the point forecast, then the quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from headwise import masks
from headwise.errors import ArgumentError, ShapeError
from headwise.nn import Cache, Encoder, MultiHeadAttention, options, positions
from headwise.nn.dropout import Dropout
from headwise.records import Seen

Centre = Literal["mean", "last"]
MIN_VARIANCE = 1e-5  # added to the variance of a context, because a constant context has variance 0


@dataclass(frozen=True)
class PatchForecasterConfig:
    """The sizes and options of a forecaster.

    Args:
        context: S, the number of steps of the past that are read.
        horizon: F, the number of steps of the future that are written.
        patch_length: P, the number of steps in a patch. Each patch is a token.
        stride: the number of steps from the start of a patch to the start of the next. Below P, patches overlap.
        dim, num_layers, num_heads, ffn_dim, dropout: of the encoder (or decoder).
        num_quantiles: the number of quantiles beside the point forecast.
        centre: what is subtracted from a context, and added to its forecast: its mean, or its last value.
        linear: for a `PatchForecaster`: whether a linear map of the context forecasts too; the point forecast is then a
            weighted mean of both forecasts.

    Raises:
        ArgumentError: a size below 1, a context shorter than a patch, a dim that is not a multiple of num_heads.
    """

    context: int
    horizon: int
    patch_length: int = 16
    stride: int = 8
    dim: int = 64
    num_layers: int = 2
    num_heads: int = 4
    ffn_dim: int = 128
    dropout: float = 0.2
    num_quantiles: int = 0
    centre: Centre = "mean"
    linear: bool = False

    def __post_init__(self) -> None:
        for name in ("horizon", "patch_length", "stride", "dim", "num_layers", "num_heads", "ffn_dim"):
            options.whole(name, getattr(self, name))
        options.whole("context", self.context, least=self.patch_length)
        options.whole("num_quantiles", self.num_quantiles, least=0)
        options.divisible("dim", self.dim, "num_heads", self.num_heads)
        options.probability("dropout", self.dropout)
        options.check_known("centre", self.centre, ("mean", "last"))

    @property
    def num_patches(self) -> int:
        """K, the number of patches: as many as fit into the context; the last patch ends at its end."""
        return (self.context - self.patch_length) // self.stride + 1

    @property
    def spans(self) -> list[tuple[int, int]]:
        """For each patch: (its first step in the context, the step after its last step)."""
        first = self.context - self.patch_length - (self.num_patches - 1) * self.stride
        starts = range(first, self.context, self.stride)
        return [(start, start + self.patch_length) for start in starts[: self.num_patches]]


class PatchForecaster(nn.Module):
    """Patches of the past attend to one another, and a linear map of all their outputs writes the whole future.

    Nie et al. 2023 (PatchTST, arXiv:2211.14730), section 3.1: each channel of a series is read separately, by the same
    weights; a context is normalised, and its forecast is scaled back (Kim et al. 2022, equations 1, 2).
    A linear map of the context itself is added (Das et al. 2023, TiDE, arXiv:2304.08424, section 4): attention need not
    learn what a weighted sum of the past can express. With `config.linear` a second such map forecasts separately
    (Zeng et al. 2023, DLinear, arXiv:2205.13504). The point forecast is then the mean of both, in which the linear
    forecast has the weight `share`; the quantiles are only those of the forecast from patches.

    >>> model = PatchForecaster(PatchForecasterConfig(context=336, horizon=96))
    >>> forecast_NFO = model(torch.randn(7, 336))

    Its submodules are `embed`, `position`, `encoder`, `head`, `direct` and, with `config.linear`, `linear`.
    """

    def __init__(self, config: PatchForecasterConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Linear(config.patch_length, config.dim)
        self.position = positions.Learned(config.num_patches, config.dim)
        self.encoder = Encoder(
            config.dim,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            ffn_dim=config.ffn_dim,
            dropout=config.dropout,
            attention_dropout=0.0,  # with it weights go to memory, which takes longer than all the rest
        )
        self.dropout = Dropout(config.dropout)
        outputs = config.horizon * (1 + config.num_quantiles)
        self.head = nn.Linear(config.num_patches * config.dim, outputs)
        self.direct = nn.Linear(config.context, outputs, bias=False)
        nn.init.zeros_(self.head.weight)  # the first forecast is the mean of the context, as for DLinear
        nn.init.constant_(self.direct.weight, 1 / config.context)
        self.linear = nn.Linear(config.context, config.horizon) if config.linear else None
        if self.linear is not None:
            nn.init.constant_(self.linear.weight, 1 / config.context)
            nn.init.zeros_(self.linear.bias)
            self.share: Tensor
            self.register_buffer("share", torch.tensor(0.5))

    def forward(
        self, context_NS: Tensor, future_NF: Tensor | None = None, *, record: bool = False
    ) -> Tensor | tuple[Tensor, Seen]:
        """The forecast, in the units of the context.

        Args:
            context_NS: [N, S], N channels of any series, without NaN.
            future_NF: not read. The argument exists so that both forecasters have the same arguments.
            record: also return the records of the attention between patches.

        Returns:
            [N, F, O]: at each step the point forecast, then the quantiles; with `record=True` (forecast, Seen).

        Raises:
            ShapeError: a context of another length.
        """
        (y_NFO, *others), seen = self.members(context_NS, record=record)
        for linear_NF1 in others:
            point_NF1 = torch.lerp(y_NFO[..., :1], linear_NF1, self.share)
            y_NFO = torch.cat([point_NF1, y_NFO[..., 1:]], dim=-1)
        return y_NFO if seen is None else (y_NFO, seen)

    def members(self, context_NS: Tensor, *, record: bool = False) -> tuple[list[Tensor], Seen | None]:
        """The forecasts whose mean `forward` returns: [N, F, O] from patches; with `config.linear` also [N, F, 1].

        Train each forecast with its own loss: one loss of the mean would make them one model.
        """
        _check("context", context_NS, self.config.context)
        scale = Scale.of(context_NS, self.config.centre)
        given_NS = scale.normalise(context_NS)
        x_NKM = self.embed(_patches(given_NS, self.config)) + self.position.weight
        found = self.encoder(self.dropout(x_NKM), record=record)
        x_NKM, seen = found if record else (found, None)
        written = [self.head(self.dropout(x_NKM.flatten(1))) + self.direct(given_NS)]
        if self.linear is not None:
            written.append(self.linear(given_NS))
        return [scale.restore(y.unflatten(1, (self.config.horizon, -1))) for y in written], seen


class CausalPatchForecaster(nn.Module):
    """A decoder that reads patches, writes the next patch and reads it, until the horizon is reached.

    It works as GPT does; for series, Das et al. 2024 (TimesFM, arXiv:2310.10688), section 4. In training it reads the
    true patches of the future. When it forecasts, it reads its own point forecasts: so the quantiles of a patch assume
    that all earlier patches are as forecast.

    >>> model = CausalPatchForecaster(PatchForecasterConfig(context=336, horizon=96, patch_length=24, stride=24))
    >>> forecast_NFO = model(torch.randn(7, 336))

    Its submodules are `embed`, `decoder` (an `Encoder` under a causal mask) and `head`.

    Raises:
        ArgumentError: patches that overlap or leave out steps; an odd head width, which rotary positions cannot use.
    """

    def __init__(self, config: PatchForecasterConfig) -> None:
        super().__init__()
        if config.stride != config.patch_length:
            raise ArgumentError(
                f"stride: expected patch_length={config.patch_length}, so that the next patch begins where one ends. "
                f"Received: stride={config.stride}"
            )
        self.config = config
        self.embed = nn.Linear(config.patch_length, config.dim)
        width = config.dim // config.num_heads
        self.decoder = Encoder(
            config.dim,
            num_layers=config.num_layers,
            attention=lambda: MultiHeadAttention(config.dim, config.num_heads, positions=positions.Rope(width)),
            ffn_dim=config.ffn_dim,
            dropout=config.dropout,
        )
        self.dropout = Dropout(config.dropout)
        self.head = nn.Linear(config.dim, config.patch_length * (1 + config.num_quantiles))

    def forward(
        self, context_NS: Tensor, future_NF: Tensor | None = None, *, record: bool = False, cached: bool = True
    ) -> Tensor | tuple[Tensor, Seen]:
        """The forecast, in the units of the context.

        Args:
            context_NS: [N, S], N channels of any series, without NaN.
            future_NF: for training: [N, F], the true future. Its patches are read after the context, and each output is
                the forecast of the next patch. None = the forecaster reads its own output.
            record: also return the records of the attention between patches; their rows are all patches that were read.
            cached: whether a cache holds the keys and values of earlier patches from step to step. The forecast is the
                same without it, but takes longer.

        Returns:
            [N, F, O]: at each step the point forecast, then the quantiles; with `record=True` (forecast, Seen).

        Raises:
            ShapeError: a context or a future of another length.
        """
        config = self.config
        _check("context", context_NS, config.context)
        scale = Scale.of(context_NS, config.centre)
        read_NKP = _patches(scale.normalise(context_NS), config)
        count = -(-config.horizon // config.patch_length)
        if future_NF is None:
            y_NFO = self._generate(read_NKP, count, cached)
            if not record:
                return scale.restore(y_NFO[:, : config.horizon])
            known_NF = y_NFO[..., 0]
        else:
            _check("future", future_NF, config.horizon)
            known_NF = scale.normalise(future_NF)
        # Read all patches again in one pass, so that one record has all rows.
        known_NKP = known_NF[:, : (count - 1) * config.patch_length].unflatten(1, (-1, config.patch_length))
        found = self._decode(torch.cat([read_NKP, known_NKP], dim=1), record=record)
        x_NKM, seen = found if record else (found, None)
        y_NFO = scale.restore(self._outputs(x_NKM[:, -count:])[:, : config.horizon])
        return y_NFO if seen is None else (y_NFO, seen)

    def _generate(self, read_NKP: Tensor, count: int, cached: bool) -> Tensor:
        """Forecast `count` patches, [N, count · P, O] normalised: each from the context and earlier point forecasts."""
        cache = Cache() if cached else None
        written: list[Tensor] = []
        while True:
            written.append(self._outputs(self._decode(read_NKP, cache)[:, -1:]))
            if len(written) == count:
                return torch.cat(written, dim=1)
            point_NKP = written[-1][..., 0].unsqueeze(1)
            read_NKP = point_NKP if cached else torch.cat([read_NKP, point_NKP], dim=1)

    def _decode(self, patches_NKP: Tensor, cache: Cache | None = None, *, record: bool = False) -> Any:
        return self.decoder(self.dropout(self.embed(patches_NKP)), mask=masks.causal(), cache=cache, record=record)

    def _outputs(self, x_NKM: Tensor) -> Tensor:
        """Compute the outputs [N, K · P, O] of the head: at each patch, the forecast of the patch that follows it."""
        return self.head(self.dropout(x_NKM)).unflatten(2, (self.config.patch_length, -1)).flatten(1, 2)


class Scale(NamedTuple):
    """The normalisation of contexts, which is undone for the forecasts. Kim et al. 2022, section 3."""

    centre: Tensor  # [N, 1], subtracted from the context
    spread: Tensor  # [N, 1], divides the context

    @classmethod
    def of(cls, context_NS: Tensor, centre: Centre) -> Scale:
        """Compute the scale of contexts [N, S]: each mean or last value (`centre`), and each standard deviation."""
        variance, mean = torch.var_mean(context_NS, dim=1, correction=0, keepdim=True)
        return cls(mean if centre == "mean" else context_NS[:, -1:], (variance + MIN_VARIANCE).sqrt())

    def normalise(self, x_NS: Tensor) -> Tensor:
        """Convert [N, S] from the units of the context to normalised units, which the model reads."""
        return (x_NS - self.centre) / self.spread

    def restore(self, y_NFO: Tensor) -> Tensor:
        """Convert [N, F, O] from normalised units, as the model computes it, to the units of the context."""
        return y_NFO * self.spread[..., None] + self.centre[..., None]


def _patches(x_NS: Tensor, config: PatchForecasterConfig) -> Tensor:
    """Cut series [N, S] into patches [N, K, P]; the last patch ends at the end of the series."""
    first, _ = config.spans[0]
    return x_NS[:, first:].unfold(1, config.patch_length, config.stride)


def _check(name: str, series: Tensor, length: int) -> None:
    if series.ndim != 2 or series.shape[1] != length:
        raise ShapeError(f"{name}: expected [N, {length}]. Received: {name}={list(series.shape)}")
