"""Calls a module token by token with its own cache, in each of the usual ways to pass a cache."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling import names, sizes
from headwise.doctor.calling.copying import copied
from headwise.doctor.calling.forward_arguments import Maker, Sizes
from headwise.doctor.calling.interface import Inputs, Interface
from headwise.doctor.probing.probe import quiet
from headwise.language import Sentence

# The words of a name that says where the new tokens begin, and what a flag that asks for a cache contains.
_START = {
    *("start", "startpos", "inputpos", "cur", "curr", "current", "input", "cache", "past", "kv", "pos", "position"),
    *("index", "idx", "offset", "len", "length"),
}
_FLAG = (
    *("use_cache", "usecache", "use_kv", "usekv", "return_cache", "return_kv", "return_intermediates", "return_past"),
    *("return_present", "incremental", "output_cache", "decod"),
)
# How the name of a method that makes one begins.
_MAKES = ("new", "make", "init", "create", "empty", "allocate", "setup", "get")


class Steps:
    """A sequence, and calls with the part of it at positions first … last - 1."""

    def __init__(self, interface: Interface, length: int, example: Mapping[str, Any] | None = None) -> None:
        self.interface = interface
        self.example = example or {}  # arguments of a real call, by name
        self.x = interface.inputs(2, length, length).query
        self.roles = interface.roles
        self.caches = [name for name, role in self.roles.items() if role == "cache"]
        positions = [name for name, role in self.roles.items() if role == "positions"]
        self.starts = [name for name in positions if _START.issuperset(names.simple(name).split("_"))]
        self.flags = [name for name in interface.flags if any(x in names.simple(name) for x in _FLAG)]
        # of a decoder layer: its memory stays the same while its tokens come one at a time
        self.memory: Inputs | None = interface.inputs(2, length, length + 2) if interface.takes == "memory" else None
        self.listed = False  # whether the positions of all new tokens are passed, and not the first alone

    def call(self, first: int, last: int, options: Mapping[str, Any] | None = None) -> tuple[Tensor, Any]:
        """The output for these tokens, and everything that forward returned."""
        part = self.x[:, first:last].contiguous()
        takes = self.interface.takes
        inputs = Inputs(part, None if takes == "self" else part, part if takes == "qkv" else None)
        if self.memory is not None:
            inputs = dataclasses.replace(self.memory, query=part)
        with quiet():
            result = self.interface.run(inputs, given={**self._late(first, last), **(options or {})})
        return result.output.detach(), result.raw

    def started(self, first: int, last: int) -> dict[str, Any]:
        """The arguments that say where the new tokens begin."""
        return dict.fromkeys(self.starts, torch.arange(first, last) if self.listed else first)

    def _late(self, first: int, last: int) -> dict[str, Any]:
        """Positions, tables and masks that forward requires, for tokens at positions first … last - 1."""
        found: dict[str, Any] = {}
        for name, make in self.interface.way.extras:
            if name in self.caches or name in self.starts or name in self.flags:
                continue
            if self.roles.get(name) not in ("mask", "padding"):
                found[name] = _tail(make, self._sizes(last), self._sizes(last + 1), first, last)
            elif make(self._sizes(last)) is not None:
                mask = next((m for m in self.interface.masks if m.parameter == name), None)
                if mask is not None:
                    shape = (len(self.x), last) if mask.what == "keys" else (len(self.x), last - first, last)
                    allowed = torch.ones(shape, dtype=torch.bool)
                    found[name] = mask.value(allowed, self.interface.heads or 1, self.x.dtype)
        return found

    def _sizes(self, length: int) -> Sizes:
        x = self.x
        return Sizes(x.shape[0], length, length, x.shape[2], x.dtype, x.device, self.interface.batch_first)


def _tail(make: Maker, at: Sizes, longer: Sizes, first: int, last: int) -> Any:
    """A value for `last` tokens, cut to those from `first` on, along the dimension that grows with their number.

    A bias [..., 1, K], as of ALiBi, is that of the keys, and a step attends to all of them.
    """

    def cut(a: Any, b: Any) -> Any:
        if isinstance(a, (tuple, list)):
            return type(a)(cut(x, y) for x, y in zip(a, b, strict=True))
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            for dim, (n, m) in enumerate(zip(a.shape, b.shape, strict=True)):
                if (n, m) == (last, last + 1):
                    of_keys = a.ndim > 2 and dim == a.ndim - 1 and a.is_floating_point()
                    return a if of_keys else a.narrow(dim, first, last - first)
        elif isinstance(a, int) and (a, b) == (last, last + 1):
            return last - first
        return a

    return cut(make(at), make(longer))


class Session:
    """One sequence being decoded. `feed` passes the next tokens and keeps what the next call needs.

    That is the cache that a call returns, if `pick` says where it is; or the one that `make` made, which the calls
    fill; or else what the module keeps itself.
    """

    def __init__(
        self, steps: Steps, make: Callable[[], Any] | None = None, pick: Callable[[Any], Any] | None = None
    ) -> None:
        self.make, self.pick, self.steps = make, pick, copy.copy(steps)
        self.handed = make is not None or pick is not None  # then not using it is a mistake
        if not self.handed:  # its module keeps the state of each session
            self.steps.interface = steps.interface.on(copied(steps.interface.module))
        self._of = steps
        self.cache = None if make is None else make()
        began = "" if make is None else f"{steps.caches[0]}={type(self.cache).__name__}()"
        returned = "" if pick is None else Sentence("{caches} as returned").format(caches=", ".join(steps.caches))
        own = (
            ""
            if self.handed
            else Sentence("its own cache, {names}").format(names=", ".join([*steps.starts, *steps.flags]))
        )
        self.how = ", then ".join(filter(None, (began, returned, own)))

    @property
    def is_kept(self) -> bool:
        """Whether it may be keys and values, and no weights of a step that saw itself alone."""
        parts = self.cache if isinstance(self.cache, (tuple, list)) else (self.cache,)
        return self.pick is None or not any(isinstance(x, Tensor) and x.shape[-1:] == (1,) for x in parts)

    def feed(self, first: int, last: int) -> Tensor:
        """Return the outputs of the tokens at positions first … last - 1."""
        out, raw = self.steps.call(first, last, {**self._options(), **self.steps.started(first, last)})
        if out.shape[:2] != (len(self.steps.x), last - first):
            raise ValueError(f"{list(out.shape)} for {last - first} tokens")
        if self.pick is not None:
            self.cache = self.pick(raw)
        elif isinstance(self.cache, (dict, list)) and not self.cache:
            raise ValueError("nothing was stored in it")
        return out

    def _options(self) -> dict[str, Any]:
        found, names = dict.fromkeys(self.steps.flags, True), self.steps.caches
        if self.cache is None:
            return found
        if self.pick is not None and isinstance(self.cache, (tuple, list)) and len(self.cache) == len(names) > 1:
            return {**found, **dict(zip(names, self.cache, strict=True))}
        return {**found, names[0]: self.cache}

    def anew(self) -> Session:
        return Session(self._of, self.make, self.pick)


def sessions(steps: Steps) -> Iterator[Session]:
    """Every way that may fit, the most likely first."""
    yield from _with(steps)
    if steps.starts:
        steps = copy.copy(steps)
        steps.listed = True
        yield from _with(steps)


def _with(steps: Steps) -> Iterator[Session]:
    if steps.caches:
        picks = list(_picks(_returned(steps, {})))
        yield from (Session(steps, pick=pick) for pick in picks)
        makers = list(_empty_caches(steps))
        yield from (Session(steps, make) for make in makers)
        if not picks:  # without a cache it returns none
            for make in makers:
                raw = _returned(steps, {steps.caches[0]: make()})
                yield from (Session(steps, make, pick) for pick in _picks(raw))
    if steps.starts or steps.flags:
        yield Session(steps)


def _returned(steps: Steps, options: dict[str, Any]) -> Any:
    """What a call with the first two tokens returns; None if it raises: it takes another kind of cache."""
    try:
        return steps.call(0, 2, {**dict.fromkeys(steps.flags, True), **steps.started(0, 2), **options})[1]
    except Exception:
        return None


def _picks(raw: Any) -> Iterator[Callable[[Any], Any]]:
    """Where in the returned value the cache may be: any part but the first that holds tensors of three dimensions."""
    if isinstance(raw, Mapping):
        yield from (operator.itemgetter(key) for key, part in raw.items() if _holds_cache(part))
    elif isinstance(raw, (tuple, list)):
        yield from (operator.itemgetter(i) for i, part in enumerate(raw) if i and _holds_cache(part))
        if len(raw) == 3 and all(isinstance(x, Tensor) for x in raw):
            yield operator.itemgetter(slice(1, None))
    elif dataclasses.is_dataclass(raw) and not isinstance(raw, type):
        held = (field.name for field in dataclasses.fields(raw) if _holds_cache(getattr(raw, field.name)))
        yield from map(operator.attrgetter, held)


def _holds_cache(part: Any) -> bool:
    return any(x.ndim >= 3 for x in _held(part))


def _held(part: Any) -> Iterator[Tensor]:
    """The tensors in a cache: in its lists, dicts and objects."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, (tuple, list)):
        yield from (x for inner in part for x in _held(inner))
    elif isinstance(part, Mapping) or hasattr(part, "__dict__"):
        values = part if isinstance(part, Mapping) else vars(part)
        yield from (x for inner in values.values() for x in _held(inner))


