"""How an attention module is called: found from names first and then by trial, so that nobody has to write an adapter.

interface = discover(module)
inputs = interface.inputs()
output = interface.run(inputs, padding=real).output
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.doctor.calling import claims, sizes, token_ids
from headwise.doctor.calling.copying import at_rest, copied
from headwise.doctor.calling.mask_input import Form, MaskInput
from headwise.doctor.calling.mask_trial import MaskTrial
from headwise.doctor.calling.search import search
from headwise.doctor.calling.settle import lengths, settle
from headwise.doctor.calling.spec import Spec
from headwise.doctor.calling.trial import KEYS, QUERIES, Trial, undisturbed
from headwise.doctor.calling.way import LAYOUTS, Inputs, OutputProblem, Result, Way, home, noise
from headwise.doctor.limits import out_of_memory
from headwise.errors import DoctorError, shortened
from headwise.language import Sentence, join

__all__ = ["Form", "Inputs", "Interface", "MaskInput", "Result", "Spec", "copied", "discover"]


@dataclasses.dataclass(frozen=True)
class Interface:
    """How a module is called."""

    module: nn.Module
    way: Way
    takes: Literal["self", "memory", "qkv"]
    roles: dict[str, str]  # argument of forward -> role
    batch_first: bool
    batched: bool  # False: it takes [N, M]
    width: int
    key_width: int
    value_width: int
    heads: int | None
    kv_heads: int | None
    masks: tuple[MaskInput, ...]  # best first
    causal_claim: str  # why it should be causal, or ""
    flags: dict[str, bool]
    also: tuple[str, ...] = ()  # other ways in which it can be called: discover(..., spec=Spec(takes=...))
    length: int | None = None  # the only length that works
    same_length: bool = False  # it requires as many keys as queries
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)  # a mask -> the error that each value raised

    @functools.cached_property
    def batch(self) -> int:
        """The number of examples in a call."""
        return sizes.batch(self.module)

    def inputs(
        self,
        batch: int | None = None,
        length: int | None = None,
        key_length: int | None = None,
        *,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Inputs:
        """N(0, 1) for query, key and value, as far as the module takes them.

        Args:
            batch: B; None = a number that is no size of the module.
            length: Q; None = 5, or the only length that works.
            key_length: K; None = 7 if the number of keys may differ from that of the queries, else Q.
            dtype, device: None = those of the module's parameters.
        """
        usual, at_home = home(self.module)
        batch = self.batch if batch is None else batch
        length = length or self.length or QUERIES
        if key_length is None:
            key_length = length if self.takes == "self" or self.same_length else max(KEYS, length + 2)
        return self.way.inputs(batch, length, key_length, seed=3 * seed, dtype=dtype or usual, device=device or at_home)

    def run(
        self,
        inputs: Inputs,
        *,
        allowed: Tensor | None = None,
        padding: Tensor | None = None,
        grad: bool = False,
        given: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> Result:
        """One call of the module, in its current mode.

        Args:
            allowed: bool [B, Q, K] or [Q, K], True = may attend.
            padding: bool [B, K], True = a real token.
            grad: whether autograd records the call.
            given: arguments of forward by name, which may also be called "padding", "allowed" or the like.
            arguments: more of them.

        Raises:
            DoctorError: no mask argument can express this mask, or the call returned no output. Other errors are the
                module's own.
        """
        arguments = {**arguments, **(given or {})}
        if self.batched:
            return self._once(inputs, allowed, padding, grad, arguments)
        results = []
        for i in range(inputs.query.shape[0]):  # one example at a time
            one = inputs.each(operator.itemgetter(slice(i, i + 1)))
            cells = allowed[i : i + 1] if allowed is not None and allowed.ndim == 3 else allowed
            results.append(self._once(one, cells, None if padding is None else padding[i : i + 1], grad, arguments))
        weights = [r.weights for r in results]
        together = torch.stack(weights) if all(w is not None for w in weights) else None  # type: ignore[arg-type]
        return Result(torch.cat([r.output for r in results]), together, [r.raw for r in results])

    def _once(
        self, inputs: Inputs, allowed: Tensor | None, padding: Tensor | None, grad: bool, arguments: dict[str, Any]
    ) -> Result:
        given = {**self.mask_arguments(inputs, allowed=allowed, padding=padding), **arguments}
        with torch.set_grad_enabled(grad):
            raw = self.way.call(self.module, inputs, given)
        try:
            return self.way.read(raw, inputs)
        except OutputProblem as problem:
            raise DoctorError(
                f"{type(self.module).__name__} returned no output of the expected shape for inputs "
                f"{list(inputs.query.shape)}. Received: {problem}"
            ) from None

    def mask_arguments(
        self, inputs: Inputs, *, allowed: Tensor | None = None, padding: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The module's mask arguments that express this mask."""
        (batch, queries), keys = inputs.query.shape[:2], inputs.key_length
        given: dict[str, Tensor] = {}
        if padding is not None:
            padding = padding.expand(batch, keys)
            taken = self._first([m for m in self.masks if m.what == "keys" and not m.own], padding, inputs)
            if taken is not None:
                given[taken[0]] = taken[1]
            else:
                cells = padding[:, None].expand(batch, queries, keys)
                allowed = cells if allowed is None else allowed.expand(batch, queries, keys) & cells
        if allowed is not None:
            cells = allowed.expand(batch, *allowed.shape[-2:])
            takers = [m for m in self.masks if m.what == "cells" and not m.own and m.parameter not in given]
            taken = self._first(takers, cells, inputs)
            if taken is None:
                raise DoctorError(
                    f"{type(self.module).__name__} has no mask argument that can express "
                    f"{'which keys of each example are real' if padding is not None else 'which cells are allowed'}. "
                    f"Its mask arguments: {', '.join(m.describe() for m in self.masks) or 'none'}"
                )
            given[taken[0]] = taken[1]
        return given

    def _first(self, masks: list[MaskInput], allowed: Tensor, inputs: Inputs) -> tuple[str, Tensor] | None:
        """The first of some masks that can express this one, those of each example first; None if there is none."""
        fitting = [m for m in sorted(masks, key=lambda m: (not m.works, not m.by_example)) if m.fits(allowed)]
        return next(((m.parameter, m.value(allowed, self.way.heads, inputs.query.dtype)) for m in fitting), None)

    @functools.cached_property
    def drawn(self) -> str:
        """The causal mask that a plain call draws, although no option is set against it; or ""."""
        switch = claims.causal_option(self.module, self.flags)
        if switch is not None and not switch[1]:
            return ""
        twin = self.on(copied(self.module))
        inputs = twin.inputs()
        queries = inputs.query.shape[1]
        lengths = {"self": None, "memory": (queries, queries), "qkv": (queries, inputs.key_length)}[self.takes]
        return claims.drawn_mask(lambda: twin.run(inputs), lengths)

    def on(self, module: nn.Module) -> Interface:
        """The same interface for another module of the same class, such as a copy."""
        return dataclasses.replace(self, module=module)

    def describe(self, *, heads: bool = True) -> list[str]:
        """Lines for the report: how it is called, its masks and, unless they are known elsewhere, its heads."""
        called = {"self": "one input", "memory": "a query and a memory", "qkv": "query, key and value"}[self.takes]
        inputs = [name for _, name in self.way.slots if not name[0].isdigit() and "." not in name]
        names = list(dict.fromkeys([*inputs, *(m.parameter for m in self.masks)]))
        layout = LAYOUTS[self.way.layout]
        if token_ids.is_on_embeddings(self.module):
            layout = Sentence("embeddings {layout} of its ids").format(layout=layout)
        lines: list[str] = [
            Sentence("forward({names}): {called}, {layout}").format(
                names=", ".join(names) or "*args", called=called, layout=layout
            )
        ]
        seen: set[str] = set()
        for mask in self.masks:
            if mask.parameter not in seen:
                lacks = "" if mask.works else " (it does not block what it should)"
                lines.append(Sentence("mask: {mask}{lacks}").format(mask=mask.describe(), lacks=lacks))
                seen.add(mask.parameter)
        if heads:
            lines.append(self._describe_heads())
        if self.causal_claim:
            lines.append(Sentence("causal by itself: {causal_claim}").format(causal_claim=self.causal_claim))
        return lines

    def _describe_heads(self) -> str:
        told = [Sentence("width {width}").format(width=self.width)]
        if (self.key_width, self.value_width) != (self.width, self.width) and self.takes != "self":
            told.append(Sentence("keys {width}").format(width=self.key_width))
            if self.takes == "qkv":
                told.append(Sentence("values {width}").format(width=self.value_width))
        told.append(
            Sentence("{heads} heads").format(heads=self.heads) if self.heads else Sentence("number of heads unknown")
        )
        if self.kv_heads and self.kv_heads != self.heads:
            told.append(Sentence("{heads} of keys and values").format(heads=self.kv_heads))
        return join(told)


