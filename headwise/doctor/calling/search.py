"""The search for a way to call a module: which argument takes which input, its width and its layout."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from headwise.doctor.calling import guesses, names, sizes, token_ids
from headwise.doctor.calling.claims import text_of_all
from headwise.doctor.calling.example import is_sequence
from headwise.doctor.calling.forward_arguments import constant, from_example
from headwise.doctor.calling.signature import assignments, signature
from headwise.doctor.calling.spec import Spec
from headwise.doctor.calling.trial import KEYS, QUERIES, Trial, failure, farthest, undisturbed
from headwise.doctor.calling.way import MAPS, STATES, Way
from headwise.errors import DoctorError

_ATTEMPTS = 2000  # the maximum number of calls
_MORE = 300  # calls after a way that works for one number of examples only
_EACH = 320  # calls for one assignment in one layout
_FITTED = 80  # calls for one assignment once readers are known
_ALIKE = 2  # calls that fail alike, each with another dtype and shape of all that is no input
_DOUBTFUL = 12  # ways that are called twice more
_SEQUENCE_FIRST = re.compile(
    r"[\[(]\s*(1|\w*len|\w*length|time|T|S|L)\s*,\s*(batch(_?size)?|bsz|B|N)\s*,\s*\w+\s*[\])]", re.IGNORECASE
)  # (1, batch, hidden) and (src_len, batch, hidden)


def search(trial: Trial) -> Way:
    """The first way that works. Raises DoctorError if none does."""
    return _Search(trial).first()


def first_call(
    module: nn.Module, *, spec: Spec | None = None, example: tuple[tuple[Any, ...], dict[str, Any]] | None = None
) -> None:
    """Call a module that gets its weights then, in the first way that works; that call is its last one.

    Raises DoctorError if none does.
    """
    with undisturbed(module):
        trial = Trial(module, spec or Spec(), example)
        way = search(trial)
        trial.run(way, trial.inputs(way, *trial.sizes(way)))


class _Search:
    """One search, and what it has learned."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.module, self.spec = trial, trial.module, trial.spec
        self.given, self.parameters = trial.given, trial.parameters
        self.batch = sizes.batch(trial.module)
        self._fitted = False  # whether an argument is first tried as what its reader takes
        self._mixes: list[Way] = []  # calls with one query in which an example reaches another one, or not itself
        # What the module says of its widths is read once: no call that fails changes it.
        self._widths = functools.cache(functools.partial(guesses.widths, self.module, self.spec, self.given))

    def first(self) -> Way:
        """The first way that works. Raises DoctorError if none does."""
        options = self._options()
        doubtful, last = None, _ATTEMPTS
        of_ids = token_ids.is_on_embeddings(self.module)
        for layouts, several, lengths in self._order(options):
            for layout, option, with_optional in itertools.product(layouts, several, (False, True)):
                if self.trial.calls > last:
                    break
                found = self._try(option, layout, with_optional, lengths)
                if found is None:
                    continue
                if self._of_each_example(found):
                    return found
                if not of_ids and doubtful is None:
                    doubtful, last = found, self.trial.calls + _MORE
        found = _replay(self.trial, options) or doubtful or next(iter(self._mixes), None) or self._by_readers(options)
        if found is not None:
            return found
        raise failure(self.module, self.parameters, self.trial.failed)

    def _options(self) -> list[Way]:
        """Which arguments may take which inputs, the likely ones first."""
        variadic = any(p.kind is p.VAR_POSITIONAL for p in signature(self.module).parameters.values())
        options = assignments(self.parameters, variadic, self.spec.takes)
        if not options:
            listed = ", ".join(p.name for p in self.parameters) or "no argument"
            raise DoctorError(
                f"{type(self.module).__name__}.forward takes {listed}, and none of them looks like an input. State it "
                'with spec=, such as Spec(roles={"name": "query"})'
            )
        return sorted(options, key=lambda o: not self._as_in_example(o))

    def _order(self, options: list[Way]) -> Iterator[tuple[Sequence[str], list[Way], str]]:
        """In which layouts, with which assignments and which kind of lengths calls are tried, the likely ones first."""
        whole = [o for o in options if not self._left_out(o)]
        partial = [o for o in options if self._left_out(o)]
        own = [o for o in whole if o.takes == "self"]
        crossing = [o for o in whole if o.takes != "self"]
        as_named = [o for o in crossing if not o.turned]
        in_rows = self.given.rows() is not None
        plain = self._plain(in_rows)
        rows = ["B1NM", "BNM"] if in_rows else ["BNM"]
        # A number of keys that differs from the number of queries comes first: it tells which argument is which.
        yield plain, [*own, *as_named] if own and whole[0] is own[0] else [*as_named, *own], "differ"
        yield ["BM", *(["NBM"] if "NBM" in plain else [])], as_named, "one"
        if "NBM" in plain or sizes.recurs(self.module):
            yield STATES, as_named, "one"
        yield ["BNM"], as_named, "one"
        yield plain, [o for o in crossing if o.turned], "differ"
        if {"h", "w"} <= {names.SIDES.get(names.simple(p.name)) for p in self.parameters}:
            yield ["BNM"], own, "map"
        if any(names.PAGES.search(p.name) for p in self.parameters):
            yield ["BM", "BNM"], own, "lone"
        yield rows, whole, "alike"
        alone = [o for o in partial if not self._left_out(o, ("key", "value"))]
        yield ["BNM"], alone, "differ"  # a memory may be None, for attention to itself
        yield ["BN"], own, "signal"
        yield ["BNM"], own, "stated"
        yield ["NBM", "NM", "BHND", "BNHD", "BMN", "BMHW"], whole, "any"
        yield STATES, as_named, "one"
        yield ["BMHW,BNM", "BNM,B1NM"], crossing, "any"
        yield rows, own, "hinted"
        yield rows, whole, "fixed"
        yield rows, partial, "differ"
        yield rows, partial, "alike"
        yield MAPS, own, "map"
        yield MAPS, own, "hinted"

    def _plain(self, in_rows: bool) -> list[str]:
        """The layouts that its input most likely has."""
        plain = ["NBM", "BNM"] if _says_sequence_first(self.module, self.spec) else ["BNM"]
        if _convolves(self.module):
            return ["BMN", "BMHW", *plain]
        return ["B1NM", *plain] if in_rows else plain

    def _by_readers(self, options: list[Way]) -> Way | None:
        """A way in which other arguments are what the layers that read them take: ids of a table, or another width. Or
        that of a step of a decoder with an RNN: its state is the query, beside the id of the last token.
        """
        self._fitted = True
        whole = sorted((o for o in options if not self._left_out(o)), key=lambda o: o.takes != "self")
        memory = next((p.name for p in self.parameters if p.role == "memory"), None)
        states = [p.name for p in self.parameters if names.STATE.fullmatch(names.simple(p.name)) and p.required]
        tried: list[tuple[Sequence[str], list[Way], str]]
        tried = [(("BNM", "B1NM"), whole, ""), (("BNM", "B1NM"), whole, "fixed")]
        if memory is not None and states and sizes.recurs(self.module):
            step = Way("memory", (("query", states[0]), ("memory", memory)))
            tried.append(((*STATES, "BM", "NBM"), [step], "one"))
        return next((way for each in tried if (way := self._learning(*each)) is not None), None)

    def _learning(self, layouts: Sequence[str], options: list[Way], lengths: str) -> Way | None:
        """The first way that works. Each argument that fits its reader lets the next call get farther, to the layer
        that reads another one.
        """
        known = -1
        while len(self.trial.readers) > known:
            known = len(self.trial.readers)
            for layout, option in itertools.product(layouts, options):
                others = {p.name for p in self.parameters if p.required} - {name for _, name in option.slots}
                if not others & set(self.trial.readers) and lengths != "one":
                    continue
                if self.trial.calls > 2 * _ATTEMPTS:
                    return None
                usual = "alike" if option.takes != "self" else "differ"
                found = self._try(option, layout, False, lengths or usual)
                if found is not None and (lengths == "one" or self._of_each_example(found)):
                    return found
                if len(self.trial.readers) > known and lengths != "one":
                    break
        return None

    def _of_each_example(self, way: Way) -> bool:
        """Whether the output of an example is as wide in a larger batch: no argument is one for all examples."""
        if way.alone:
            return True
        try:
            calls = [self.trial.inputs(way, n, *way.lengths) for n in (self.batch, self.batch + 1)]
            return len({self.trial.run(way, inputs).output.shape[1:] for inputs in calls}) == 1
        except Exception:
            return False

    def _as_in_example(self, option: Way) -> bool:
        """Whether it takes nothing that the example leaves out, and takes a memory if the example passes one."""
        if self.given.values and any(self.given.of(name) is None for _, name in option.slots):
            return False
        passed = any(p.role == "memory" and is_sequence(self.given.of(p.name)) for p in self.parameters)
        return not passed or option.takes != "self"

    def _left_out(self, option: Way, inputs: Sequence[str] = ("query", "key", "value", "memory")) -> bool:
        """Whether an argument that must be an input, of one of these roles, would get another value."""
        taken = {name for _, name in option.slots}
        return any(p.required and p.role in inputs and p.name not in taken for p in self.parameters)

    def _try(self, option: Way, layout: str, with_optional: bool, which: str) -> Way | None:
        """One assignment in one layout, with all likely widths, lengths and values of other arguments."""
        taken = {name for _, name in option.slots} | set(self.spec.arguments)
        given = ("positions", "mask", "padding") if with_optional else ()
        # Without the positions that the example passes another thing is computed.
        placed = {p.name for p in self.parameters if p.role == "positions" and self.given.of(p.name) is not None}
        wanted = {p.name for p in self.parameters if p.required or p.role in given or p.name in placed}
        needed = [p for p in self.parameters if p.name in wanted - taken]
        if with_optional and all(p.required for p in needed):
            return None
        readers = self.trial.readers if self._fitted else {}
        makers = [guesses.makers(self.module, self.given, p, readers.get(p.name)) for p in needed]
        others = guesses.combinations(makers)[:80]
        varied = [p.name for p, several in zip(needed, makers, strict=True) if len(several) > 1]
        widths = self._widths(option.takes)[: None if layout in ("BNM", "B1NM") else 4]
        if layout == "BN":
            widths = [(1, 1, 1)]
        elif layout in MAPS and option.takes == "self" and self.spec.width is None:  # of an image
            widths = [*((n, n, n) for n in sizes.channels(self.module)), *widths]
        lengths = guesses.lengths(self.module, self.given, which, option.takes == "self")
        if which == "hinted":
            ours = {QUERIES, KEYS, self.batch}
            said = next((x.said for x in farthest(self.trial.failed)), "")
            lengths = [(n, n) for n in guesses.hinted_lengths(said) if n not in ours]
        heads = sizes.heads(self.module) or 4
        positional = (*self.trial.by_position({name for _, name in option.slots}), *option.positional)
        way = dataclasses.replace(option, positional=positional, layout=layout, heads=heads)
        fixed = tuple((name, constant(value)) for name, value in self.spec.arguments.items())
        # One query for each example may be taken for one of each layer; a mask may lie over another axis.
        unsure = which == "one" or any(p.role in ("mask", "padding") for p in needed)
        hinted: set[tuple[int, int, int]] = set()
        doubtful: list[Way] = []  # a mask that does not fit may have been broadcast into the output
        every = itertools.product(range(len(lengths)), range(len(others)), range(len(widths)))
        order = sorted(every, key=lambda t: t[0] + t[1] + 3 * t[2])
        known = len(self.trial.readers)
        failures: dict[tuple[Any, ...], list[list[Any]]] = {}  # how it failed -> kinds of what is no input
        hopeless: set[tuple[int, int]] = set()  # a length and a width that fail alike, whatever the others are
        for which_length, which_others, which_width in order[: _FITTED if self._fitted else _EACH]:
            if self._fitted and len(self.trial.readers) > known:
                break  # what was learned from this call serves the next ones
            if (which_length, which_width) in hopeless:
                continue
            extras = tuple((p.name, make) for p, make in zip(needed, others[which_others], strict=True))
            todo = [widths[which_width]]
            while todo:
                width, at = todo.pop(), lengths[which_length]
                if layout in ("BHND", "BNHD") and width[0] % heads:
                    continue
                tried = dataclasses.replace(way, widths=width, extras=(*extras, *fixed))
                got = self.trial.attempt(tried, 1 if layout == "NM" else self.batch, *at)
                if isinstance(got, str):
                    alike = failures.setdefault((which_length, which_width, got, self.trial.failed[-1].where), [])
                    mine = [kind for name in varied for kind in _kinds(self.trial.passed.get(name))]
                    if all(x != y for given in alike for x, y in zip(mine, given, strict=True)):
                        alike.append(mine)
                    if len(alike) == _ALIKE:
                        hopeless.add((which_length, which_width))
                    more = guesses.hinted_widths(got, width, self.batch, *at) if self.spec.width is None else []
                    todo += [w for w in more if w not in hinted]
                    hinted.update(todo)
                elif self._is_another_thing(got[0]):
                    continue
                elif not unsure or (got[0].whole(got[1].raw) and self._keeps_apart(got[0])):
                    return got[0]
                else:
                    doubtful.append(got[0])
        found = next((way for way in doubtful[:_DOUBTFUL] if self._keeps_apart(way)), None)
        if found is None and which == "one":
            self._mixes.extend(doubtful[:1])
            return None
        return found or next(iter(doubtful), None)

    def _is_another_thing(self, way: Way) -> bool:
        """Whether what was taken for heads is the height of an image [B, H, W, M], which is projected and may have any
        height; or what was taken for tokens is examples or heads, of which none reaches another.
        """
        if way.layout in ("BHND", "BNHD"):
            if way.takes != "self" and not _attends(self.trial, way):
                return True
            wider = dataclasses.replace(way, heads=way.heads * 2, widths=tuple(2 * w for w in way.widths))  # type: ignore[arg-type]
            return _has(self.module, nn.Linear, nn.Conv2d) and not isinstance(
                self.trial.attempt(wider, self.batch, QUERIES, QUERIES), str
            )
        if way.layout != "NM" or way.takes != "self":
            return False
        moved = self.trial.moved(way, (slice(None), 0), "query")
        return moved is None or not bool(moved[:, 1:].any())

    def _keeps_apart(self, way: Way) -> bool:
        """Whether an example reaches its own output and no other. If not, a mask may lie over the wrong axis, or hide
        all. True if it runs once only, and nothing is known.
        """
        moved = self.trial.moved(way, 0, "query")
        return moved is None or (bool(moved[0].any()) and not bool(moved[1:].any()))