def _empty_caches(steps: Steps) -> Iterator[Callable[[], Any]]:
    """Makers of an empty cache, the most likely first.

    A copy of what the example gives, the class in forward's annotation (transformers' own for its layers), the classes
    in the module's file that are called caches, what its methods make, a dict, a list.
    """
    module, name = steps.interface.module, steps.caches[0]
    given = steps.example.get(name)
    if given is not None and not any(bool(x.any()) for x in _held(given)):
        yield lambda: copy.deepcopy(given)
    try:
        hints = typing.get_type_hints(type(module).forward)
    except Exception:
        hints = {}
    hint = hints.get(name)
    for kind in (hint, *typing.get_args(hint)):
        if inspect.isclass(kind) and kind not in (type(None), Tensor, tuple):
            of_transformers = kind.__module__.startswith("transformers.")
            yield from _built(sys.modules["transformers"].DynamicCache if of_transformers else kind, steps)
    around = getattr(inspect.unwrap(type(module).forward), "__globals__", {})  # the names of the module's own file
    for called, kind in list(around.items()):
        if inspect.isclass(kind) and "cache" in called.lower() and not issubclass(kind, (nn.Module, tuple)):
            yield from _built(kind, steps)
    for method in dir(type(module)):
        if method.lower().startswith(_MAKES) and "cache" in method.lower():
            yield from _built(getattr(module, method), steps)
    yield dict
    yield list


