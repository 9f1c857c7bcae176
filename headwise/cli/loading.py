"""Loads the model with which a command reads texts: a model of any architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headwise.cli.layers import LayerRange
from headwise.language import counted, echo, said

if TYPE_CHECKING:
    from torch import nn

    from headwise.capture.pretrained import Pictured, Pretrained

DTYPES = ("auto", "float32", "bfloat16", "float16")


def load_model(model: str | None, *, generates: bool, dtype: str) -> Pretrained:
    """Load the model of --model, or MiniLM; without transformers, as headwise's own `Bert` if it is a BERT."""
    import torch

    from headwise.capture.pretrained import is_available, load_pretrained
    from headwise.models.checkpoint import default_model, located

    name = located(model) if model else str(default_model())
    as_dtype = None if dtype == "auto" else getattr(torch, dtype)
    if not is_available() and not generates and (bert := _load_bert(name, as_dtype or torch.float32)):
        return bert
    return load_pretrained(name, generates=generates, dtype=as_dtype)


def _load_bert(name: str, dtype: Any) -> Pretrained | None:
    """Load a checkpoint as headwise's own `Bert`, without transformers; None if its family is unknown."""
    from headwise.capture.pretrained import Pretrained
    from headwise.models.bert import Bert
    from headwise.models.checkpoint import read_config, resolve
    from headwise.models.families import family_of
    from headwise.text import Tokenizer

    folder = resolve(name)
    if family_of(read_config(folder)) is None:
        return None
    bert = Bert.from_pretrained(folder, dtype=dtype)
    return Pretrained(name, bert, Tokenizer.from_pretrained(folder).encode, bert.config.max_positions)


def make_only(model: nn.Module, ranges: Sequence[LayerRange] | None, patterns: Sequence[str]) -> list[int | str] | None:
    """Turn the options --layers and --only into a value for `watch(only=)`; None = everything."""
    if ranges is None and not patterns:
        return None
    most = sum(1 for _ in model.modules())  # an upper bound: a layer is a module
    numbers = {layer for first, last in ranges or () for layer in range(first, min(last, most) + 1)}
    return [*sorted(numbers), *patterns]


def tell_missing(pretrained: Pretrained | Pictured) -> None:
    """Print which weights the checkpoint lacks."""
    if missing := pretrained.missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        echo(
            said(
                "headwise: the checkpoint lacks {count}, initialised randomly: {shown}",
                count=counted(len(missing), "weight"),
                shown=shown,
            ),
            err=True,
        )
