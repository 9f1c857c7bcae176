"""Trial calls of a module, which may fail, and what is said if all did."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling import sizes
from headwise.doctor.calling.example import Example, Given
from headwise.doctor.calling.signature import Parameter, parameters, signature
from headwise.doctor.calling.spec import Spec
from headwise.doctor.calling.way import LAYOUTS, Fails, Inputs, OutputProblem, Result, Way, altered, describe, home
from headwise.doctor.finding import Where
from headwise.doctor.limits import LONG, out_of_memory
from headwise.doctor.lines import last_line
from headwise.doctor.probing.listen import NaNs
from headwise.errors import DoctorError, shortened
from headwise.language import Sentence

QUERIES, KEYS = 5, 7  # lengths of a trial: all sizes differ, so that none can be confused with another
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_EXACT = 1e-6  # a smaller relative change of the output counts as none
_NOT_FINITE = "every number of the output is NaN or infinite"


@contextlib.contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Keep the random state, disable gradients, and hide warnings."""
    devices = sorted(
        {p.device.index for p in module.parameters() if p.device.type == "cuda" and p.device.index is not None}
    )
    state = random.getstate()
    with torch.random.fork_rng(devices), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            random.setstate(state)


def _without_frames(error: Exception) -> Exception:
    """The error, and those before it, without what would keep tensors: the frames, and the object of a missing
    attribute.
    """
    inner: BaseException | None = error
    while inner is not None:
        inner.__traceback__ = None
        if isinstance(inner, AttributeError):
            inner.obj = None
        inner = inner.__cause__ or inner.__context__
    return error


def _is_as_wide(part: nn.RNNBase, given: tuple[Any, ...]) -> None:
    """Raises ValueError if a packed sequence has another width; torch 2 computes with it in float32."""
    data = given[0].data if given else None
    if isinstance(data, Tensor) and data.shape[-1] != part.input_size:
        raise ValueError(f"an RNN expects inputs of width {part.input_size}. Received: {data.shape[-1]}")


@dataclasses.dataclass(frozen=True)
class Failed:
    """A trial that failed."""

    how: str  # how it was called
    said: str
    reached: int = 0  # how many parts of the module had run
    error: Exception | None = None
    where: Where | None = None  # the line of the user's code that raised, or where NaN began
    plain: bool = False  # whether it was given its inputs, known by their names, and nothing else


class Trial:
    """Trial calls of a module, those that failed, and which layer reads which argument."""

    def __init__(self, module: nn.Module, spec: Spec, example: Example | None) -> None:
        self.module = module
        self.spec = spec
        self.example = example
        self.given = Given.by(example, parameters(module, spec))
        self.parameters = self.given.parameters
        self.calls = 0
        self.failed: list[Failed] = []
        self.readers: dict[str, nn.Module] = {}  # argument -> the first layer that was given it as it is
        self._reached = 0
        self.passed: dict[str, Any] = {}  # the arguments of the last call
        for part in module.modules():
            part.register_forward_hook(self._count)
            if isinstance(part, nn.Embedding) or (sizes.in_features(part) and not isinstance(part, _CONVOLUTIONS)):
                part.register_forward_pre_hook(self._read)
            if isinstance(part, nn.RNNBase):
                part.register_forward_pre_hook(_is_as_wide)
        self.dtype, self.device = home(module)

    def _count(self, *_: Any) -> None:
        self._reached += 1

    def _read(self, part: nn.Module, inputs: tuple[Any, ...]) -> None:
        for name, value in self.passed.items():
            if isinstance(value, Tensor) and inputs and inputs[0] is value:
                self.readers.setdefault(name, part)

    def inputs(self, way: Way, batch: int, queries: int, keys: int, seed: int = 0) -> Inputs:
        return way.inputs(batch, queries, keys, seed=seed, dtype=self.dtype, device=self.device)

    def run(self, way: Way, inputs: Inputs, given: Mapping[str, Any] | None = None) -> Result:
        """One call, with the same random numbers each time. Raises what the module raises."""
        self.calls += 1
        torch.default_generator.manual_seed(0)  # torch.manual_seed records a stack for every absent device
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(0)
        args, kwargs = way.arguments(inputs, given or {})
        self.passed = {**dict(zip(way.positional, args, strict=False)), **kwargs}
        return way.read(self.module(*args, **kwargs), inputs)

    def attempt(self, way: Way, batch: int, queries: int, keys: int) -> tuple[Way, Result] | str:
        """One call in this way: the way, with its lengths and its output's place, and the result; or the error."""
        self._reached, raised, began = 0, None, None
        try:
            inputs = self.inputs(way, batch, queries, keys)
            result = self.run(way, inputs)
        except OutputProblem as problem:
            said = f"forward returned {problem}, and nothing in it is an output for {batch} × {queries} inputs"
        except Exception as error:
            if out_of_memory(error) and self.example is None and max(queries, keys) <= LONG:
                raise  # the next call would need as much memory (with an example, it is the guess that is wrong)
            said, raised = f"{type(error).__name__}: {str(error).strip() or 'no message'}", error
        else:
            at = way.sizes(inputs)
            path = way.find_output(result.raw, at) or ()
            if not bool(result.output.isfinite().any()):
                said, began = _NOT_FINITE, self._where_nan_begins(way, inputs)
            elif way.takes == "self" or self.answers(result.output, queries):
                weights = way.find_weights(result.raw, at, path)
                return dataclasses.replace(way, output_at=path, weights_at=weights, lengths=(queries, keys)), result
            else:
                said = f"forward returned {describe(result.raw)}, which has no dimension of {queries} queries"
        where = began if raised is None else last_line(raised)
        kept = None if raised is None else _without_frames(raised)
        self.failed.append(
            Failed(self.describe(way, batch, queries, keys), said, self._reached, kept, where, self._is_plain(way))
        )
        return said

    def moved(self, way: Way, at: Any, *names: str) -> Tensor | None:
        """Which outputs [B, Q] change where these inputs, or all of them, have other numbers in this place; None if a
        call fails, so that nothing is known.
        """
        inputs = self.inputs(way, *self.sizes(way))
        changed = {name: altered(x, at) for name, x in inputs.tensors().items() if not names or name in names}
        try:
            before, after = (self.run(way, x).output for x in (inputs, dataclasses.replace(inputs, **changed)))
        except Exception:
            return None
        return ~((after - before).abs().amax(-1) <= _EXACT * before.abs().nan_to_num(0.0).max())

    def answers(self, out: Tensor, queries: int) -> bool:
        """Whether it has a row for each query, or each but one: the first may only start a decoding."""
        return out.shape[1] in (queries, queries - 1)

    def _is_plain(self, way: Way) -> bool:
        """Whether the arguments are those inputs that their names say, and nothing else."""
        inputs = {p.name for p in self.parameters if p.role in ("query", "key", "value", "memory")}
        return not way.extras and {name for _, name in way.slots} <= inputs

    def _where_nan_begins(self, way: Way, inputs: Inputs) -> Where | None:
        """The line of the first operation that makes NaN of numbers."""
        with NaNs() as heard, contextlib.suppress(Exception):
            self.run(way, inputs)
        return heard.began

    def describe(self, way: Way, batch: int, queries: int, keys: int) -> str:
        q, k, v = way.widths
        key = [batch, keys, k]
        shape = {"query": [batch, queries, q], "key": key, "memory": key, "value": [batch, keys, v]}
        how = "" if way.layout == "BNM" else f" as {LAYOUTS[way.layout]}"
        return f"forward({', '.join(f'{name}={shape[role]}' for role, name in way.slots)}{how})"

    def sizes(self, way: Way) -> tuple[int, int, int]:
        """Batch, queries and keys for which a way is known to work."""
        return (1 if way.alone else sizes.batch(self.module), *way.lengths)

    def by_position(self, inputs: set[str]) -> tuple[str, ...]:
        """What is passed by position: what has to be, or the first argument, as people do (hooks expect it there)."""
        found = tuple(p.name for p in self.parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY)
        first = next(iter(signature(self.module).parameters.values()), None)
        if not found and first is not None and first.kind is first.POSITIONAL_OR_KEYWORD and first.name in inputs:
            return (first.name,)
        return found


