"""A module's behaviour on plain inputs, without a mask: its output in float64, and what depends on what."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from headwise.doctor.calling.copying import at_rest
from headwise.doctor.calling.interface import Inputs, Interface
from headwise.doctor.fitting.rope_tables import rope_tables
from headwise.doctor.reading.marks import tensors_in
from headwise.doctor.source import source_of

LENGTH = 7  # of the inputs: unlikely to equal a width or a scale


@dataclasses.dataclass(frozen=True, eq=False)
class Observed:
    """One call of a module, and what other inputs changed in its output."""

    interface: Interface  # of the copy that was called
    given: Inputs
    query: Tensor  # [B, N, M] float64; key and value are the query where the module takes one input
    key: Tensor
    value: Tensor
    output: Tensor  # [B, N, Mo] float64
    moves: bool  # the output depends on the order of the tokens
    mixes: bool  # examples depend on one another
    depends: Tensor  # bool [output, token]: whether an output depends on a token
    rotates: bool  # there are signs of RoPE
    slopes: bool  # there are signs of ALiBi
    tables: tuple[Tensor, ...]  # of RoPE's frequencies

    @property
    def looks_ahead(self) -> bool:
        """Whether an output depends on a later token."""
        return bool(self.depends.triu(1).any())

    @property
    def looks_around(self) -> bool:
        """Whether an output depends on another token."""
        return bool((self.depends & ~torch.eye(len(self.depends), dtype=torch.bool)).any())

    @property
    def pattern(self) -> Tensor | None:
        """Which keys each query attends to, unless that is all or the past; None if a token attends to nothing."""
        usual = bool(self.depends.all()) or torch.equal(self.depends, torch.ones_like(self.depends).tril())
        return None if usual or not bool(self.depends.any(-1).all()) else self.depends


def observe(interface: Interface, seed: int) -> Observed | None:
    """Call a copy of the module, in float64 if possible; None if it does not run, or gives no finite numbers."""
    for dtype in (torch.float64, torch.float32):
        module = at_rest(interface.module).to("cpu", dtype)
        _unsettle(module, seed)
        found = _observe(interface.on(module), dtype, seed)
        if found is not None:
            return found
    return None


def _observe(interface: Interface, dtype: torch.dtype, seed: int) -> Observed | None:
    length = interface.length or LENGTH
    tolerance = 1e-6 if dtype == torch.float64 else 1e-4  # a part of it may still be float32
    order = torch.arange(length).roll(2).flip(0)
    try:  # the user's code may raise anything in a dtype that it does not expect
        if length == 1 and interface.takes != "self":
            return None  # with one query there is one key here, whose weight is 1 whatever the scores are
        given = interface.inputs(3, length, length, seed=seed, dtype=dtype)
        output = run(interface, given)
        if output is None or output.shape[:2] != given.query.shape[:2] or not bool(output.isfinite().all()):
            return None
        again = run(interface, given)
        if again is None or not torch.equal(again, output):  # it is random
            return None
        moved = run(interface, given.each(lambda x: x[:, order]))
        other = run(interface, given.each(lambda x: torch.cat([x[:1], x[1:2] * -0.5 + 0.1, x[2:]])))
        each = run(interface, given.each(_each_token))
    except Exception:
        return None
    if moved is None or other is None or each is None:
        return None
    query = given.query.double()
    key = query if given.key is None else given.key.double()
    moves = relative_error(moved, output[:, order]) > tolerance
    mixes = relative_error(other[[0, 2]], output[[0, 2]]) > tolerance
    depends = ((each[1:] - each[:1]).abs().amax(-1) > tolerance * output.abs().max()).t()  # [output, token]
    if mixes:  # then the copies of the example affect one another
        depends = torch.ones_like(depends)
    module = interface.module
    tables = rope_tables(module, tensors_in(interface.way.arguments(given, {}))) if moves else ()
    return Observed(
        interface=interface,
        given=given,
        query=query,
        key=key,
        value=key if given.value is None else given.value.double(),
        output=output,
        moves=moves,
        mixes=mixes,
        depends=depends,
        rotates=moves and (bool(tables) or _speaks_of(module, ("cos", "rotary", "rotate", "rope", "freqs"))),
        slopes=moves and _speaks_of(module, ("alibi", "slope")),
        tables=tables,
    )


def run(
    interface: Interface, inputs: Inputs, *, allowed: Tensor | None = None, padding: Tensor | None = None
) -> Tensor | None:
    """The output in float64; if the module requires a mask, with one that allows everything."""
    try:  # on clones: some modules modify their inputs
        result = interface.run(inputs.each(torch.clone), allowed=allowed, padding=padding)
    except Exception:
        if allowed is not None or padding is not None or not interface.masks:
            raise
        (batch, queries), keys = inputs.query.shape[:2], inputs.key_length
        if any(mask.what == "cells" for mask in interface.masks):
            allowed = torch.ones(queries, keys, dtype=torch.bool)
        else:
            padding = torch.ones(batch, keys, dtype=torch.bool)
        result = interface.run(inputs.each(torch.clone), allowed=allowed, padding=padding)
    output = result.output
    is_usable = isinstance(output, Tensor) and output.is_floating_point() and output.ndim == 3
    return output.detach().double() if is_usable else None


def relative_error(output: Tensor, target: Tensor) -> float:
    """The largest difference, relative to the largest element; elements that are NaN in both agree."""
    if output.shape != target.shape:
        return math.inf
    difference = (output - target).abs()
    if bool(difference.isnan().any()):
        both = output.isnan() & target.isnan()
        difference = difference.masked_fill(both, 0.0)
        target = target.masked_fill(both, 0.0)
    largest = float(difference.max())
    return math.inf if math.isnan(largest) else largest / max(float(target.abs().max()), 1e-300)


def _each_token(x: Tensor) -> Tensor:
    """The first example unchanged, then once for each of its tokens, with that token changed: [1 + N, N, M]."""
    length = x.shape[1]
    copies = x[:1].repeat(length + 1, 1, 1)
    ids = torch.arange(length)
    copies[ids + 1, ids] = copies[ids + 1, ids] * -0.5 + 0.1
    return copies


def _unsettle(module: nn.Module, seed: int) -> None:
    """Change biases and norms from their initial 0 and 1, with which they have no visible effect."""
    dice = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=dice).to(parameter))


def _speaks_of(module: nn.Module, words: Iterable[str]) -> bool:
    """Whether the source of its classes contains one of the words; True if there is no source."""
    for kind in {type(part) for part in module.modules()}:
        if kind.__module__.startswith("torch."):
            continue
        source = source_of(kind)
        if source is None:
            return True
        text = source.text.lower()
        if any(word in text for word in words):
            return True
    return False
