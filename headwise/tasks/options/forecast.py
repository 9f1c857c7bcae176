"""What can be chosen for `headwise train forecast`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headwise.errors import ArgumentError
from headwise.tasks.options.train import TrainOptions, option


@dataclass(frozen=True, kw_only=True)
class ForecastOptions(TrainOptions):
    """Options of `headwise train forecast`; those of every task come from `TrainOptions`.

    Raises:
        ArgumentError, DtypeError: a value of another kind than its field, or out of its range.
    """

    target: tuple[str, ...] = option(
        (), "A column to forecast, once or more. Default: all with numbers.", metavar="COLUMN"
    )
    time: str | None = option(
        None, "The column of timestamps; none = count rows. Default: the first one that has them.", metavar="COLUMN"
    )
    series: str | None = option(None, "The column that says which series a row is of, of several.", metavar="COLUMN")
    context: int = option(336, "How many steps of the past are read.", least=1)
    horizon: int = option(96, "How many steps of the future are written.", least=1)
    model: Literal["patch", "causal"] = option("patch", "Writes the future at once, or patch by patch.")
    patch_length: int = option(24, "Steps in a patch; attention is between patches.", least=1)
    stride: int | None = option(None, "Steps from patch to patch. Default: a patch, so that none overlap.", least=1)
    dim: int = option(32, "Width of the model.", least=1)
    layers: int = option(2, "Layers of the model.", least=1)
    heads: int = option(4, "Attention heads of each layer.", least=1)
    centre: Literal["mean", "last"] = option("last", "What is taken from a context first, and given back at the end.")
    quantiles: tuple[str, ...] = option(
        ("0.1", "0.5", "0.9"), "To forecast beside the point: 0.1,0.5,0.9.", metavar="NUMBERS"
    )
    loss: Literal["mse", "mae"] = option("mse", "The point forecast is the mean (mse) or the median (mae).")
    season: int | None = option(None, "Steps in a season. Default: from the time step: hourly 24, daily 7 …", least=1)
    standardise: bool = option(True, "Losses and scores on values less their mean, over their standard deviation.")
    interpolate: bool = option(False, "Fill gaps on a straight line between their neighbours.")
    sort: bool = option(False, "Put the rows in the order of their timestamps.")

    epochs: int = option(8, "How often the data are read.", least=1)
    batch_tokens: int = option(65536, "Patches in a batch, of all columns.", least=1)
    batch_size: int | None = option(128, "Windows in a batch at most.", least=1)
    lr: float = option(1e-3, "The highest learning rate.", least=0)
    schedule: Literal["linear", "cosine", "inverse_sqrt", "constant"] = option("cosine", "How it falls after that.")
    dropout: float = option(0.1, "Dropout of the model, in training.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        apart = (part.strip() for text in self.quantiles for part in text.split(","))
        object.__setattr__(self, "quantiles", tuple(part for part in apart if part))
        for text in self.quantiles:
            if not _is_share(text):
                raise ArgumentError(f"quantiles: expected numbers between 0 and 1, received {text!r}")
        if len({float(text) for text in self.quantiles}) < len(self.quantiles):
            raise ArgumentError(f"quantiles: expected different ones, received {', '.join(self.quantiles)}")
        for name in ("patch_length", "season"):
            if (value := getattr(self, name)) is not None and value > self.context:
                raise ArgumentError(f"{name}: expected at most context={self.context}, received {value}")
        if self.model == "causal" and self.stride not in (None, self.patch_length):
            raise ArgumentError(
                f"stride: expected {self.patch_length}, a patch, with model=causal, which writes one after another; "
                f"received {self.stride}"
            )
        if self.dim % self.heads:
            raise ArgumentError(f"dim: expected a multiple of heads={self.heads}, received {self.dim}")


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False