def failure(module: nn.Module, parameters: list[Parameter], failed: list[Failed]) -> DoctorError:
    """The error that says why no way to call a module was found."""
    name = type(module).__name__
    listed = ", ".join(p.name for p in parameters) or "*args"
    if not failed:
        told = Sentence("{call} could not be tried. State how it is called with spec=")
        return DoctorError(told.format(call=f"{name}.forward({listed})"))
    own = _own_mistake(module, failed)
    if own is not None:
        told = Sentence("every call of {call} raises {error}")
        told = told.format(call=f"{name}.forward({listed})", error=shortened(own.said, 400))
        return Fails("does-not-run", told, own.where)
    best = _most_plausible(failed)
    if best.plain and best.said == _NOT_FINITE:
        told = Sentence("{how} with ordinary inputs, N(0, 1): {what}").format(how=best.how, what=_NOT_FINITE)
        return Fails("output-shape", told, best.where)
    at = Sentence(" at {where}").format(where=best.where) if best.where is not None else ""
    # Rows of another number are no mistake: inputs may be put one behind the other. Other arguments may be wrong.
    nothing = best.plain and best.said.startswith("forward returned") and "which has no dimension of" not in best.said
    told = Sentence(
        "{call}: no way to call it was found in {count} trials. The call that got farthest, {how}, raised or "
        'returned{at}: {error}. State how it is called with spec=, such as Spec(takes="self", width=64), or pass '
        "example= of a real call"
    ).format(call=f"{name}.forward({listed})", count=len(failed), how=best.how, at=at, error=shortened(best.said, 400))
    return Fails("output-shape", told) if nothing else DoctorError(told)


def farthest(failed: list[Failed]) -> list[Failed]:
    """The calls that got farthest; of no call none."""
    most = max((x.reached for x in failed), default=0)
    return [x for x in failed if x.reached == most]


def _own_mistake(module: nn.Module, failed: list[Failed]) -> Failed | None:
    """The failure, if the calls that got farthest all fail at one line for a reason that no argument changes."""
    inside = [x for x in farthest(failed) if x.where is not None]
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
    guessed = re.compile(
        r"mat1 and mat2|normalized_shape|missing .* required|unexpected keyword|size of tensor|einsum|shape '\["
        r"|to have \d+ channels|invalid for input of size"
    )
    return next((x for x in farthest(failed) if not guessed.search(x.said)), farthest(failed)[0])