def discover(
    module: nn.Module,
    *,
    spec: Spec | None = None,
    example: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
) -> Interface:
    """Find out how a module is called. Its state, its mode and the random state are not changed.

    Args:
        spec: facts stated by hand; the rest is found out.
        example: (args, kwargs) of a call that worked, as a template for arguments that cannot be invented.

    Raises:
        DoctorError: no way to call it was found; the message quotes the module's error.
    """
    spec = spec or Spec()
    with undisturbed(module):
        plain = getattr(module, "_orig_mod", module)  # otherwise torch.compile would compile each trial
        trial = Trial(at_rest(plain), spec, example)
        way = settle(trial, search(trial))
        length, same = lengths(trial, way)
        if length and same and way.lengths[1] != length:  # one number of each: packed documents of an example
            way, same = dataclasses.replace(way, keys=way.lengths[1]), False
        heads = spec.heads or sizes.heads(module)
        if heads and way.layout in ("BNM", "NBM", "NM", "1NM"):
            way = dataclasses.replace(way, heads=heads)
        way, masks, refused = _masks(trial, way, length, same)
        also = _also(trial, way)
        _build(module, trial, way)
    flags = {p.name: p.default for p in trial.parameters if isinstance(p.default, bool)}
    roles = {p.name: p.role for p in trial.parameters}
    roles.update({name: role for role, name in way.slots if name in roles})
    q, k, v = way.widths
    found = Interface(
        module=module,
        way=way,
        takes=way.takes,  # type: ignore[arg-type]
        roles=roles,
        batch_first=way.batch_first,
        batched=not way.alone,
        width=q,
        key_width=k,
        value_width=v,
        heads=heads,
        kv_heads=spec.kv_heads or sizes.kv_heads(module),
        masks=masks,
        causal_claim="",
        flags=flags,
        also=also,
        length=length,
        same_length=same,
        refused=refused,
    )
    with undisturbed(module):
        required = {p.name for p in trial.parameters if p.required}
        return dataclasses.replace(found, causal_claim=_causality(found, spec, required))


