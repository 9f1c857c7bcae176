"""The training options of all tasks. Imports nothing heavy, so that `headwise train --help` is fast."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from headwise.errors import ArgumentError, DtypeError
from headwise.language import Sentence, join

COLUMN = "COLUMN"  # the metavar of an option that names a column


def option(
    default: Any,
    says: str,
    *,
    metavar: str | None = None,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Make a field of the options, with its default, its text in `--help` (`says`), and its limits.

    `least` and `most` are the lowest and the highest allowed value; `above` and `below` are limits that are not allowed
    themselves.

    With MISSING as default, the option is required. Limits hold for subclasses that only change the default.
    """
    limits = {"at least": least, "at most": most, "more than": above, "less than": below}
    return field(default=default, metadata={"help": says, "metavar": metavar, "limits": limits})


def column(default: str | Sequence[str] | None, says: str) -> Any:
    """Make an option that names a column, or several columns, of the data: see `Task.file_columns`."""
    return option(default, says, metavar=COLUMN)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of all tasks. The options of a task extend them and change defaults.

    Raises:
        ArgumentError, DtypeError: a value has a wrong type or is out of range.
    """

    about: ClassVar[str] = "A task of another package."  #: a description, for --help and for cards of exports
    data_example: ClassVar[str] = "data.csv"  #: an example of data after `headwise train NAME`

    validation: str | None = option(
        None, "A file with validation data, to select the best weights. Default: a share of the data."
    )
    validation_share: float = option(0.1, "The share of the data held out for validation.", least=0, below=1)
    encoding: str | None = option(
        None, "The encoding of the data, if they are text files, such as gbk. Default: UTF-8.", metavar="NAME"
    )
    epochs: int = option(10, "Number of epochs.", least=1)
    batch_tokens: int = option(4096, "Tokens per batch, including padding, over all devices.", least=1)
    batch_size: int | None = option(None, "Most examples in a batch.", least=1)
    lr: float = option(5e-4, "The highest learning rate.", above=0)
    warmup: float = option(0.06, "The share of steps in which the learning rate rises.", least=0, most=1)
    schedule: Literal["linear", "cosine", "inverse_sqrt", "constant"] = option(
        "linear", "How the learning rate falls after the warmup."
    )
    weight_decay: float = option(0.01, "Weight decay of AdamW, except for biases, norms and embeddings.", least=0)
    average: float = option(
        0.0,
        "Validate and save an exponential mean of the weights with this decay; 0 = the weights themselves.",
        least=0,
        below=1,
    )
    clip: float = option(1.0, "Clip gradients to this norm; 0 = never.", least=0)
    dropout: float = option(0.1, "Dropout in training.", least=0, below=1)
    patience: int = option(0, "Stop after this many epochs without improvement; 0 = never.", least=0)
    time_limit: float | None = option(None, "Stop after this many minutes.", metavar="MINUTES", least=0)
    keep_optimizer: bool = option(False, "Keep last.ckpt after the last epoch, so that --resume can train more epochs.")
    precision: Literal["32", "bf16-mixed", "16-mixed"] = option("32", "The precision of the computation.")
    compile: bool = option(False, "Compile the model with torch.compile.")
    accelerator: Literal["auto", "cpu", "gpu"] = option("auto", "The kind of device.")
    devices: int = option(1, "Devices per node.", least=1)
    nodes: int = option(1, "Machines.", least=1)
    strategy: Literal["auto", "ddp", "fsdp"] = option("auto", "How several devices share the model.")
    seed: int = option(0, "The seed of weights, order and dropout.", least=0)
    monitor_every: int = option(100, "Log statistics of the heads every this many steps; 0 = never.", least=0)

    @property
    def sequence_processes(self) -> int:
        """The number of processes that share each sequence; 1 = no sequence is divided among processes."""
        return 1

    @property
    def input_example(self) -> str:
        """An example of an input after `headwise predict RUN` and `headwise view RUN`; "" if it has to be a file."""
        return '"a text"'

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for each in fields(self):
            value = _checked(each.name, getattr(self, each.name), kinds[each.name])
            _check_limits(each.name, value, type(self))
            object.__setattr__(self, each.name, value)


def required(options: type[TrainOptions]) -> list[str]:
    """Return the names of the options without a default."""
    return [each.name for each in fields(options) if each.default is MISSING]


def make(options: type[TrainOptions], given: dict[str, Any]) -> TrainOptions:
    """Make the options of a task from names and values, for example from a YAML file.

    Raises:
        ArgumentError, DtypeError: an unknown name, a missing required option, or an invalid value.
    """
    known = [each.name for each in fields(options)]
    for name in given:
        if name not in known:
            raise ArgumentError("unknown option {name!r}. Expected one of: {known}", name=name, known=", ".join(known))
    if missing := [name for name in required(options) if given.get(name) is None]:
        raise ArgumentError("{missing}: this option is required, but was not given", missing=missing[0])
    return options(**given)


def check_heads(options: Any, *, even: bool = False) -> None:
    """Raise ArgumentError if `dim` is not divisible by `heads`; with `even` (rotary positions), by 2 · `heads`."""
    if options.dim % (options.heads * (1 + even)):
        raise ArgumentError(
            "{option}: expected {multiple} of heads={heads}. Received: dim={dim}",
            option="dim",
            multiple=Sentence("an even multiple" if even else "a multiple"),
            heads=options.heads,
            dim=options.dim,
        )


_WITHIN: dict[str, Callable[[float, float], bool]] = {
    "at least": operator.ge,
    "at most": operator.le,
    "more than": operator.gt,
    "less than": operator.lt,
}


def _check_limits(name: str, value: Any, options: type) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError(
            "{option}: expected a finite number. Received: {name}={value!r}", option=name, name=name, value=value
        )
    if not isinstance(value, int | float):
        return
    declared = [known[name] for kind in options.__mro__ if name in (known := getattr(kind, "__dataclass_fields__", {}))]
    for words, is_within in _WITHIN.items():
        limits = [limit for each in declared if (limit := each.metadata["limits"][words]) is not None]
        if limits and not is_within(value, limits[0]):
            raise ArgumentError(
                "{option}: expected {words} {limit:g}. Received: {name}={value!r}",
                option=name,
                name=name,
                words=Sentence(words),
                limit=limits[0],
                value=value,
            )


def _checked(name: str, value: Any, kind: Any) -> Any:
    """Convert a value to the type of its field: an integer is accepted for a float, a list for a tuple."""
    kinds = get_args(kind) if get_origin(kind) not in (None, Literal, tuple) else (kind,)
    if value is None and type(None) in kinds:
        return None
    for each in kinds:
        if get_origin(each) is Literal:
            if value in get_args(each):
                return value
            if type(value) in {type(choice) for choice in get_args(each)}:
                raise ArgumentError(
                    "{option}: expected one of {names}. Received: {name}={value!r}",
                    option=name,
                    name=name,
                    names=", ".join(map(str, get_args(each))),
                    value=value,
                )
        elif get_origin(each) is tuple:
            if isinstance(value, Sequence) and not isinstance(value, str):
                return tuple(_checked(name, one, get_args(each)[0]) for one in value)
        elif each is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif type(value) is each:
            return value
    names = ("None" if each is type(None) else getattr(each, "__name__", str(each)) for each in kinds)
    raise DtypeError(
        "{option}: expected {kinds}. Received: {name}={value!r} ({kind})",
        option=name,
        name=name,
        kinds=join(names, " or "),
        value=value,
        kind=type(value).__name__,
    )