def _built(kind: Callable[..., Any], steps: Steps) -> Iterator[Callable[[], Any]]:
    """Calls of a class or a method that makes a cache, if the values of its arguments are known."""
    try:
        named = inspect.signature(kind).parameters.values()
        needed = (p for p in named if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        values = {p.name: _size(p.name.lower(), steps) for p in needed}
        if kind(**values) is None:
            return
    except Exception:  # it needs something else
        return
    yield lambda: kind(**values)


def _size(name: str, steps: Steps) -> int:
    """The size that an argument of this name has. KeyError if its name says nothing."""
    face = steps.interface
    if "batch" in name or name in ("b", "bs", "bsz"):
        return len(steps.x)
    if name.endswith(("layer", "layers")) or "depth" in name:  # as stated, or the length of the longest list of parts
        stated = sizes.find(face.module, ["num_layers", "n_layers", "n_layer", "num_hidden_layers", "depth"])
        return max([1, *stated, *(len(x) for x in face.module.modules() if isinstance(x, nn.ModuleList))])
    if name.endswith(("head", "heads")) or "groups" in name:
        return face.kv_heads or face.heads or 1
    if "head_dim" in name or "headdim" in name or "head_size" in name or name in ("d_k", "dk", "dim"):
        return sizes.head_dims(face.module)[0]
    if any(word in name for word in ("len", "size", "capacity", "positions", "tokens", "seq")):
        return steps.x.shape[1]
    raise KeyError(name)
