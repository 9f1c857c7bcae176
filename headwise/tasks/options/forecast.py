"""The options of `headwise train forecast`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headwise.errors import ArgumentError
from headwise.tasks.options.train import TrainOptions, check_heads, column, option

ISO = "ISO8601"
UNIX = {"unix": "s", "unix-ms": "ms"}  # formats of numbers -> the unit that they count since 1970


@dataclass(frozen=True, kw_only=True)
class ForecastOptions(TrainOptions):
    """The options of the task `forecast`; the options of every task come from `TrainOptions`.

    Raises:
        ArgumentError, DtypeError: a value has a wrong type or is out of range.
    """

    about = "Reads the past of a series and forecasts its future, with quantiles."
    data_example = "series.csv --target OT --horizon 96"

    target: tuple[str, ...] = column((), "A column to forecast; may be repeated. Default: all columns of numbers.")
    time: str | None = column(None, "The column of timestamps; none = count rows. Default: the first one found.")
    time_format: str | None = option(
        None, "With time: its format, such as %d/%m/%Y; unix or unix-ms = since 1970. Default: the one that fits."
    )
    series: str | None = column(None, "The column with the name of a row's series, if there are several.")
    context: int = option(336, "Number of past steps that the model reads.", least=1)
    horizon: int = option(96, "Number of future steps to forecast.", least=1)
    model: Literal["patch", "causal"] = option(
        "patch", "Forecast the future at once (patch) or patch by patch (causal)."
    )
    patch_length: int = option(24, "Steps per patch; attention is between patches.", least=1)
    stride: int | None = option(None, "Steps from patch to patch. Default: patch_length (no overlap).", least=1)
    dim: int = option(32, "Dimension of the model.", least=1)
    layers: int = option(2, "Number of layers.", least=1)
    heads: int = option(4, "Attention heads per layer.", least=1)
    centre: Literal["mean", "last"] = option(
        "last", "What is subtracted from a context and added back to the forecast."
    )
    quantiles: tuple[str, ...] = option(
        ("0.1", "0.5", "0.9"), "Quantiles to forecast, such as 0.1,0.5,0.9.", metavar="NUMBERS"
    )
    loss: Literal["mse", "mae", "huber"] = option(
        "huber", "The point forecast is the mean (mse) or the median (mae); huber is mse that outliers sway less."
    )
    season: int | None = option(None, "Steps per season. Default: by time step: hourly 24, daily 7 …", least=1)
    standardise: bool = option(True, "Compute losses and scores on standardised values.")
    interpolate: bool = option(False, "Fill gaps by linear interpolation.")
    sort: bool = option(False, "Sort the rows by timestamp.")

    average: float = option(
        0.99,
        "Validate and save an exponential mean of the weights with this decay; 0 = the weights themselves.",
        least=0,
        below=1,
    )
    epochs: int = option(8, "Number of epochs.", least=1)
    batch_tokens: int = option(65536, "Patches per batch, over all columns and devices.", least=1)
    batch_size: int | None = option(128, "Most windows in a batch.", least=1)
    lr: float = option(1e-3, "The highest learning rate.")
    schedule: Literal["linear", "cosine", "inverse_sqrt", "constant"] = option(
        "cosine", "How the learning rate falls after the warmup."
    )
    dropout: float = option(0.1, "Dropout in training.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        apart = (part.strip() for text in self.quantiles for part in text.split(","))
        object.__setattr__(self, "quantiles", tuple(part for part in apart if part))
        for text in self.quantiles:
            if not _is_share(text):
                raise ArgumentError(f"quantiles: expected numbers between 0 and 1. Received: quantiles={text!r}")
        if len({float(text) for text in self.quantiles}) < len(self.quantiles):
            raise ArgumentError(
                f"quantiles: expected different numbers. Received: quantiles={','.join(self.quantiles)}"
            )
        written = self.time_format or ISO
        if not ("%" in written or written in (ISO, *UNIX)) or (self.time_format and self.time in (None, "none")):
            raise ArgumentError(
                "time_format: expected a format such as %d/%m/%Y, unix or unix-ms, and the name of its column as time. "
                f"Received: time_format={written!r}, time={self.time!r}"
            )
        for name in ("patch_length", "season"):
            if (value := getattr(self, name)) is not None and value > self.context:
                raise ArgumentError(f"{name}: expected at most context={self.context}. Received: {name}={value}")
        if self.model == "causal" and self.stride not in (None, self.patch_length):
            raise ArgumentError(
                f"stride: expected patch_length={self.patch_length} with model=causal, which forecasts patch by patch. "
                f"Received: stride={self.stride}"
            )
        check_heads(self)


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False
