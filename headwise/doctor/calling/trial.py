"""Find by trial how a module is called: which argument takes which input, its width and its layout."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling import forward_arguments as arguments
from headwise.doctor.calling import names, sizes, token_ids
from headwise.doctor.calling.forward_arguments import Maker
from headwise.doctor.calling.signature import Assignment, Parameter, assignments, parameters, signature
from headwise.doctor.calling.spec import Spec
from headwise.doctor.calling.way import (
    LAYOUTS,
    MAP,
    MAPS,
    Inputs,
    NoOutput,
    OutputProblem,
    Result,
    Way,
    describe,
    home,
    noise,
)
from headwise.doctor.finding import Where
from headwise.doctor.limits import LONG, last_line, out_of_memory
from headwise.errors import DoctorError, shortened


class Raises(DoctorError):  # noqa: N818 (what it raises, in words)
    """Forward has a mistake that every call meets, such as a name that is not defined; `where` is its line."""

    def __init__(self, said: str, where: Where | None) -> None:
        super().__init__(said)
        self.where = where


@dataclasses.dataclass(frozen=True)
class Failed:
    """A trial that failed."""

    how: str  # it was called
    said: str
    reached: int = 0  # how many parts of the module had run
    error: Exception | None = None
    where: Where | None = None  # the line of the user's code that raised


QUERIES, KEYS = 5, 7  # lengths of a trial: all sizes differ, so that none can be confused with another
_ATTEMPTS = 3000  # the maximum number of calls
_FITTED = 80  # calls for one assignment once readers are known
_LARGEST_SIDE = 32  # of a map
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


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


class Trial:
    """Trial calls of a module that may fail, and their errors."""

    def __init__(self, module: nn.Module, spec: Spec, example: tuple[tuple[Any, ...], dict[str, Any]] | None) -> None:
        self.module = module
        self.spec = spec
        self.parameters = parameters(module, spec)
        kinds = signature(module).parameters.values()
        self.variadic = any(p.kind is p.VAR_POSITIONAL for p in kinds)
        self.example = example
        others = [p for p in self.parameters if not self._may_be_input(p)]
        self.parameters = [dataclasses.replace(p, role="unknown") if p in others else p for p in self.parameters]
        self.calls = 0
        self.failed: list[Failed] = []
        self._reached = 0
        self._fitted = False  # whether an argument is first tried as what its reader takes
        self._guessed: dict[str, list[tuple[int, int, int]]] = {}
        self._passed: dict[str, Any] = {}  # the arguments of the last call
        self._readers: dict[str, nn.Module] = {}  # argument -> the first layer that was given it as it is
        for part in module.modules():
            part.register_forward_hook(self._count)
            if isinstance(part, nn.Embedding) or (sizes.in_features(part) and not isinstance(part, _CONVOLUTIONS)):
                part.register_forward_pre_hook(self._read)
        self.dtype, self.device = home(module)

    def _may_be_input(self, p: Parameter) -> bool:
        """Whether an argument named like an input is no other thing in the example: a dict of states, one number."""
        value = self._example().get(p.name)
        if p.role not in ("query", "key", "value", "memory") or value is None:
            return not (p.role == "memory" and p.required and p.name in self._example())
        return value.ndim > 1 if isinstance(value, Tensor) else isinstance(value, (tuple, list))

    def _count(self, *_: Any) -> None:
        self._reached += 1

    def _read(self, part: nn.Module, inputs: tuple[Any, ...]) -> None:
        for name, value in self._passed.items():
            if isinstance(value, Tensor) and inputs and inputs[0] is value:
                self._readers.setdefault(name, part)

    # ---- calls

    def inputs(self, way: Way, batch: int, queries: int, keys: int, seed: int = 0) -> Inputs:
        return way.inputs(batch, queries, keys, seed=seed, dtype=self.dtype, device=self.device)

    def run(self, way: Way, inputs: Inputs, given: Mapping[str, Any] | None = None) -> Result:
        """One call, with the same random numbers each time. Raises what the module raises."""
        self.calls += 1
        torch.default_generator.manual_seed(0)  # torch.manual_seed records a stack for every absent device
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(0)
        args, kwargs = way.arguments(inputs, given or {})
        self._passed = {**dict(zip(way.positional, args, strict=False)), **kwargs}
        return way.read(self.module(*args, **kwargs), inputs)

    def attempt(self, way: Way, batch: int, queries: int, keys: int) -> tuple[Way, Result] | str:
        inputs = self.inputs(way, batch, queries, keys)
        self._reached, raised = 0, None
        try:
            result = self.run(way, inputs)
        except OutputProblem as problem:
            said = f"forward returned {problem}, and nothing in it is an output for {batch} × {queries} inputs"
        except Exception as error:
            if out_of_memory(error) and self.example is None and max(queries, keys) <= LONG:
                raise  # the next call would need as much memory (with an example, it is the guess that is wrong)
            said, raised = f"{type(error).__name__}: {str(error).strip() or 'no message'}", error
        else:
            at = way.sizes(inputs)
            path = way.find_output(result.raw, at)
            if path is None:
                return "no output"
            if not bool(result.output.isfinite().any()):
                said = "every number of the output is NaN or infinite"
            elif result.output.shape[1] == queries or way.takes == "self":
                weights = way.find_weights(result.raw, at, path)
                return dataclasses.replace(way, output_at=path, weights_at=weights, lengths=(queries, keys)), result
            else:
                said = f"forward returned {describe(result.raw)}, which has no dimension of {queries} queries"
        where = None if raised is None else last_line(raised)
        kept = None if raised is None else raised.with_traceback(None)  # which would keep tensors
        self.failed.append(Failed(self.describe(way, batch, queries, keys), said, self._reached, kept, where))
        return said

    def describe(self, way: Way, batch: int, queries: int, keys: int) -> str:
        q, k, v = way.widths
        key = [batch, keys, k]
        shape = {"query": [batch, queries, q], "key": key, "memory": key, "value": [batch, keys, v]}
        how = "" if way.layout == "BNM" else f" as {LAYOUTS[way.layout]}"
        return f"forward({', '.join(f'{name}={shape[role]}' for role, name in way.slots)}{how})"

    def sizes(self, way: Way) -> tuple[int, int, int]:
        """Batch, queries and keys for which a way is known to work."""
        return (1 if way.alone else 3, *way.lengths)

    # ---- the search

    def search(self) -> Way:
        """The first way that works. Raises DoctorError if none does."""
        options = assignments(self.parameters, self.variadic, self.spec.takes)
        if not options:
            listed = ", ".join(p.name for p in self.parameters) or "no argument"
            raise DoctorError(
                f"{type(self.module).__name__}.forward takes {listed}, and none of them looks like an input. State it "
                'with spec=, such as Spec(roles={"name": "query"})'
            )
        options.sort(key=lambda o: not self._as_in_example(o))
        batch = 2 if sizes.heads(self.module) == 3 else 3
        whole = [o for o in options if not self._left_out(o)]
        partial = [o for o in options if self._left_out(o)]
        others = ["NBM", "NM", "BHND", "BMN", "BMHW", "BNHD"]
        plain = ["NBM", "BNM"] if self._says_sequence_first() else ["BNM"]
        if self._convolves():
            plain = ["BMN", "BMHW", *plain]
        elif self._example_rows() is not None:
            plain = ["B1NM", *plain]
        rows = ["BNM"] if self._example_rows() is None else ["B1NM", "BNM"]
        # A number of keys that differs from the number of queries comes first: it tells which argument is which.
        own, crossing = ([o for o in whole if (o.takes == "self") == alone] for alone in (True, False))
        sided = own if {"h", "w"} <= {names.SIDES.get(names.simple(p.name)) for p in self.parameters} else []
        ways = (
            (plain, whole, "differ"),
            (["BNM"], sided, "map"),
            *((["BM"], whole, "one"), (plain if "NBM" in plain else [], whole, "one"), (rows, whole, "alike")),
            (["BNM"], own, "stated"),
            *((others, whole, "any"), (["BMHW,BNM"], crossing, "any"), (rows, whole, "fixed")),
            *((rows, partial, "differ"), (rows, partial, "alike")),
            (MAPS, own, "map"),
        )
        of_ids = hasattr(self.module, token_ids.WIDTH)
        for layouts, several, lengths in ways:
            for layout, option, with_optional in itertools.product(layouts, several, (False, True)):
                if self.calls > _ATTEMPTS:
                    break
                found = self._try(option, layout, batch, with_optional, lengths)
                if found is not None and (not of_ids or self._of_each_example(found, batch)):
                    return found
        found = self._replay() or self._by_readers(whole, batch)
        if found is not None:
            return found
        raise self._failure()

    def _by_readers(self, options: list[Assignment], batch: int) -> Way | None:
        """A way in which other arguments are what the layers that read them take: ids of a table, or another width.

        Each argument that fits lets the next call get farther, to the layer that reads another one.
        """
        own_first = sorted(options, key=lambda o: o.takes != "self")
        known, self._fitted = -1, True
        while len(self._readers) > known:
            known = len(self._readers)
            for layout, option in itertools.product(("BNM", "B1NM"), own_first):
                others = {p.name for p in self.parameters if p.required} - {name for _, name in option.slots}
                if others & set(self._readers):
                    found = self._try(option, layout, batch, False, "alike" if option.takes != "self" else "differ")
                    if found is not None and self._of_each_example(found, batch):
                        return found
                    if len(self._readers) > known:
                        break
        return None

    def _of_each_example(self, way: Way, batch: int) -> bool:
        """Whether the output of an example is as wide in a larger batch: no argument is one for all examples."""
        if way.alone:
            return True
        try:
            shapes = {self.run(way, self.inputs(way, n, *way.lengths)).output.shape[1:] for n in (batch, batch + 1)}
        except Exception:
            return False
        return len(shapes) == 1

    def _replay(self) -> Way | None:
        """The call of the example, with the sizes of its batch and its lengths replaced; or as it was; or None."""
        given, x = self._example(), self._example_input()
        if x is None:
            return self._rows_as_given()
        named = {p.name: p for p in self.parameters}
        query = next(name for name, value in given.items() if value is x)
        inputs = {
            p.role: name
            for name, p in named.items()
            if name != query and p.role in ("key", "value", "memory") and _is_sequence(given.get(name))
        }
        slots: tuple[tuple[str, str], ...]
        if "key" in inputs and "value" in inputs:
            takes, slots = "qkv", (("query", query), ("key", inputs["key"]), ("value", inputs["value"]))
        elif inputs:
            takes, slots = "memory", (("query", query), ("memory", next(iter(inputs.values()))))
        else:
            takes, slots = "self", (("query", query),)
        way = self._as_given(takes, slots, x)
        if way is not None and takes != "self" and not self._attends_to(way):
            way = self._as_given("self", slots[:1], x)  # a residual, which is added token by token
        return way

    def _as_given(self, takes: str, slots: tuple[tuple[str, str], ...], x: Tensor) -> Way | None:
        """A way in which all that is no input is as in the example."""
        given = self._example()
        tensors = [given[name] for _, name in slots]
        (batch, queries, _), keys = x.shape, tensors[-1].shape[1]
        heads = sizes.heads(self.module) or 1
        shapes = arguments.Shapes(batch, queries, keys, heads)
        named = {p.name for p in self.parameters}
        rest = [name for name in given if name not in dict(slots).values() and name in named]
        extras = tuple((name, arguments.from_example(given[name], shapes)) for name in rest)
        first, second, third = (t.shape[-1] for t in (*tensors, *[tensors[-1]] * 2)[:3])
        by_position = self._by_position({name for _, name in slots})
        way = Way(takes, slots, by_position, False, "BNM", heads, (first, second, third), extras)
        own = takes == "self" or keys == queries
        for count, sizes_ in ((3, (QUERIES, QUERIES if own else KEYS)), (3, (queries, keys)), (batch, (queries, keys))):
            got = self.attempt(way, count, *sizes_)
            if not isinstance(got, str):
                return dataclasses.replace(got[0], layout="1NM") if count == 1 else got[0]
        return None

    def _rows_as_given(self) -> Way | None:
        """[length, width] with everything else as it was: the edges of a graph, for example, or where graphs begin."""
        given = self._example()
        rows = {
            p.name: x
            for p in self.parameters
            if p.role in ("query", "unknown") and isinstance(x := given.get(p.name), Tensor)
            if x.ndim == 2 and x.is_floating_point()
        }
        for name, x in rows.items():
            extras = tuple((other, arguments.constant(y)) for other, y in given.items() if other != name)
            by_position = self._by_position({name})
            width, heads = x.shape[-1], sizes.heads(self.module) or 1
            way = Way("self", (("query", name),), by_position, False, "NM", heads, (width,) * 3, extras)
            got = self.attempt(way, 1, len(x), len(x))
            if not isinstance(got, str):
                return got[0]
        return None

    def _attends_to(self, way: Way) -> bool:
        """Whether the first key reaches the outputs of other queries, or that cannot be asked."""
        inputs = self.inputs(way, *self.sizes(way))
        assert inputs.key is not None
        key = inputs.key.clone()
        key[:, 0] = noise(key.shape[-1], seed=5, dtype=key.dtype, device=key.device)
        try:
            before, after = (self.run(way, x).output for x in (inputs, dataclasses.replace(inputs, key=key)))
        except Exception:  # it runs with the example's number of examples alone
            return True
        return bool((after - before)[:, 1:].any())

    def _says_sequence_first(self) -> bool:
        if self.spec.batch_first is not None:
            return not self.spec.batch_first
        return any(getattr(part, "batch_first", None) is False for part in self.module.modules())

    def _convolves(self) -> bool:
        """Whether its projections are convolutions: then channels come before positions."""
        parts = list(self.module.modules())
        convolutions = any(isinstance(part, (nn.Conv1d, nn.Conv2d)) for part in parts)
        return convolutions and not any(isinstance(part, nn.Linear) for part in parts)

    def _as_in_example(self, option: Assignment) -> bool:
        """Whether it takes a memory, where the example passes one."""
        passed = any(p.role == "memory" and _is_sequence(self._example().get(p.name)) for p in self.parameters)
        return not passed or option.takes != "self"

    def _left_out(self, option: Assignment) -> bool:
        """Whether an argument that must be an input would get another value."""
        taken = {name for _, name in option.slots}
        inputs = ("query", "key", "value", "memory")
        return any(p.required and p.role in inputs and p.name not in taken for p in self.parameters)

    def _try(self, option: Assignment, layout: str, batch: int, with_optional: bool, which: str) -> Way | None:
        """One assignment in one layout, with all likely widths, lengths and values of other arguments."""
        taken = {name for _, name in option.slots} | set(self.spec.arguments)
        given = ("positions", "mask", "padding") if with_optional else ()
        wanted = {p.name for p in self.parameters if p.required or p.role in given or self._positions_given(p)}
        needed = [p for p in self.parameters if p.name in wanted - taken]
        if with_optional and all(p.required for p in needed):
            return None
        others = _combinations([self._makers(p) for p in needed])[:80]
        widths = self._widths(option.takes)[: None if layout in ("BNM", "B1NM") else 4]
        lengths = self.lengths(which, option.takes == "self")
        heads = sizes.heads(self.module) or 4
        fixed = tuple((name, arguments.constant(value)) for name, value in self.spec.arguments.items())
        hinted: set[tuple[int, int, int]] = set()
        second: Way | None = None
        every = itertools.product(range(len(lengths)), range(len(others)), range(len(widths)))
        order = sorted(every, key=lambda t: t[0] + t[1] + 2 * t[2])
        known = len(self._readers)
        for which_length, which_others, which_width in order[: _FITTED if self._fitted else 320]:
            if self._fitted and len(self._readers) > known:
                return second  # what was learned from this call serves the next ones
            extras = tuple((p.name, make) for p, make in zip(needed, others[which_others], strict=True))
            todo = [widths[which_width]]
            while todo:
                width = todo.pop()
                if layout in ("BHND", "BNHD") and width[0] % heads:
                    continue
                way = Way(option.takes, option.slots, self._positional(option), option.packed, layout, heads, width)
                way = dataclasses.replace(way, extras=(*extras, *fixed))
                got = self.attempt(way, 1 if layout == "NM" else batch, *lengths[which_length])
                if not isinstance(got, str) and layout in ("BHND", "BNHD") and self._is_a_map(way, batch):
                    continue
                if not isinstance(got, str) and layout == "NM" and self._apart(got[0]):
                    continue
                if not isinstance(got, str):
                    masked = any(p.role in ("mask", "padding") for p in needed)
                    if not masked or got[0].whole(got[1].raw):
                        return got[0]
                    second = second or got[0]  # a mask that does not fit may have been broadcast into the output
                    continue
                if self.spec.width is None:
                    todo += [w for w in _hints(got, width, batch, *lengths[which_length]) if w not in hinted]
                    hinted.update(todo)
        return second

    def _is_a_map(self, way: Way, batch: int) -> bool:
        """Whether what was taken for heads is the height of an image [B, H, W, M]: projected, and any height runs."""
        projects = any(isinstance(part, (nn.Linear, nn.Conv2d)) for part in self.module.modules())
        wider = dataclasses.replace(way, heads=way.heads * 2, widths=tuple(2 * w for w in way.widths))  # type: ignore[arg-type]
        return projects and not isinstance(self.attempt(wider, batch, QUERIES, QUERIES), str)

    def _apart(self, way: Way) -> bool:
        """Whether no row of [length, width] reaches the output of another: rows are examples then, and no tokens."""
        inputs = self.inputs(way, *self.sizes(way))
        x = inputs.query.clone()
        x[:, 0] = noise(x.shape[-1], seed=5, dtype=x.dtype, device=x.device)
        before, after = (self.run(way, given).output for given in (inputs, dataclasses.replace(inputs, query=x)))
        return way.takes == "self" and not bool((after - before)[:, 1:].any())

    def lengths(self, which: str, own: bool) -> list[tuple[int, int]]:
        """Numbers of queries and keys to try."""
        x = self._example_input()
        likely = [*([] if x is None else [x.shape[1]]), *sizes.lengths(self.module)[:5]]
        fixed = [(n, n) for n in dict.fromkeys(likely) if n != QUERIES]
        if own:
            maps = [(n, n) for n in self._maps()] if which == "map" else []
            stated = [(n, n) for n in sizes.stated_lengths(self.module)] if which == "stated" else []
            own_ = {"differ": [(QUERIES, QUERIES)], "any": [(QUERIES, QUERIES)], "fixed": fixed, "map": maps}
            own_["stated"] = stated
            return own_.get(which, [])
        differ, alike, one = (QUERIES, KEYS), (QUERIES, QUERIES), (1, KEYS)
        return {"differ": [differ], "alike": [alike], "one": [one], "fixed": [one, *fixed]}.get(which, [differ, alike])

    def _maps(self) -> list[int]:
        """Tokens of a map: that of the example, two windows, an image in patches, or what is usual."""
        maps = [x for x in self._example().values() if isinstance(x, Tensor) and x.ndim == 4]
        known = [x.shape[2] for x in maps if x.shape[2] in (x.shape[1], x.shape[3])]
        known += [2 * n for n in sizes.find(self.module, ["window_size", "window", "ws", "win_size"])]
        fitting = [*sizes.image_sides(self.module), *sizes.relative_sides(self.module), 8]
        squares = [[n**2 for n in sides if n <= _LARGEST_SIDE] for sides in (known, fitting)]
        return list(dict.fromkeys((*squares[0], MAP, *squares[1])))

    def _makers(self, p: Parameter) -> list[Maker]:
        """Makers of one argument's value to try, that of the example among the first."""
        masks = [x.name for x in self.parameters if x.role in ("mask", "padding") and x.name != p.name]
        own = names.about_memory(p.name) is None and any(names.about_memory(name) for name in masks)
        query = next((x.name for x in self.parameters if x.role == "query"), "")
        own = own or (len(masks) > 0 and names.about(p.name, query) and not any(names.about(x, query) for x in masks))
        paired = arguments.in_neighbours(self._example().get(p.name))
        found = arguments.makers(p.name, p.role, p.annotation, self.module, own=own, neighbours=paired)
        if not p.required and p.role in ("mask", "padding"):
            found = found[:4]
        reader = self._readers.get(p.name) if self._fitted else None
        if reader is not None and p.role in ("unknown", "other", "positions", "memory"):
            found[:0] = arguments.read_by(reader)
        value, x = self._example().get(p.name), self._example_input()
        if value is not None and x is not None:
            shapes = arguments.Shapes(x.shape[0], x.shape[1], self._example_keys(x), sizes.heads(self.module) or 1)
            table = p.role == "positions" and isinstance(value, (tuple, list))
            first = p.role == "unknown" or (p.role == "positions" and self._of_another_form(value, found))
            inside = isinstance(value, Tensor) and value.shape[:1] != x.shape[:1] and x.shape[0] in value.shape[2:-1]
            others = (self._example().get(o.name) for o in self.parameters if _keys(o))
            memory = next((y for y in others if isinstance(y, Tensor) and _is_sequence(y)), x)
            turned = arguments.Shapes(x.shape[1], x.shape[0], memory.shape[0], shapes.heads)
            given = arguments.from_example(value, shapes, turned, inside=inside, table=table)
            found.insert(0 if first or inside else 1, given)
        if value is None and p.name in self._example():
            found.insert(0, arguments.constant(None))
        return found

    def _of_another_form(self, value: Any, guesses: list[Maker]) -> bool:
        """Whether one table of real numbers, which the example passes, is laid out as no guess is."""
        x = self._example_input()
        if x is None or not isinstance(value, Tensor) or not value.is_floating_point():
            return False
        at = arguments.Sizes(x.shape[0], x.shape[1], self._example_keys(x), x.shape[-1], x.dtype, x.device)
        made = [make(at) for make in guesses]
        return not any(isinstance(y, Tensor) and y.shape == value.shape and y.dtype == value.dtype for y in made)

    def _example_keys(self, x: Tensor) -> int:
        """How many keys the example has."""
        others = (self._example().get(p.name) for p in self.parameters if p.role in ("key", "memory"))
        return next((y.shape[1] for y in others if isinstance(y, Tensor) and y.ndim == 3 and y is not x), x.shape[1])

    def example_of(self, name: str) -> Any:
        """What the example passes for an argument, or None."""
        return self._example().get(name)

    def passes_itself(self, way: Way) -> bool:
        """Whether the example passes the queries as the memory, too: the layer then attends to its own input."""
        given = [self._example().get(name) for _, name in way.slots]
        return isinstance(given[0], Tensor) and all(x is given[0] for x in given)

    def leaves_out(self, name: str) -> bool:
        """Whether an argument may be left out, and the example passes none."""
        optional = any(p.name == name and not p.required for p in self.parameters)
        return optional and self._example().get(name) is None

    def _example(self) -> dict[str, Any]:
        args, kwargs = self.example or ((), {})
        return {**dict(zip((p.name for p in self.parameters), args, strict=False)), **kwargs}

    def _example_input(self) -> Tensor | None:
        for p in self.parameters:
            value = self._example().get(p.name)
            if p.role == "query" and isinstance(value, Tensor) and value.ndim == 3:
                return value
        return next((v for v in self._example().values() if isinstance(v, Tensor) and v.ndim == 3), None)

    def _positions_given(self, p: Parameter) -> bool:
        """Whether the example passes positions in this argument: without them another thing is computed."""
        return p.role == "positions" and self._example().get(p.name) is not None

    def _example_rows(self) -> Tensor | None:
        """The example's input if it is [B, rows, N, M], such as points or an image."""
        for p in self.parameters:
            value = self._example().get(p.name)
            if p.role == "query" and isinstance(value, Tensor) and value.is_floating_point():
                return value if value.ndim == 4 else None
        return None

    def _positional(self, option: Assignment) -> tuple[str, ...]:
        return (*self._by_position({name for _, name in option.slots}), *option.positional)

    def _by_position(self, inputs: set[str]) -> tuple[str, ...]:
        """What is passed by position: what has to be, or the first argument, as people do (hooks expect it there)."""
        found = tuple(p.name for p in self.parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY)
        first = next(iter(signature(self.module).parameters.values()), None)
        if not found and first is not None and first.kind is first.POSITIONAL_OR_KEYWORD and first.name in inputs:
            return (first.name,)
        return found

    def _widths(self, takes: str) -> list[tuple[int, int, int]]:
        """Widths to try. What the module says of them is read once: no call that fails changes it."""
        if takes not in self._guessed:
            self._guessed[takes] = self._guess_widths(takes)
        return self._guessed[takes]

    def _guess_widths(self, takes: str) -> list[tuple[int, int, int]]:
        spec = self.spec
        guesses = [spec.width] if spec.width else sizes.widths(self.module)[:14]
        x = self._example_input() if self._example_rows() is None else self._example_rows()
        if x is not None and not spec.width:
            guesses = [x.shape[-1], *guesses]
        elif not spec.width and (table := getattr(self.module, token_ids.WIDTH, None)) is not None:
            guesses = list(dict.fromkeys([table, *guesses]))
        found = []
        for w in guesses:
            k, v = spec.key_width or w, spec.value_width or spec.key_width or w
            found.append((w, k, v))
        if takes != "self":
            ks = [spec.key_width] if spec.key_width else sizes.key_widths(self.module)[:3]
            vs = [spec.value_width] if spec.value_width else sizes.value_widths(self.module)[:2]
            more = [(w, k, v) for w in guesses[:3] for k in ks for v in (*vs, k)]
            found[1:1] = [t for t in dict.fromkeys(more) if t not in found]
        return found

    def _failure(self) -> DoctorError:
        name = type(self.module).__name__
        listed = ", ".join(p.name for p in self.parameters) or "*args"
        if not self.failed:
            return DoctorError(f"{name}.forward({listed}) could not be tried. State how it is called with spec=")
        own = self._own_mistake()
        if own is not None:
            return Raises(f"every call of {name}.forward({listed}) raises {shortened(own.said, 400)}", own.where)
        best = most_plausible(self.failed)
        at = f" at {best.where}" if best.where is not None else ""
        kind = NoOutput if best.said.startswith("forward returned") else DoctorError
        return kind(
            f"{name}.forward({listed}): no way to call it was found in {len(self.failed)} trials. The call that got "
            f"farthest, {best.how}, raised or returned{at}: {shortened(best.said, 400)}. State how it is called with "
            'spec=, such as Spec(takes="self", width=64), or pass example= of a real call'
        )

    def _own_mistake(self) -> Failed | None:
        """The failure, if the calls that got farthest all fail at one line for a reason that no argument changes."""
        most = max(x.reached for x in self.failed)
        inside = [x for x in self.failed if x.where is not None and x.reached == most]
        classes = {type(part).__name__ for part in self.module.modules()}

        def is_own(x: Failed) -> bool:
            if isinstance(x.error, (NameError, ImportError)):
                return True
            found = re.match(r"'(\w+)' object has no attribute", str(x.error))
            return isinstance(x.error, AttributeError) and found is not None and found[1] in classes

        alike = len({(x.where, x.said) for x in inside}) == 1
        return inside[0] if alike and is_own(inside[0]) else None


