"""Modules that take token ids: the doctor gives them embeddings in the place of ids, so that every probe works on them.

    forward(input_ids [B, N], ...)     becomes     forward(input_ids [B, N, M], ...)

What the module's own nn.Embedding gives for the ids is replaced by what was passed. Everything else runs as it is. Ids
of one token [B], or of rows of tokens [B, R, N], become embeddings likewise.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import re
from typing import Any

import torch
from torch import Tensor, nn

from headwise.capture.vocabulary import vocabulary_size
from headwise.scope import within

WIDTH = "_width_of_the_embeddings_for_ids"  # attribute of a class that takes embeddings in the place of ids

_padding: contextvars.ContextVar[tuple[int, slice] | None] = contextvars.ContextVar("_padding", default=None)


def padded(pad: int, place: slice) -> contextlib.AbstractContextManager[None]:
    """Inside this context the ids of the first example are `pad` in this place, where embeddings stand for ids."""
    return within(_padding, (pad, place))


def on_embeddings(module: nn.Module) -> nn.Module | None:
    """The module itself, taking embeddings from now on; None if it has no nn.Embedding."""
    table_widths = {table.embedding_dim for table in _tables(module)}
    if not table_widths:
        return None
    cls = type(module)
    signature = inspect.signature(cls.forward)

    def may_be_ids(name: str, value: Any) -> bool:
        if not isinstance(value, Tensor) or not value.is_floating_point() or given_as_mask(name):
            return False
        return value.ndim == 3 or (value.ndim in (2, 4) and value.shape[-1] in table_widths)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        names = [name for name, value in list(bound.arguments.items())[1:] if may_be_ids(name, value)]
        # All of them are ids, as a rule; if not, one is: forward(input_ids, encoder_hidden_states).
        choices = [names, *([name] for name in names if len(names) > 1)]
        # Ids are below the rows of the table of tokens, or of the smallest one where that is another.
        sizes = dict.fromkeys((vocabulary_size(self) or 0, min(x.num_embeddings for x in _tables(self))))
        tried = [(chosen, below) for chosen in choices for below in sizes]
        raised: Exception | None = None
        for chosen, below in sorted(tried, key=lambda x: x != taken.get(tuple(names))):
            try:
                out = on_ids(self, signature.bind(self, *args, **kwargs), chosen, below)
            except Exception as error:  # noqa: PERF203 (each choice is a trial)
                raised = raised or error
            else:
                taken.setdefault(tuple(names), (chosen, below))
                return out
        assert raised is not None
        raise raised

    # Of the arguments that may be ids: those that are, and what they are below.
    taken: dict[tuple[str, ...], tuple[list[str], int]] = {}

    def on_ids(self: nn.Module, bound: inspect.BoundArguments, names: list[str], below: int) -> Any:
        given: list[tuple[Tensor, Tensor]] = []  # ids, and the embeddings that they stand for
        for name in names:
            value = bound.arguments[name]
            ids = _ids(value, len(given), below)
            given.append((ids, value))
            bound.arguments[name] = ids

        def replace(part: nn.Embedding, inputs: tuple[Any, ...], out: Tensor) -> Tensor | None:
            for ids, embeddings in given:
                place = _place(inputs[0], ids) if inputs else None
                if place is None:
                    continue
                before, after = out[..., :place, :], out[..., place + ids.shape[-1] :, :]
                whole = torch.cat([before, embeddings, after], dim=-2) if out.ndim > 2 else embeddings
                if out.shape != whole.shape and type(part).forward is not nn.Embedding.forward:
                    return None  # positions, of which there are as many as ids
                if whole.shape != out.shape:
                    raise RuntimeError(f"expected embeddings {list(out.shape)}, got {list(embeddings.shape)}")
                part.weight.requires_grad_(False)  # it has no gradient now, which is not the module's mistake
                return whole.contiguous()  # as those of a table
            return None

        hooks = [table.register_forward_hook(replace) for table in _tables(self)]
        try:
            return cls.forward(*bound.args, **bound.kwargs)
        finally:
            for hook in hooks:
                hook.remove()

    # Name, source and documents stay those of its class.
    functools.update_wrapper(forward, cls.forward)
    forward.__signature__ = signature  # type: ignore[attr-defined]
    held = {"forward": forward, "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    module.__class__ = type(cls.__name__, (cls,), {**held, WIDTH: width_of(module)})
    return module


def takes_ids_by_name(module: nn.Module) -> bool:
    """Whether the first argument of forward is named like ids, and the module has a table for them."""
    first = next(iter(inspect.signature(module.forward).parameters), "")
    return bool(_tables(module)) and re.fullmatch(r"(\w+_)?ids?|idx|\w+_idx", first) is not None


def is_on_embeddings(module: nn.Module) -> bool:
    """Whether it takes embeddings in the place of ids."""
    return hasattr(module, WIDTH)


def with_embeddings(example: tuple[tuple[Any, ...], dict[str, Any]], width: int) -> tuple[Any, dict[str, Any]]:
    """An example with noise [B, N, M] in the place of its ids: the first argument that is [B, N] of integers."""
    args, kwargs = list(example[0]), dict(example[1])
    each: list[tuple[Any, Any]] = [*((args, at) for at in range(len(args))), *((kwargs, name) for name in kwargs)]
    for values, at in each:
        x = values[at]
        if isinstance(x, Tensor) and x.ndim == 2 and x.dtype == torch.int64:
            values[at] = torch.randn(*x.shape, width, generator=torch.Generator().manual_seed(0))
            break
    return tuple(args), kwargs


def width_of(module: nn.Module) -> int:
    """M, of the embedding with the most rows."""
    return max(_tables(module), key=lambda table: table.num_embeddings).embedding_dim


def _tables(module: nn.Module) -> list[nn.Embedding]:
    return [part for part in module.modules() if isinstance(part, nn.Embedding)]


def given_as_mask(name: str) -> bool:
    """Whether an argument is a mask, of which [B, N, N] may be one."""
    return "mask" in name or "bias" in name


def _place(longer: Tensor, ids: Tensor) -> int | None:
    """Where ids stand among those that a table is given: those of a class token or a candidate may stand beside them.

    None if they do not.
    """
    if longer.shape == ids.shape:
        return 0 if torch.equal(longer, ids) else None
    n = ids.shape[-1]
    if longer.ndim != ids.ndim or n < 2 or longer.shape[:-1] != ids.shape[:-1]:
        return None
    return next((i for i in range(longer.shape[-1] - n + 1) if torch.equal(longer[..., i : i + n], ids)), None)


def _ids(x: Tensor, number: int, below: int) -> Tensor:
    """Ids [B, N] of embeddings [B, N, M] that are no positions, other ones for each input and each row of tokens.

    They are the same for each example, and begin alike for each length: what a module reads from them (which of them
    are padding) is then no difference between two calls.
    """
    one = x[:, None] if x.ndim == 2 else x
    places = torch.arange(one.shape[-2], device=x.device)
    if x.ndim == 4:
        places = places + 2 * torch.arange(x.shape[1], device=x.device)[:, None]
    places = places.expand(one.shape[:-1]).reshape(x.shape[:-1])
    ids = (7 * places + 3 + number) % max(below, 2)
    if (padding := _padding.get()) is not None:
        pad, place = padding
        ids[0] = torch.where(ids[0] == pad, (ids[0] + 1) % max(below, 2), ids[0])  # no other token is padding
        ids[0, ..., place] = pad
    return ids
