"""From a module and what it is called with to a worksheet, which is compared with what the module computes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import WorksheetError
from headwise.nn.positions import Alibi, Rope, Rope2D
from headwise.worksheet.builder import FITS, Builder
from headwise.worksheet.description import LONGEST_TITLE, Matrix, Worksheet, printable
from headwise.worksheet.given import Given, Inputs
from headwise.worksheet.kinds import ABOUT, KINDS

EXACT = 1e-9  # how far a worksheet may be from its module, relative to the largest number
MOST_PARAMETERS = 5_000_000  # a table of many words may be large: only the rows that a text needs are shown
IN_FLOAT32 = 1e-6  # with angles or slopes, which a module has in float32: for each radian, and for scores of 1


def make(
    module: nn.Module,
    inputs: Inputs,
    *,
    tokens: Sequence[str] | None = None,
    memory_tokens: Sequence[str] | None = None,
    title: str | None = None,
    **arguments: Any,
) -> Worksheet:
    """The steps of one forward pass of a small module, in float64.

    >>> module = headwise.nn.MultiHeadAttention(4, 2)
    >>> sheet = headwise.worksheet.make(module, x, mask=masks.causal(), tokens=["I", "drink", "and"])

    Args:
        module: `MultiHeadAttention`, `MultiHeadLatentAttention`, `LatentAttention`, an `EncoderLayer`, `DecoderLayer`
            or `CrossLayer` of these, or a `Bert`.
        inputs: what the module is called with: one tensor, [S, M] or [1, S, M], several in the order of `forward`, or a
            dict by name.
        tokens: what the rows of the first input are called; default "token 1", "token 2" …
        memory_tokens: what the rows of the second are called, where there is one.
        title: above it; default: what is computed.
        arguments: more of what `forward` takes: `mask=`, `real=`, `position_ids=`, `memory_mask=` …

    Raises:
        WorksheetError: a module or an option that cannot be shown, more than fits, numbers that are not finite.
        ShapeError, DtypeError, MaskError, ArgumentError: as of the module itself.
    """
    build = KINDS[type_of(module)]
    _check_eval(module)
    parameters = sum(each.numel() for each in module.parameters())
    if parameters > MOST_PARAMETERS:
        raise WorksheetError(f"a module of {parameters:,} parameters is too large to follow by eye. {FITS}")
    if any(each.is_meta for each in module.parameters()):
        raise WorksheetError("the module is on the meta device and has no numbers to show. Give it some first")
    module = copy.deepcopy(module).to("cpu", torch.float64).eval()
    for part in module.modules():
        if hasattr(part, "kernel"):
            vars(part)["kernel"] = "reference"  # the definition itself; what was chosen may not take float64
    given = Given(module, inputs, arguments, tokens, memory_tokens)
    b = Builder()
    with torch.no_grad():
        expected = module(**given.batched)[0]
        output = build(b, module, given)
    _compare(module, b, output, expected)
    usual, about = ABOUT[type_of(module)]
    return b.finish(usual if title is None else printable(title, LONGEST_TITLE), about, output)


def type_of(module: nn.Module) -> type[nn.Module]:
    """Which of those that can be shown a module is; a subclass that computes something of its own is none."""
    for kind in KINDS:
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return kind
    known = ", ".join(kind.__name__ for kind in KINDS)
    hint = "; give it one of its layers, or their attention" if isinstance(module, nn.Module) else ""
    raise WorksheetError(f"a worksheet shows {known}; received {type(module).__name__}{hint}")


def _check_eval(module: nn.Module) -> None:
    """WorksheetError where the module would drop something by chance."""
    for part in module.modules() if module.training else ():
        chances = [getattr(part, name, 0.0) for name in ("p", "dropout", "probability")]
        if any(isinstance(chance, float) and chance > 0 for chance in chances):
            raise WorksheetError("dropout: a worksheet leaves nothing to chance. Call module.eval() first")


def _compare(module: nn.Module, b: Builder, output: Matrix, expected: Tensor) -> None:
    """WorksheetError unless the worksheet comes to what the module computes: one that would be wrong is refused."""
    apart = float((torch.from_numpy(output.values) - expected).abs().max())
    limit = EXACT * max(1.0, float(expected.abs().max()))
    if any(isinstance(part, Rope | Rope2D | Alibi) for part in module.modules()):
        largest = {"positions": 1.0, "result": 1.0}
        for matrix in b.matrices.values():
            if matrix.kind in largest:
                size = float(np.abs(matrix.values[np.isfinite(matrix.values)]).max(initial=0.0))
                largest[matrix.kind] = max(largest[matrix.kind], size)
        limit *= IN_FLOAT32 / EXACT * largest["positions"] * largest["result"]
    if not apart <= limit:
        raise WorksheetError(
            f"the worksheet comes to other numbers than the module: they are up to {apart:.3g} apart, expected at most "
            f"{limit:.3g}. Is there a hook on the module, or something put around a part of it?"
        )