def _masks(trial: Trial, way: Way, length: int | None, same: bool) -> tuple[Way, tuple[MaskInput, ...], dict[str, str]]:
    try:
        found = MaskTrial(trial, way, length, same)
    except DoctorError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        said = f"{type(error).__name__}: {shortened(str(error), 200)}"
        raise DoctorError(
            f"{type(trial.module).__name__}.forward ran once; a second call, with three examples, raised {said}. A "
            "cache or another argument of the example may fit one call only"
        ) from error
    return found.find()


def _causality(found: Interface, spec: Spec, required: set[str]) -> str:
    if spec.causal is not None:
        return "stated" if spec.causal else ""
    cells = {m.parameter for m in found.masks if m.what == "cells"}
    said = claims.causal_claim(found.module, found.flags, given=bool(required & cells))
    return said or ("" if cells else found.drawn)


def _build(module: nn.Module, trial: Trial, way: Way) -> None:
    """Make the first call of a module that creates its parameters then (lazy layers, Keras)."""
    lazy = any(torch.nn.parameter.is_lazy(p) for p in module.parameters()) or getattr(module, "built", True) is False
    if lazy:
        modes = {part: part.training for part in module.modules()}
        way.call(module.eval(), trial.inputs(way, *trial.sizes(way)), {})
        for part in module.modules():
            part.training = modes.get(part, module.training)


def _also(trial: Trial, way: Way) -> tuple[str, ...]:
    """Other ways to call it, with or without its optional inputs."""
    optional = {p.name: p for p in trial.parameters if not p.required}
    query = tuple(slot for slot in way.slots if slot[0] == "query")
    others: list[tuple[str, tuple[tuple[str, str], ...], int]] = []
    if way.takes != "self" and all(name in optional for role, name in way.slots if role != "query"):
        others.append(("self", query, QUERIES))
    memories = [p.name for p in trial.parameters if p.role in ("memory", "key") and p.name not in dict(way.extras)]
    if way.takes == "self" and memories and memories[0] in optional:
        others.append(("memory", (*query, ("memory", memories[0])), KEYS))
    works = []
    for takes, slots, keys in others:
        other = dataclasses.replace(way, takes=takes, slots=slots, output_at=None, weights_at=None)
        if not isinstance(trial.attempt(other, trial.sizes(way)[0], QUERIES, keys), str):
            works.append(takes)
    return tuple(works)


def other_memories(interface: Interface, spec: Spec) -> Iterator[tuple[str, Spec]]:
    """Arguments that a call may leave out, of which a trial shows that they take sequences [B, N, M], and how to call
    the module with each of them as its memory. The usual memory then holds the same numbers in every call.
    """
    way, inputs = interface.way, interface.inputs()
    taken = {name for _, name in way.slots} | {name for name, _ in way.extras} | {m.parameter for m in interface.masks}
    known = dict(way.slots).get("memory")
    if way.takes not in ("self", "memory") or way.layout != "BNM" or (known is not None and "." in known):
        return
    kinds = ("unknown",) if "memory" in interface.also else ("unknown", "memory")
    for name in (n for n, role in interface.roles.items() if role in kinds and n not in taken):
        x = noise(interface.batch, KEYS, interface.key_width, seed=6, dtype=inputs.query.dtype, device="cpu")
        try:
            one, other = (interface.run(inputs, given={name: y}).output for y in (x, -x))
        except Exception:  # it takes another thing
            continue
        if one.shape == other.shape and not torch.equal(one, other):
            roles = {**spec.roles, name: "memory", **({} if known is None else {known: "other"})}
            arguments = {**spec.arguments, **({} if known is None else {known: inputs.key})}
            yield name, dataclasses.replace(spec, takes="memory", roles=roles, arguments=arguments)
