"""The trials that failed, and what is said when all did."""

from __future__ import annotations

import dataclasses
import re

from torch import nn

from headwise.doctor.calling.signature import Parameter
from headwise.doctor.calling.way import NoOutput
from headwise.doctor.finding import Where
from headwise.errors import DoctorError, shortened

NOT_FINITE = "every number of the output is NaN or infinite"


class Raises(DoctorError):  # noqa: N818 (what it raises, in words)
    """Forward has a mistake that every call meets, such as a name that is not defined; `where` is its line."""

    def __init__(self, said: str, where: Where | None) -> None:
        super().__init__(said)
        self.where = where


@dataclasses.dataclass(frozen=True)
class Failed:
    """A trial that failed."""

    how: str  # how it was called
    said: str
    reached: int = 0  # how many parts of the module had run
    error: Exception | None = None
    where: Where | None = None  # the line of the user's code that raised, or where NaN began
    plain: bool = False  # whether it was given its inputs, known by their names, and nothing else


def failure(module: nn.Module, parameters: list[Parameter], failed: list[Failed]) -> DoctorError:
    """The error that says why no way to call a module was found."""
    name = type(module).__name__
    listed = ", ".join(p.name for p in parameters) or "*args"
    if not failed:
        return DoctorError(f"{name}.forward({listed}) could not be tried. State how it is called with spec=")
    own = _own_mistake(module, failed)
    if own is not None:
        return Raises(f"every call of {name}.forward({listed}) raises {shortened(own.said, 400)}", own.where)
    best = _most_plausible(failed)
    if best.plain and best.said == NOT_FINITE:
        return NoOutput(f"{best.how} with ordinary inputs, N(0, 1): {NOT_FINITE}", best.where)
    at = f" at {best.where}" if best.where is not None else ""
    # Rows of another number are no mistake: inputs may be put one behind the other.
    nothing = best.said.startswith("forward returned") and "which has no dimension of" not in best.said
    kind = NoOutput if nothing else DoctorError
    return kind(
        f"{name}.forward({listed}): no way to call it was found in {len(failed)} trials. The call that got "
        f"farthest, {best.how}, raised or returned{at}: {shortened(best.said, 400)}. State how it is called with "
        'spec=, such as Spec(takes="self", width=64), or pass example= of a real call'
    )


def _own_mistake(module: nn.Module, failed: list[Failed]) -> Failed | None:
    """The failure, if the calls that got farthest all fail at one line for a reason that no argument changes."""
    most = max(x.reached for x in failed)
    inside = [x for x in failed if x.where is not None and x.reached == most]
    classes = {type(part).__name__ for part in module.modules()}

    def is_own(x: Failed) -> bool:
        if isinstance(x.error, (NameError, ImportError)):
            return True
        found = re.match(r"'(\w+)' object has no attribute", str(x.error))
        return isinstance(x.error, AttributeError) and found is not None and found[1] in classes

    alike = len({(x.where, x.said) for x in inside}) == 1
    return inside[0] if alike and is_own(inside[0]) else None


def _most_plausible(failed: list[Failed]) -> Failed:
    """The failure to quote: of the calls that got farthest the first that is not merely about a guessed size."""
    most = max(x.reached for x in failed)
    farthest = [x for x in failed if x.reached == most]
    guessed = re.compile(
        r"mat1 and mat2|normalized_shape|missing .* required|unexpected keyword|size of tensor|einsum|shape '\["
        r"|to have \d+ channels|invalid for input of size"
    )
    return next((x for x in farthest if not guessed.search(x.said)), farthest[0])
