"""How to train: the options that every task has. Imports nothing heavy, so that `headwise train --help` is quick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from headwise.errors import ArgumentError, DtypeError


def option(default: Any, says: str, *, metavar: str | None = None, least: float | None = None) -> Any:
    """A field of the options: its default, what `--help` says of it, and the least number it may be.

    MISSING as default makes it one that must be given.
    """
    return field(default=default, metadata={"help": says, "metavar": metavar, "least": least})


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What a user may choose for every task; a task's own options add to them, and change defaults.

    Raises:
        ArgumentError, DtypeError: a value of another kind than its field, or out of its range.
    """

    validation: str | None = option(None, "A file to choose the best weights by. Default: a share of the data.")
    validation_share: float = option(0.1, "The share of the data that is held out for it.", least=0)
    epochs: int = option(10, "How often the data are read.", least=1)
    batch_tokens: int = option(4096, "Tokens in a batch, padding counted, of all devices together.", least=1)
    batch_size: int | None = option(None, "Examples in a batch at most.", least=1)
    lr: float = option(5e-4, "The highest learning rate.", least=0)
    warmup: float = option(0.06, "The share of all steps in which the learning rate rises.", least=0)
    schedule: Literal["linear", "cosine", "inverse_sqrt", "constant"] = option("linear", "How it falls after that.")
    weight_decay: float = option(0.01, "Of AdamW; not of biases, norms and embeddings.", least=0)
    clip: float = option(1.0, "The norm that gradients are cut to; 0 = never.", least=0)
    dropout: float = option(0.1, "Dropout of the model, in training.", least=0)
    patience: int = option(0, "Stop after so many epochs that were no better; 0 = never.", least=0)
    time_limit: float | None = option(None, "Stop after so many minutes.", metavar="MINUTES", least=0)
    precision: Literal["32", "bf16-mixed", "16-mixed"] = option("32", "What the model computes in.")
    compile: bool = option(False, "Compile the model with torch.compile.")
    accelerator: Literal["auto", "cpu", "gpu"] = option("auto", "What to train on.")
    devices: int = option(1, "Devices of each node.", least=1)
    nodes: int = option(1, "Machines.", least=1)
    strategy: Literal["auto", "ddp", "fsdp"] = option("auto", "How several devices share the work.")
    seed: int = option(0, "Of weights, order and dropout.", least=0)
    monitor_every: int = option(100, "Log what the heads do every so many steps; 0 = never.", least=0)

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for each in fields(self):
            value = _checked(each.name, getattr(self, each.name), kinds[each.name])
            least = each.metadata.get("least")
            if least is not None and value is not None and value < least:
                raise ArgumentError(f"{each.name}: expected at least {least}, received {value!r}")
            object.__setattr__(self, each.name, value)


def required(options: type[TrainOptions]) -> list[str]:
    """The options that have no default."""
    return [each.name for each in fields(options) if each.default is MISSING]


def make(options: type[TrainOptions], given: dict[str, Any]) -> TrainOptions:
    """The options of a task from names and values, such as a YAML file has them.

    Raises:
        ArgumentError, DtypeError: a name that there is none of, one that must be given and is not, a value that does
            not fit.
    """
    known = [each.name for each in fields(options)]
    for name in given:
        if name not in known:
            raise ArgumentError(f"there is no option {name!r}. The options are: {', '.join(known)}")
    if missing := [name for name in required(options) if given.get(name) is None]:
        raise ArgumentError(f"{missing[0]}: expected a value, received none")
    return options(**given)


def _checked(name: str, value: Any, kind: Any) -> Any:
    """The value as its field has it: a whole number passes for a float, a list for a tuple."""
    kinds = get_args(kind) if get_origin(kind) not in (None, Literal, tuple) else (kind,)
    if value is None and type(None) in kinds:
        return None
    for each in kinds:
        if get_origin(each) is Literal:
            if value in get_args(each):
                return value
            if type(value) in {type(choice) for choice in get_args(each)}:
                raise ArgumentError(
                    f"{name}: expected one of {', '.join(map(str, get_args(each)))}, received {value!r}"
                )
        elif get_origin(each) is tuple:
            if isinstance(value, Sequence) and not isinstance(value, str):
                return tuple(_checked(name, one, get_args(each)[0]) for one in value)
        elif each is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif type(value) is each:
            return value
    said = " or ".join("nothing" if each is type(None) else getattr(each, "__name__", str(each)) for each in kinds)
    raise DtypeError(f"{name}: expected {said}, received {type(value).__name__} {value!r}")
