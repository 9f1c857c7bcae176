"""Find by trial what a mask argument means: with which dtype, shape and polarity forbidden keys have no effect.

One call shows which of two sets of keys a mask allows: the marked keys and the others are changed in turn, and the
queries that were not changed are examined. So the same calls distinguish a form from its opposite.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.calling import claims, names, sizes
from headwise.doctor.calling.forward_arguments import Sizes
from headwise.doctor.calling.mask_input import Form, MaskInput
from headwise.doctor.calling.signature import Parameter
from headwise.doctor.calling.trial import KEYS, QUERIES, Trial
from headwise.doctor.calling.way import Inputs, Way, noise
from headwise.doctor.limits import out_of_memory
from headwise.errors import shortened

_FAR = -1e3  # what is added to hide a key
_EXACT = 1e-6  # a smaller relative change of the output counts as none
_CELLS = ("B1QK", "BQK", "BHQK", "(BH)QK", "QK", "HQK")
_KEYS = ("BK", "B1K", "B11K", "K", "KB")
_BY_CHANCE = ("BHQK", "HQK")  # of cells: shapes that may run by chance where [B, K] is meant


class MaskTrial:
    """The masks of a module that can be called."""

    def __init__(self, trial: Trial, way: Way, length: int | None, same: bool) -> None:
        self.trial = trial
        self.way = way
        self.heads = trial.spec.heads or sizes.heads(trial.module) or 1
        batch = trial.sizes(way)[0]
        queries = length or QUERIES
        keys = queries if way.takes == "self" or same else KEYS
        self.inputs = trial.inputs(way, batch, queries, keys, seed=3)
        self.shape = trial.run(way, self.inputs).output.shape
        self.rows = self.shape[1]  # of the mask: in a Perceiver not the number of queries
        self.errors: dict[str, str] = {}  # argument -> the error of the first value that it refused

    def find(self) -> tuple[Way, tuple[MaskInput, ...], dict[str, str]]:
        """The way to call, with a permissive mask if one is required; every mask argument and its meaning; and the
        error of each that takes no mask.
        """
        found: list[MaskInput] = []
        masks = [p for p in self.trial.parameters if p.role in ("mask", "padding", "lengths")]
        for p in masks:
            passed = self.trial.given.of(p.name)
            if p.name in self.trial.spec.arguments or self._of_what_is_not_given(p) or _kinds(passed) == "three":
                continue  # a mask of two kinds of tokens would say something else
            mine = self.of(p)
            found += mine
            given = dict(self.way.extras).get(p.name)
            as_in_example = bool(mine) and not mine[0].works and passed is not None
            if mine and given is not None and given(self.way.sizes(self.inputs)) is not None and not as_in_example:
                self.way = self._passing(mine[0])
        order = {p.name: i for i, p in enumerate(sorted(masks, key=lambda p: p.role != "mask"))}
        memory = dict(self.way.slots).get("memory")
        optional = any(p.name == memory and not p.required for p in self.trial.parameters)
        if optional and any(m.works for m in found):
            found = [m for m in found if m.works]  # masks of self-attention have no effect here
        found.sort(key=lambda m: (not m.works, m.own, order[m.parameter]))
        taken = {m.parameter for m in found}
        errors = {p.name: self.errors[p.name] for p in masks if p.name in self.errors.keys() - taken}
        return self.way, tuple(found), {} if self.way.extras else errors

    def _passing(self, mask: MaskInput) -> Way:
        """The way to call, with a mask that allows everything if the module requires one."""
        rows = None if self.rows == self.inputs.query.shape[1] else self.rows

        def make(at: Sizes) -> Tensor:
            keys = at.queries if mask.own else at.keys
            shape = (at.batch, rows or at.queries, keys) if mask.what == "cells" else (at.batch, keys)
            return mask.value(torch.ones(shape, dtype=torch.bool, device=at.device), self.heads, at.dtype)

        extras = tuple((name, make if name == mask.parameter else maker) for name, maker in self.way.extras)
        return dataclasses.replace(self.way, extras=extras)

    def _of_what_is_not_given(self, p: Parameter) -> bool:
        """Whether it masks a memory, or another input, that this way of calling leaves out."""
        if self.way.takes != "self":
            return False
        taken, known = {name for _, name in self.way.slots}, self.trial.given
        left = [x for x in self.trial.parameters if x.role in ("query", "memory", "unknown") and x.name not in taken]
        left = [x for x in left if not x.required or (known.values and known.of(x.name) is None)]
        of_memory = names.about_memory(p.name) and any(x.role == "memory" for x in left)
        return bool(of_memory) or any(names.about(p.name, x.name) for x in left)

    def of(self, p: Parameter) -> list[MaskInput]:
        """The forms that one argument takes, best first; if none blocks exactly, the best one with works=False."""
        outcomes = self._lengths(p) if p.role == "lengths" else self._outcomes(p)
        claim, claimed = ("", None) if p.role == "lengths" else self._claim(p)  # a number of keys has no polarity
        kept = [o for o in outcomes if o.works]
        if not kept and outcomes:
            kept = [self._best(p, outcomes, claimed)]
        if claimed in ("allowed", "forbidden") and any(o.form != "additive" for o in kept):
            kept = [o for o in kept if o.form != "additive"]
        if kept and _kinds(self.trial.given.of(p.name)) == "added" and all(o.form == "additive" for o in kept):
            claimed = "additive"  # so its model passes it: what is said is of another form, which it takes too
        return [dataclasses.replace(o, claim=claim, claimed=claimed) for o in kept]

    def _claim(self, p: Parameter) -> tuple[str, Form | None]:
        """What the module says of this mask, or else a part to which it may be passed on; or else what Keras says."""
        others = [x for x in self.trial.parameters if x.name != p.name]
        sole = not any(x.role in ("mask", "padding") for x in others)
        text = claims.text_of(self.trial.module)
        claim, claimed = claims.of_mask(p.name, p.annotation, text, sole=sole, others=[x.name for x in others])
        if claimed is None:
            taking = (x for x in self.trial.module.modules() if p.name in inspect.signature(x.forward).parameters)
            said = (claims.of_mask(p.name, "", claims.text_of(part), sole=False) for part in taking)
            claim, claimed = next((x for x in said if x[1] is not None), (claim, claimed))
        if claimed is None and self.way.takes == "self":
            return claims.by_keras(p.name, self.trial.module)
        return claim, claimed

    def _best(self, p: Parameter, outcomes: list[MaskInput], claimed: Form | None) -> MaskInput:
        """If no form blocks: the one that leaks least, or the stated one if all leak alike."""
        passed: Form | None = "additive" if _kinds(self.trial.given.of(p.name)) == "added" else None
        likely: Form = self._stated(p) or passed or claimed or ("forbidden" if p.role == "padding" else "allowed")

        def rank(o: MaskInput) -> tuple[Any, ...]:
            alike = o.what == "keys" or self.rows == 1  # [Q, K] of one query
            odd = (alike and "B" not in o.shape, o.own and names.about_memory(p.name) is not False)
            other = (o.what == "keys") != (p.role == "padding")
            return (*odd, _grade(o.leak), (o.form == "additive") != (likely == "additive"), other)

        best = min(outcomes, key=rank)  # of equals the one that was tried first
        if _grade(best.leak) == 0 and best.form != "additive" and likely != "additive":
            best = dataclasses.replace(best, form=likely)
        return best

    def _stated(self, p: Parameter) -> Form | None:
        return self.trial.spec.padding if p.role == "padding" else self.trial.spec.mask

    def _shapes(self, p: Parameter) -> list[str]:
        """The shapes to try, the likely ones first."""
        spec, passed = self.trial.spec, self.trial.given.of(p.name)
        if stated := (spec.padding_shape if p.role == "padding" else spec.mask_shape):
            return [stated]
        certain = [shape for shape in _CELLS if shape not in _BY_CHANCE and (self.rows > 1 or shape != "QK")]
        keys = [x for x in _KEYS if x != "K"]  # which runs by chance where cells are meant
        cells = [*certain, *keys, *(x for x in _CELLS if x not in certain)]
        shapes = [*_KEYS, *_CELLS] if p.role == "padding" else cells
        if isinstance(passed, Tensor) and passed.ndim > 1:
            shapes = [s for s in shapes if len(s.replace("(BH)", "B")) == passed.ndim] or shapes
        return [s for s in shapes if "B" not in s] if self.way.layout == "NM" else shapes

    def _outcomes(self, p: Parameter) -> list[MaskInput]:
        """What trials show, until a shape of the memory's keys works, or else of the queries' own tokens."""
        form = self._stated(p)
        found: list[MaskInput] = []
        for own in (False, True) if self.way.takes != "self" else (False,):
            shapes = [shape.replace("K", "Q") if own else shape for shape in self._shapes(p)]
            found += self._in_forms(p, shapes, form, own)
            if any(o.works for o in found):
                break
        if form is None:
            return found
        # A stated form is taken literally: if the trial shows the opposite, it does not work as stated.
        return [o if o.form == form else dataclasses.replace(o, form=form, works=False, leak=1.0) for o in found]

    def _in_forms(self, p: Parameter, shapes: list[str], form: Form | None, own: bool) -> list[MaskInput]:
        """Trials with True and False; with 0 and 1, if a module takes no such mask; and with numbers that are added."""
        found: list[MaskInput] = []
        for added, dtype in ((False, torch.bool), (False, torch.int64), (False, torch.float32), (True, torch.float32)):
            if form not in (None, "additive") if added else (found or form == "additive"):
                continue
            for shape in shapes:
                outcomes = self._try(p, shape, "additive" if added else "allowed", dtype, own)
                found += outcomes
                if "B" in shape and any(o.works for o in outcomes):
                    shapes = [shape]
                    break
        return found

    def _try(self, p: Parameter, shape: str, form: Form, dtype: torch.dtype, own: bool) -> list[MaskInput]:
        keys = self.inputs.query.shape[1] if own or self.inputs.key is None else self.inputs.key.shape[1]
        what = "cells" if shape.endswith(("QK", "QQ")) else "keys"
        if what == "cells" and shape.startswith(("HQ", "BHQ", "(BH)")) and self.heads == 1 and shape != "BHQK":
            return []
        found: list[MaskInput] = []
        for flipped in (False, True):
            marked = _pattern(self.inputs.query.shape[0], keys, "B" in shape, self.inputs.query.device) ^ flipped
            rows = self.inputs.query.shape[1] if own else self.rows
            allowed = marked[:, None].expand(-1, rows, -1) if what == "cells" else marked
            made = MaskInput(p.name, what, form, dtype, shape, True)  # type: ignore[arg-type]
            value = made.value(allowed, self.heads, self.trial.dtype)
            seen = self._influence(p.name, value, marked, own)
            if seen is None:
                return found
            of_marked, of_others = seen
            if math.isnan(of_marked) and math.isnan(of_others):
                continue
            outcome = _judged(made, of_marked, of_others)
            found.append(outcome)
            if outcome.works or form == "additive" or not (math.isnan(of_marked) or math.isnan(of_others)):
                break
        return found

    def _influence(self, name: str, value: Any, marked: Tensor, own: bool) -> tuple[float, float] | None:
        """How much the marked keys and the others affect unchanged queries; None if the call fails."""
        try:
            base = self.trial.run(self.way, self.inputs, {name: value}).output
            if base.shape != self.shape:
                return None  # broadcast to something else
            changes = []
            sets = [_but_last(marked), _but_last(~marked)]
            for chosen in sets:
                other = self.trial.run(self.way, self._changed(chosen, own), {name: value}).output
                changes.append((other - base).abs().amax(-1).double())
        except Exception as error:
            if out_of_memory(error):
                raise
            self.errors.setdefault(name, f"{type(error).__name__}: {shortened(' '.join(str(error).split()), 200)}")
            return None
        scale = float(base[base.isfinite()].abs().max()) if bool(base.isfinite().any()) else math.nan
        sums = []
        for chosen, change in zip(sets, changes, strict=True):
            if (own or self.inputs.key is None) and change.shape == chosen.shape:
                change = change[~chosen]
            change = change[change.isfinite()]
            sums.append(float(change.max()) / max(scale, 1e-12) if change.numel() else math.nan)
        return sums[0], sums[1]

    def _changed(self, chosen: Tensor, own: bool) -> Inputs:
        """The inputs with the chosen keys (and values) changed."""

        def change(x: Tensor, seed: int) -> Tensor:
            new = noise(*x.shape, seed=seed, dtype=x.dtype, device=x.device)
            return torch.where(chosen[..., None], new, x)

        at = self.inputs
        if own or at.key is None:
            return Inputs(change(at.query, 11), at.key, at.value)
        return Inputs(at.query, change(at.key, 12), None if at.value is None else change(at.value, 13))

    def _lengths(self, p: Parameter) -> list[MaskInput]:
        """The effect of lengths, [B]: the number of real keys, from the first, or their share of all keys."""
        batch, keys = (self.inputs.query if self.inputs.key is None else self.inputs.key).shape[:2]
        count = torch.tensor([keys - 1 - (i + 1) % 3 for i in range(batch)], device=self.inputs.query.device)
        marked = torch.arange(keys, device=count.device) < count[:, None]
        found: list[MaskInput] = []
        for given in (count, count / keys):
            seen = self._influence(p.name, given, marked, False)
            if seen is not None:
                outcome = _judged(MaskInput(p.name, "keys", "allowed", given.dtype, "B", True), *seen)
                works = outcome.works and outcome.form == "allowed"
                found.append(dataclasses.replace(outcome, form="allowed", works=works))
        return [x for x in found if x.works][:1] or found[:1]


def _judged(tried: MaskInput, of_marked: float, of_others: float) -> MaskInput:
    """The mask as the trial shows it: in the form that was tried, or in the opposite one."""
    allowed, forbidden = (0.0 if math.isnan(x) else x for x in (of_marked, of_others))
    form = tried.form
    if form != "additive" and forbidden > allowed:
        form, allowed, forbidden = "forbidden", forbidden, allowed
    works = forbidden <= _EXACT < allowed
    return dataclasses.replace(tried, form=form, works=works, leak=forbidden / max(allowed, 1e-12))


def _kinds(value: Any) -> str:
    """What a mask that a real call passes holds: "added" if 0 and numbers far below it; "three" if numbers below and
    above 0 (Longformer: padding, and global tokens); else "".
    """
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
        return ""
    least, most = float(value.min()), float(value.max())
    return "three" if least < 0 < most else "added" if most <= 0 and least < _FAR else ""


def _grade(leak: float) -> int:
    """How little leaks, in steps: a mask that leaks a tenth says more about its meaning than one that leaks all."""
    return -min(round(-math.log10(max(leak, 1e-9))), 9) if leak < 0.2 else 0


def _pattern(batch: int, keys: int, by_example: bool, device: torch.device) -> Tensor:
    """Which keys are marked, [B, K]: the first is, others alternate, and each example differs."""
    at = torch.arange(keys, device=device)
    rows = [at % 2 == 0, at % 3 != 1, (at % 4 == 0) | (at % 4 == 3)]
    return torch.stack([rows[b % 3 if by_example else 0] for b in range(batch)])


def _but_last(chosen: Tensor) -> Tensor:
    """All chosen keys of each row except the last, so that this token stays unchanged."""
    after = chosen.flip(-1).cumsum(-1).flip(-1)
    return chosen & (after > 1)
