"""Makes a worksheet from a module and its arguments, compares it with the output of the module, and writes it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import WorksheetError
from headwise.language import said
from headwise.nn.positions import Alibi, Rope, Rope2D
from headwise.worksheet.builder import FITS, Builder
from headwise.worksheet.description import LONGEST_TITLE, Matrix, printable
from headwise.worksheet.given import Given, Inputs
from headwise.worksheet.kinds import KINDS
from headwise.worksheet.sheet import Worksheet, choose_writer

EXACT = 1e-9  # the largest allowed difference between worksheet and module, relative to the largest number
MOST_PARAMETERS = 5_000_000  # an embedding table may be large, because only the rows for the text are shown
IN_FLOAT32 = 1e-6  # used instead of EXACT if angles or slopes are float32; grows with the positions and the results


def make(
    module: nn.Module,
    inputs: Inputs,
    *,
    tokens: Sequence[str] | None = None,
    memory_tokens: Sequence[str] | None = None,
    title: str | None = None,
    **arguments: Any,
) -> Worksheet:
    """Make the worksheet (all steps) of one forward pass of a small module, in float64.

    >>> module = headwise.nn.MultiHeadAttention(4, 2)
    >>> sheet = headwise.worksheet.make(module, x, mask=masks.causal(), tokens=["I", "drink", "and"])

    Args:
        module: a `MultiHeadAttention`, `MultiHeadLatentAttention` or `LatentAttention`; an `EncoderLayer`,
            `DecoderLayer` or `CrossLayer` with such attention; or a `Bert`.
        inputs: the inputs of the module: one tensor, [S, M] or [1, S, M]; several tensors in the order of `forward`; or
            a dict by name.
        tokens: the names of the rows of the first input; default "token 1", "token 2" …
        memory_tokens: the names of the rows of the second input, if there is one.
        title: the title of the worksheet; default: from the class of the module.
        arguments: more arguments of `forward`: `mask=`, `real=`, `position_ids=`, `memory_mask=` …

    Raises:
        WorksheetError: an unsupported module or option, a module that is too large, numbers that are not finite.
        ShapeError, DtypeError, MaskError, ArgumentError: the errors of the module for invalid arguments.
    """
    kind = KINDS[find_type(module)]
    _check_eval(module)
    parameters = sum(each.numel() for each in module.parameters())
    if parameters > MOST_PARAMETERS:
        raise WorksheetError(f"the module is too large to follow. Received: {parameters:,} parameters. {FITS}")
    if any(each.is_meta for each in module.parameters()):
        raise WorksheetError(
            "the module is on the meta device and has no numbers to show. Load or initialise its parameters first"
        )
    module = copy.deepcopy(module).to("cpu", torch.float64).eval()
    for part in module.modules():
        if hasattr(part, "kernel"):
            vars(part)["kernel"] = "reference"  # the definition; the chosen kernel may not support float64
    given = Given(module, inputs, arguments, tokens, memory_tokens)
    b = Builder()
    with torch.no_grad():
        expected = module(**given.batched)[0]
        output = kind.build(b, module, given)
    _compare(module, b, output, expected)
    return b.finish(said(kind.title) if title is None else printable(title, LONGEST_TITLE), kind.about, output)


def write(
    module: nn.Module,
    inputs: Inputs,
    path: str | Path,
    *,
    tokens: Sequence[str] | None = None,
    memory_tokens: Sequence[str] | None = None,
    title: str | None = None,
    **arguments: Any,
) -> Worksheet:
    """Write the worksheet of one forward pass of a small module to a file: `make`, then `Worksheet.write`.

    >>> headwise.worksheet.write(module, x, "attention.xlsx", mask=masks.causal(), tokens=["I", "drink", "and"])

    Returns:
        The worksheet that was written.

    Raises:
        ArgumentError: the path does not end in .xlsx, .md or .html.
        WorksheetError: as for `make`, or XlsxWriter is missing.
        FileError: the file cannot be written.
    """
    choose_writer(Path(path))  # before any work
    sheet = make(module, inputs, tokens=tokens, memory_tokens=memory_tokens, title=title, **arguments)
    sheet.write(path)
    return sheet


def find_type(module: nn.Module) -> type[nn.Module]:
    """Return the supported class of a module; WorksheetError for others, and for subclasses with an own forward."""
    for kind in KINDS:
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return kind
    known = ", ".join(kind.__name__ for kind in KINDS)
    hint = ". Pass one of its layers, or their attention" if isinstance(module, nn.Module) else ""
    raise WorksheetError(f"a worksheet shows {known}. Received: {type(module).__name__}{hint}")


def _check_eval(module: nn.Module) -> None:
    """Raise WorksheetError if the module would apply dropout, because a worksheet must not be random."""
    for part in module.modules() if module.training else ():
        chances = [getattr(part, name, 0.0) for name in ("p", "dropout", "probability")]
        if any(isinstance(chance, float) and chance > 0 for chance in chances):
            raise WorksheetError(
                "the module is in train mode with dropout, but a worksheet must not be random. Call module.eval() first"
            )


def _compare(module: nn.Module, b: Builder, output: Matrix, expected: Tensor) -> None:
    """Raise WorksheetError if the output of the worksheet differs from `expected`, the output of the module."""
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
            f"the worksheet's output differs from the module's by up to {apart:.3g}; expected at most "
            f"{limit:.3g}. Check for hooks on the module, and for wrappers around its parts"
        )