def _kinds(x: Any) -> tuple[Any, Any]:
    """The dtype and the shape of a tensor; of anything else its type."""
    return (x.dtype, x.shape) if isinstance(x, Tensor) else (type(x), type(x))


def _has(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    return any(isinstance(part, kinds) for part in module.modules())


def _convolves(module: nn.Module) -> bool:
    """Whether its projections are convolutions: then channels come before positions."""
    return _has(module, nn.Conv1d, nn.Conv2d) and not _has(module, nn.Linear)


def _says_sequence_first(module: nn.Module, spec: Spec) -> bool:
    if spec.batch_first is not None:
        return not spec.batch_first
    parts = any(getattr(part, "batch_first", None) is False for part in module.modules())
    return parts or _SEQUENCE_FIRST.search(text_of_all(module)) is not None


def _replay(trial: Trial, options: list[Way]) -> Way | None:
    """The call of the example, with the sizes of its batch and its lengths replaced; or as it was; or None."""
    if trial.given.input() is None:
        return _rows_as_given(trial)
    for option in options:
        if all(is_sequence(trial.given.of(name)) for _, name in option.slots):
            way = _as_given(trial, option)
            # What reaches no other token is no memory, but a residual, which is added token by token.
            if way is not None and (option.takes == "self" or _attends(trial, way)):
                return way
    return None


def _as_given(trial: Trial, option: Way) -> Way | None:
    """A way in which all that is no input is as in the example."""
    given, names_of_inputs = trial.given, {name for _, name in option.slots}
    tensors = [given.values[name] for _, name in option.slots]
    (batch, queries, _), keys = tensors[0].shape, tensors[-1].shape[1]
    heads = sizes.heads(trial.module) or 1
    rest = [p.name for p in trial.parameters if p.name in given.values and p.name not in names_of_inputs]
    extras = tuple((name, from_example(given.values[name], tensors[0], tensors[-1], heads)) for name in rest)
    first, second, third = (t.shape[-1] for t in (*tensors, *[tensors[-1]] * 2)[:3])
    positional = trial.by_position(names_of_inputs)
    way = dataclasses.replace(option, positional=positional, heads=heads, widths=(first, second, third), extras=extras)
    several = sizes.batch(trial.module)
    usual = QUERIES, QUERIES if option.takes == "self" or keys == queries else KEYS
    other = () if given.holds_distances() else ((several, usual),)
    for count, lengths in (*other, (several, (queries, keys)), (batch, (queries, keys))):
        got = trial.attempt(way, count, *lengths)
        if not isinstance(got, str):
            return dataclasses.replace(got[0], layout="1NM") if count == 1 else got[0]
    return None


def _rows_as_given(trial: Trial) -> Way | None:
    """[length, width] with everything else as it was: the edges of a graph, for example, or where graphs begin."""
    given = trial.given
    rows = {
        p.name: x
        for p in trial.parameters
        if p.role in ("query", "unknown") and isinstance(x := given.of(p.name), Tensor)
        if x.ndim == 2 and x.is_floating_point()
    }
    for name, x in rows.items():
        slots = (("query", name),)
        extras = tuple((other, constant(y)) for other, y in given.values.items() if other != name)
        by_position = trial.by_position({name})
        width, heads = x.shape[-1], sizes.heads(trial.module) or 1
        way = Way("self", slots, by_position, layout="NM", heads=heads, widths=(width,) * 3, extras=extras)
        got = trial.attempt(way, 1, len(x), len(x))
        if not isinstance(got, str):
            return got[0]
    return None


def _attends(trial: Trial, way: Way) -> bool:
    """Whether the first key reaches the outputs of other queries, or that cannot be asked."""
    moved = trial.moved(way, (slice(None), 0), "key")
    return moved is None or bool(moved[:, 1:].any())