def _keys(p: Parameter) -> bool:
    return p.role in ("memory", "key")


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()


def _combinations(lists: list[list[Maker]]) -> list[tuple[Maker, ...]]:
    """Choices of one maker from each list, likely ones first: all pairs of two lists, else one list at a time."""
    if len(lists) <= 2:
        ranked = [list(enumerate(x[:40])) for x in lists]
        chosen = sorted(itertools.product(*ranked), key=lambda c: sum(i for i, _ in c))
        return [tuple(make for _, make in c) for c in chosen]
    first = [x[0] for x in lists]
    together = [tuple(x[min(i, len(x) - 1)] for x in lists) for i in range(max(map(len, lists)))]
    apart = [(*first[:i], make, *first[i + 1 :]) for i, x in enumerate(lists) for make in x[1:]]
    return [*together[:12], *apart]


def most_plausible(failed: list[Failed]) -> Failed:
    """The failure to quote: of the calls that got farthest the first that is not merely about a guessed size."""
    most = max(x.reached for x in failed)
    farthest = [x for x in failed if x.reached == most]
    guessed = re.compile(
        r"mat1 and mat2|normalized_shape|missing .* required|unexpected keyword|size of tensor|einsum|shape '\["
        r"|to have \d+ channels|invalid for input of size"
    )
    return next((x for x in farthest if not guessed.search(x.said)), farthest[0])


def _hints(said: str, widths: tuple[int, int, int], batch: int, q_len: int, k_len: int) -> list[tuple[int, int, int]]:
    """Widths that an error message asks for: 'mat1 and mat2 shapes cannot be multiplied (15x64 and 32x96)'."""
    product = re.search(r"\((\d+)x(\d+) and (\d+)x(\d+)\)", said)
    norm = re.search(r"normalized_shape=\[(\d+)\].*got input of size\[(\d+), (\d+), (\d+)\]", said)
    if product:
        rows, had, wanted = int(product[1]), int(product[2]), int(product[3])
    elif norm:
        rows, had, wanted = int(norm[2]) * int(norm[3]), int(norm[4]), int(norm[1])
    else:
        return []
    if had not in widths:
        return []
    q, k, v = widths
    if rows == batch * q_len and q_len != k_len:
        return [(wanted, k, v)]
    if rows == batch * k_len and q_len != k_len:
        return [(q, wanted, v), (q, k, wanted), (q, wanted, wanted)]
    return [(wanted, wanted, wanted)]
