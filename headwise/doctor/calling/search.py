"""The search for a way to call a module: which argument takes which input, its width and its layout."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

from torch import nn

from headwise.doctor.calling import forward_arguments as arguments
from headwise.doctor.calling import guesses, names, sizes, token_ids
from headwise.doctor.calling.claims import text_of_all
from headwise.doctor.calling.failure import failure
from headwise.doctor.calling.forward_arguments import Maker
from headwise.doctor.calling.given import is_sequence
from headwise.doctor.calling.replay import replay
from headwise.doctor.calling.signature import Assignment, Parameter, assignments, signature
from headwise.doctor.calling.spec import Spec
from headwise.doctor.calling.stated_shapes import maker, stated_shapes
from headwise.doctor.calling.trial import QUERIES, Trial
from headwise.doctor.calling.way import MAPS, STATES, Way, noise
from headwise.errors import DoctorError

_ATTEMPTS = 3000  # the maximum number of calls
_SEQUENCE_FIRST = re.compile(
    r"[\[(]\s*(1|\w*len|\w*length|time|T|S|L)\s*,\s*(batch(_?size)?|bsz|B|N)\s*,\s*\w+\s*[\])]", re.IGNORECASE
)  # (1, batch, hidden) and (src_len, batch, hidden)
_MORE = 300  # calls after a way that works for one number of examples only
_DOUBTFUL = 12  # ways that are called twice more
_FITTED = 80  # calls for one assignment once readers are known


def search(trial: Trial) -> Way:
    """The first way that works. Raises DoctorError if none does."""
    return _Search(trial).first()


class _Search:
    """One search, and what it has learned."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.module, self.spec = trial, trial.module, trial.spec
        self.given, self.parameters = trial.given, trial.parameters
        self._fitted = False  # whether an argument is first tried as what its reader takes
        self._guessed: dict[Assignment, list[tuple[int, int, int]]] = {}
        self._stated = stated_shapes(trial.module, [p.name for p in trial.parameters])

    def first(self) -> Way:
        """The first way that works. Raises DoctorError if none does."""
        options = self._options()
        batch, doubtful, last = sizes.batch(self.module), None, _ATTEMPTS
        of_ids = token_ids.is_on_embeddings(self.module)
        for layouts, several, lengths in self._order(options):
            for layout, option, with_optional in itertools.product(layouts, several, (False, True)):
                if self.trial.calls > last:
                    break
                found = self._try(option, layout, batch, with_optional, lengths)
                if found is None:
                    continue
                if self._of_each_example(found, batch):
                    return found
                if not of_ids and doubtful is None:
                    doubtful, last = found, self.trial.calls + _MORE
        whole = [o for o in options if not self._left_out(o)]
        found = replay(self.trial) or doubtful or self._by_readers(whole, batch) or self._of_a_step(batch)
        if found is not None:
            return found
        raise failure(self.module, self.parameters, self.trial.failed)

    def _options(self) -> list[Assignment]:
        """Which arguments may take which inputs, the likely ones first."""
        variadic = any(p.kind is p.VAR_POSITIONAL for p in signature(self.module).parameters.values())
        options = assignments(self.parameters, variadic, self.spec.takes)
        if not options:
            listed = ", ".join(p.name for p in self.parameters) or "no argument"
            raise DoctorError(
                f"{type(self.module).__name__}.forward takes {listed}, and none of them looks like an input. State it "
                'with spec=, such as Spec(roles={"name": "query"})'
            )
        fits = [o for o in options if not any(self._no_sequence(*slot, o.takes) for slot in o.slots)]
        return sorted(fits or options, key=lambda o: not self._as_in_example(o))

    def _order(self, options: list[Assignment]) -> Iterator[tuple[Sequence[str], list[Assignment], str]]:
        """In which layouts, with which assignments and which kind of lengths calls are tried, the likely ones first."""
        whole = [o for o in options if not self._left_out(o)]
        partial = [o for o in options if self._left_out(o)]
        own, crossing = ([o for o in whole if (o.takes == "self") == alone] for alone in (True, False))
        query = options[0].slots[0][1]
        memory = next((name for o in options for role, name in o.slots if role in ("memory", "key")), "")
        in_rows = self.given.rows() is not None or self._beside_pairs(query)
        plain, two = self._plain(query, in_rows), ["BMHW,BNM"]
        rows = ["B1NM", "BNM"] if in_rows else ["BNM"]
        if self._in_rows(memory):
            two = ["BNM,B1NM", *two]
            if self._is_a_sequence(query):
                yield two[:1], crossing, "any"
        # A number of keys that differs from the number of queries comes first: it tells which argument is which.
        yield plain, whole, "differ"
        if {"h", "w"} <= {names.SIDES.get(names.simple(p.name)) for p in self.parameters}:
            yield ["BNM"], own, "map"
        if any(names.PAGES.search(p.name) for p in self.parameters):
            yield ["BM", "BNM"], own, "lone"
        yield ["BM"], whole, "one"
        if "NBM" in plain:
            yield plain, whole, "one"
        if "NBM" in plain or sizes.recurs(self.module):
            yield STATES, crossing, "one"
        yield rows, whole, "alike"
        yield ["BN"], own, "signal"
        yield ["BNM"], own, "stated"
        yield ["NBM", "NM", "BHND", "BMN", "BMHW", "BNHD"], whole, "any"
        yield two, crossing, "any"
        yield rows, whole, "fixed"
        yield rows, partial, "differ"
        yield rows, partial, "alike"
        yield MAPS, own, "map"

    def _plain(self, query: str, in_rows: bool) -> list[str]:
        """The layouts that its input most likely has."""
        if (of_map := self._layout_of_map(query)) is not None:
            return [of_map]  # a convolution would also take [B, M, N]: as one image without a batch
        plain = ["NBM", "BNM"] if _says_sequence_first(self.module, self.spec) else ["BNM"]
        if _convolves(self.module):
            return ["BMN", "BMHW", *plain]
        return ["B1NM", *plain] if in_rows else plain

    def _by_readers(self, options: list[Assignment], batch: int) -> Way | None:
        """A way in which other arguments are what the layers that read them take: ids of a table, or another width.

        Each argument that fits lets the next call get farther, to the layer that reads another one.
        """
        own_first = sorted(options, key=lambda o: o.takes != "self")
        self._fitted = True
        for fixed in (False, True):
            known = -1
            while len(self.trial.readers) > known:
                known = len(self.trial.readers)
                for layout, option in itertools.product(("BNM", "B1NM"), own_first):
                    others = {p.name for p in self.parameters if p.required} - {name for _, name in option.slots}
                    if not others & set(self.trial.readers) or self.trial.calls > 2 * _ATTEMPTS:
                        continue
                    lengths = "fixed" if fixed else "alike" if option.takes != "self" else "differ"
                    found = self._try(option, layout, batch, False, lengths)
                    if found is not None and self._of_each_example(found, batch):
                        return found
                    if len(self.trial.readers) > known:
                        break
        return None

    def _of_a_step(self, batch: int) -> Way | None:
        """A way to call one step of a decoder with an RNN: its state is the query, beside the id of the last token."""
        memory = next((p.name for p in self.parameters if p.role == "memory"), None)
        states = [p.name for p in self.parameters if names.STATE.fullmatch(names.simple(p.name)) and p.required]
        if memory is None or not states or not sizes.recurs(self.module):
            return None
        option = Assignment("memory", (("query", states[0]), ("memory", memory)))
        self._fitted = True
        for layout in (*STATES, "BM", "NBM"):
            known = -1
            while len(self.trial.readers) > known:  # each argument that fits lets the next call get farther
                known = len(self.trial.readers)
                found = self._try(option, layout, batch, False, "one")
                if found is not None:
                    return found
        return None

    def _of_each_example(self, way: Way, batch: int) -> bool:
        """Whether the output of an example is as wide in a larger batch: no argument is one for all examples."""
        if way.alone:
            return True
        try:
            calls = [self.trial.inputs(way, n, *way.lengths) for n in (batch, batch + 1)]
            return len({self.trial.run(way, inputs).output.shape[1:] for inputs in calls}) == 1
        except Exception:
            return False

    def _as_in_example(self, option: Assignment) -> bool:
        """Whether it takes nothing that the example leaves out, and takes a memory if the example passes one."""
        if self.given.values and any(self.given.of(name) is None for _, name in option.slots):
            return False
        passed = any(p.role == "memory" and is_sequence(self.given.of(p.name)) for p in self.parameters)
        return not passed or option.takes != "self"

    def _left_out(self, option: Assignment) -> bool:
        """Whether an argument that must be an input would get another value."""
        taken = {name for _, name in option.slots}
        inputs = ("query", "key", "value", "memory")
        missing = [p for p in self.parameters if p.required and p.role in inputs and p.name not in taken]
        return not all(self._of_pairs(p.name) for p in missing)

    def _try(self, option: Assignment, layout: str, batch: int, with_optional: bool, which: str) -> Way | None:
        """One assignment in one layout, with all likely widths, lengths and values of other arguments."""
        taken = {name for _, name in option.slots} | set(self.spec.arguments)
        given = ("positions", "mask", "padding") if with_optional else ()
        wanted = {p.name for p in self.parameters if p.required or p.role in given or self._positions_given(p)}
        needed = [p for p in self.parameters if p.name in wanted - taken]
        if with_optional and all(p.required for p in needed):
            return None
        others = guesses.combinations([self._makers(p, option) for p in needed])[:80]
        widths = self._widths(option)[: None if layout in ("BNM", "B1NM") else 4] if layout != "BN" else [(1, 1, 1)]
        if layout in MAPS and option.takes == "self" and self.spec.width is None:  # of an image
            widths = [*((n, n, n) for n in sizes.channels(self.module)), *widths]
        lengths = guesses.lengths(self.module, self.given, which, option.takes == "self")
        if which == "fixed" and option.takes == "self":
            lengths = [*guesses.hinted_lengths(x.said for x in self.trial.failed), *lengths]
        heads = sizes.heads(self.module) or 4
        fixed = tuple((name, arguments.constant(value)) for name, value in self.spec.arguments.items())
        hinted: set[tuple[int, int, int]] = set()
        doubtful: list[Way] = []  # a mask that does not fit may have been broadcast into the output
        every = itertools.product(range(len(lengths)), range(len(others)), range(len(widths)))
        order = sorted(every, key=lambda t: t[0] + t[1] + 2 * t[2])
        known = len(self.trial.readers)
        for which_length, which_others, which_width in order[: _FITTED if self._fitted else 320]:
            if self._fitted and len(self.trial.readers) > known:
                return self._least_doubtful(doubtful)  # what was learned from this call serves the next ones
            extras = tuple((p.name, make) for p, make in zip(needed, others[which_others], strict=True))
            todo = [widths[which_width]]
            while todo:
                width = todo.pop()
                if layout in ("BHND", "BNHD") and width[0] % heads:
                    continue
                way = Way(option.takes, option.slots, self._positional(option), option.packed, layout, heads, width)
                way = dataclasses.replace(way, extras=(*extras, *fixed))
                got = self.trial.attempt(way, 1 if layout == "NM" else batch, *lengths[which_length])
                if not isinstance(got, str) and layout in ("BHND", "BNHD") and self._is_a_map(way, batch):
                    continue
                if not isinstance(got, str) and layout == "NM" and self._apart(got[0]):
                    continue
                if not isinstance(got, str):
                    masked = any(p.role in ("mask", "padding") for p in needed)
                    if not masked or (got[0].whole(got[1].raw) and self._keeps_apart(got[0])):
                        return got[0]
                    doubtful.append(got[0])
                    continue
                if self.spec.width is None:
                    todo += [
                        w for w in guesses.hinted_widths(got, width, batch, *lengths[which_length]) if w not in hinted
                    ]
                    hinted.update(todo)
        return self._least_doubtful(doubtful)

    def _least_doubtful(self, ways: list[Way]) -> Way | None:
        """The first way in which examples stay apart, or else the first."""
        return next((way for way in ways[:_DOUBTFUL] if self._keeps_apart(way)), next(iter(ways), None))

    def _is_a_map(self, way: Way, batch: int) -> bool:
        """Whether what was taken for heads is the height of an image [B, H, W, M]: projected, and any height runs."""
        projects = any(isinstance(part, (nn.Linear, nn.Conv2d)) for part in self.module.modules())
        wider = dataclasses.replace(way, heads=way.heads * 2, widths=tuple(2 * w for w in way.widths))  # type: ignore[arg-type]
        return projects and not isinstance(self.trial.attempt(wider, batch, QUERIES, QUERIES), str)

    def _keeps_apart(self, way: Way) -> bool:
        """Whether an example reaches its own output and no other. If not, a mask may lie over the wrong axis, or hide
        all.
        """
        inputs = self.trial.inputs(way, *self.trial.sizes(way))
        x = inputs.query.clone()
        x[0] = noise(*x.shape[1:], seed=5, dtype=x.dtype, device=x.device)
        calls = (inputs, dataclasses.replace(inputs, query=x))
        try:
            before, after = (self.trial.run(way, given).output for given in calls)
        except Exception:
            return True  # it runs once, and nothing is known
        return bool((after - before)[0].any()) and not bool((after - before)[1:].any())

    def _apart(self, way: Way) -> bool:
        """Whether no row of [length, width] reaches the output of another: rows are examples then, and no tokens."""
        inputs = self.trial.inputs(way, *self.trial.sizes(way))
        x = inputs.query.clone()
        x[:, 0] = noise(x.shape[-1], seed=5, dtype=x.dtype, device=x.device)
        before, after = (self.trial.run(way, given).output for given in (inputs, dataclasses.replace(inputs, query=x)))
        return way.takes == "self" and not bool((after - before)[:, 1:].any())

    def _positional(self, option: Assignment) -> tuple[str, ...]:
        return (*self.trial.by_position({name for _, name in option.slots}), *option.positional)

    def _widths(self, option: Assignment) -> list[tuple[int, int, int]]:
        """Widths to try. What the module says of them is read once: no call that fails changes it."""
        if option not in self._guessed:
            found = guesses.widths(self.module, self.spec, self.given, option.takes)
            of = {role: self._stated[name].width(self.module) for role, name in option.slots if name in self._stated}
            if any(of.values()) and self.spec.width is None:
                q = of.get("query") or found[0][0]
                k = of.get("memory") or of.get("key") or q
                found.insert(0, (q, k, of.get("value") or k))
            self._guessed[option] = found
        return self._guessed[option]

    def _makers(self, p: Parameter, option: Assignment) -> list[Maker]:
        reader = self.trial.readers.get(p.name) if self._fitted else None
        of_inputs = {role: self._stated[name] for role, name in option.slots if name in self._stated}
        stated = None
        if p.name in self._stated:
            stated = maker(self._stated[p.name], of_inputs, self.module, ids=isinstance(reader, nn.Embedding))
        return guesses.makers(self.module, self.given, p, reader, stated)

    def _no_sequence(self, role: str, name: str, takes: str) -> bool:
        """Whether an argument is stated to hold pairs of tokens, or what an example has one of: its features, or an id
        that is not the one query of a memory.
        """
        if name not in self._stated or self._of_pairs(name):
            return self._of_pairs(name)
        of_example = self._stated[name].is_of_an_example(self.module)
        return of_example and not (len(self._stated[name].shape) == 1 and (role, takes) == ("query", "memory"))

    def _of_pairs(self, name: str) -> bool:
        """Whether an argument is stated to hold pairs of tokens, as in [B, N, N, features]."""
        shape = self._stated[name].shape[:3] if name in self._stated else ()
        return len(set(shape)) < len(shape)

    def _in_rows(self, name: str) -> bool:
        """Whether an argument is stated to have rows of tokens, as in [B, rows, N, M]: neither a map, nor pairs."""
        shape = self._stated[name].shape if name in self._stated else ()
        return len(shape) == 4 == len(set(shape)) and not {"h", "w"} <= {size.lower() for size in shape}

    def _layout_of_map(self, name: str) -> str | None:
        """The layout of an argument that is stated to be a map, [B, 3, H, W] or [B, H, W, M]; None if it is not."""
        shape = [size.lower() for size in self._stated[name].shape] if name in self._stated else []
        if not {"h", "w"} <= {*shape}:
            return None
        return {(2, 3): "BMHW", (1, 2): "BHWM"}.get((shape.index("h"), shape.index("w")))

    def _is_a_sequence(self, name: str) -> bool:
        """Whether an argument is stated to be [B, N, M]."""
        return name in self._stated and len(self._stated[name].shape) == 3

    def _beside_pairs(self, name: str) -> bool:
        """Whether it has rows of tokens, and another argument holds the pairs of tokens of a row."""
        pairs = [x.shape[1:3] for other, x in self._stated.items() if self._of_pairs(other)]
        return self._in_rows(name) and (self._stated[name].shape[2],) * 2 in pairs

    def _positions_given(self, p: Parameter) -> bool:
        """Whether the example passes positions in this argument: without them another thing is computed."""
        return p.role == "positions" and self.given.of(p.name) is not None


def _convolves(module: nn.Module) -> bool:
    """Whether its projections are convolutions: then channels come before positions."""
    parts = list(module.modules())
    convolutions = any(isinstance(part, (nn.Conv1d, nn.Conv2d)) for part in parts)
    return convolutions and not any(isinstance(part, nn.Linear) for part in parts)


def _says_sequence_first(module: nn.Module, spec: Spec) -> bool:
    if spec.batch_first is not None:
        return not spec.batch_first
    parts = any(getattr(part, "batch_first", None) is False for part in module.modules())
    return parts or _SEQUENCE_FIRST.search(text_of_all(module)) is not None
