"""Names, keeps and counts the attention computations of a watched model. `watch` opens a `Watcher` for its model."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.capture.appended import Appended, Keys
from headwise.capture.assembly import Assembly, Recorder
from headwise.capture.entry import Entry, Reserved, State
from headwise.capture.follower import Arrange, Event, Refusal
from headwise.capture.generating import OTHER_KEYS, Generating, find_padding_rows, without_empty_buffer
from headwise.capture.keep import Keeper, Keeping
from headwise.capture.layout import copy_from_buffer, share_heads
from headwise.capture.ledger import Ledger
from headwise.capture.modules import ELSEWHERE
from headwise.capture.parts import Parts
from headwise.capture.sequence import Followed
from headwise.capture.sequence import Sequence as Generation
from headwise.capture.sites import Place, find_kind, in_backward
from headwise.capture.steps import Step
from headwise.errors import HeadwiseError, RecordError
from headwise.records import AttentionRecord, CallSite, Coverage, Site
from headwise.records.names import check_choice, name_stack, select
from headwise.records.rounding import HALF
from headwise.records.site import is_causal
from headwise.records.statistics import compute
from headwise.records.statistics.computed import named
from headwise.records.statistics.lse import compute_normaliser
from headwise.records.statistics.statistic import list_tensors, mapped


class Watcher(Recorder):
    """Follows a model for `watch`, and makes its records and its coverage.

    Args:
        name: the name of the model, for messages.
        parts: the parts (modules or layers) of the model.
        keeping: how each computation is kept.
    """

    def __init__(self, name: str, parts: Parts, keeping: Keeping) -> None:
        self.parts, self.generating = parts, Generating()
        self.needs_values = keeping.values or keeping.gradients
        self.entries: list[Entry] = []
        self.notes: list[str] = []
        self.ledger = Ledger()
        self._name = name
        self._gradients, self._every = keeping.gradients, keeping.every
        self._only = check_choice("*" if keeping.only is None else keeping.only)
        self._keep, self._statistics = keeping.keep, named(keeping.statistics)
        self._keeper = Keeper(keeping)
        self._seen_names: list[str] = []  # the names of the layers seen so far, including layers that `only` leaves out
        self._unsettled: list[tuple[State, Entry]] = []  # records of layers that are not named yet
        self._has_nan = False  # whether an output of the model had NaN
        self._kept: list[str] = []  # the layers that `only` means, or may mean when more are seen
        self._states: dict[tuple[str, int], State] = {}
        self._stacks: Counter[str] = Counter()
        self._followed: Followed | None = None  # how the last self-attention went on; None = it started a sequence
        self._appended = Appended()
        self._assembly = Assembly(self)
        self._lock = threading.RLock()  # jobs of several threads may be followed

    def note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def missed(self, name: str) -> None:
        self.ledger.enter(CallSite(name, "missed", 0, ELSEWHERE))

    def joined(self, out: Tensor, *args: Any, **kwargs: Any) -> None:
        """Note a `torch.cat` of the model, which may have appended new keys to the keys of a cache."""
        self._appended.join(out, *args, **kwargs)

    def attention(self, place: Place, event: Event) -> None:
        """Make a record of an attention that was recognised, or add it to one, if `watch` selects its layer."""
        with self._lock:
            softmax, part, call = event.softmax, event.part, event.call
            if not in_backward():  # where gradient checkpointing runs it again
                self._assembly.begin(place)
            if call is None:
                assert softmax is not None
                assert part is not None
                self._assembly.add(place, softmax, part)
                return
            if self._goes_on(place, call, event.how):
                return
            k, v = (copy_from_buffer(x) for x in share_heads(call.k, call.v))
            out = event.out[0] if isinstance(event.out, tuple) else event.out
            entry = self.found(place, dataclasses.replace(event, call=dataclasses.replace(call, k=k, v=v), out=out))
            if entry is not None:
                self._note_nan(entry.site.name, call, out, event.arrange)
            if entry is not None and self.needs_values:
                event.project(lambda weight: entry.keep("output_weight", self._keeper.convert(weight)))
            if self.generating.run is not None and call.shape[2] == 1:
                self.generating.in_steps = True
            if softmax is not None:
                self.ledger.strike(softmax, place.name)
                if entry is not None:
                    softmax.withdraw.append(functools.partial(self.withdraw, entry))
                    if part is not None:
                        self._assembly.recorded(place, softmax, part, entry)

    def _note_nan(self, name: str, call: AttentionCall, out: Tensor, arrange: Arrange) -> None:
        """Note the first layer in which queries that may attend to no key have NaN: records show weights of 0 there."""
        if self._has_nan or (call.mask is None and call.bias is None) or not bool(out.isnan().any()):
            return
        self._has_nan = True  # later layers have it from their input
        with contextlib.suppress(RuntimeError):  # an output with more dimensions than [B, H, Q, E]
            empty = compute_normaliser(call).lse == -torch.inf
            count = int((arrange(out).isnan().any(-1) & empty).any(1).sum())
            if count:
                self.note(
                    f"{name}: {count:,} queries may attend to no key. The model computes NaN for them, the record has 0"
                )

    def refuse(self, place: Place, refusal: Refusal) -> None:
        """Note a computation that does not become a record, once for each softmax."""
        if in_backward():
            return
        reason, status, where, softmax, queries, name = refusal
        name = name or self.ledger.find_name(softmax)
        if name is None:
            name = self.reserve(place)[0].name if status == "refused" else place.name
        self.ledger.enter(CallSite(name, status, 0, " ".join(reason.split()), where), softmax)
        if queries is not None:
            self._assembly.refuse(place, queries)

    def reserve(self, place: Place) -> Reserved:
        number, run = self.parts.find_number(place), self.parts.find_run(place)
        self.parts.computed(place)
        state = self._states.get((place.name, number))
        if state is None:
            shown = f"{place.name}#{number + 1}" if number else place.name
            stack = name_stack(shown)
            state = self._states[place.name, number] = State(shown, self._stacks[stack])
            self._stacks[stack] += 1
        return state, run

    def reserved(self, entry: Entry) -> Reserved:
        return next(state for state in self._states.values() if state.name == entry.site.name), entry.site.call

    def withdraw(self, entry: Entry) -> None:
        if entry in self.entries:
            self.entries.remove(entry)
        for state in self._states.values():
            if state.generation is entry:
                state.generation = None

    def found(self, place: Place, event: Event, reserved: Reserved | None = None) -> Entry | None:
        call, used = event.call, event.used
        assert call is not None
        if in_backward():  # gradient checkpointing runs it again
            if event.out is not None:
                self._found_again(place, event, call.q)
            return None
        state, run = reserved or self.reserve(place)
        part = event.part
        group = None if part is None else self._assembly.group(place, part.queries, part.heads)
        may_be_piece = group is not None and group.began and not state.named
        if self.generating.drafts or not (may_be_piece or self._wants(state)):
            if group is not None:
                group.left_out = True
            return None
        if group is not None and may_be_piece and group.left_out:
            return None
        state.how = event.how
        cached = self.generating.run is not None or place.has_cache  # otherwise keys of 0 belong to the model
        if cached and call.share is None:
            call, note = without_empty_buffer(call, copy=self.generating.run is not None)
            if note:
                self.note(note)
        causal = _is_causal(call)
        kind = find_kind(place, *call.whole[1:], causal)
        if state.generation is None and run % self._every:
            return None
        step, keys = self._computed(call), self._appended.read(call.k)
        # Whether it may be one of the steps of a sequence.
        steps = not call.q.requires_grad and used is None and call.share is None
        if steps and self._continues(state, step, call, keys, causal, kind == "cross"):
            return None
        if call.q.dtype in HALF:
            self.note(
                f"q and k are {str(call.q.dtype).removeprefix('torch.')}: records compute their scores in float32, the "
                "model may round them. record.rounding_bound() says how far the weights may differ, "
                "record.weights(rounded=True) rounds as eager models do"
            )
        before = state.generation
        fate = self.generating.fate(before, call, self._keeper, cross=kind == "cross")
        if fate == "refused":
            self.ledger.enter(CallSite(state.name, "refused", 0, OTHER_KEYS))
            self._followed = None if kind == "self" else self._followed
            return None
        state.generation = None
        if before is not None and fate == "replaces":
            self._drop(before)
            run = before.site.call
        elif run % self._every:
            return None
        heads, key_heads = call.q.shape[1], call.k.shape[1]
        site = Site(state.name, state.layer, kind, kind == "self" and causal, heads, key_heads, call=run)
        outline = self._keeper.call(call, values=self.needs_values)
        keep = functools.partial(self._keeper.tensor, keep_dtype=True)
        step = Step(call, tuple((each, mapped(keep, answer)) for each, answer in step.computed))
        names = {side: getattr(place.module, side, None) for side in ("row_names", "col_names")}
        kept = Generation(outline, values=self.needs_values, step=step, keys=keys, empty=self._keeper.empty)
        entry = Entry(site, kept, self.needs_values, self._keep, names, self.generating.run, fate == "replaces")
        if not self._keep:
            asked = ", ".join(each.name for each in self._statistics)
            self.note(f"queries and keys were not kept (keep=False), only these statistics: {asked}")
        if used is not None and self._keep:
            entry.extras["used"] = self._keeper.tensor(used)
        if steps:
            state.generation = entry
            if kind == "self":
                self._followed = None
        entry.record()  # made now: it detects changes in place from here on
        self.entries.append(entry)
        if may_be_piece:
            self._unsettled.append((state, entry))
        if self._gradients and event.out is not None:
            self._await_gradient(state, entry, call.q, event)
        return entry

    def settle(self) -> None:
        unsettled, self._unsettled = self._unsettled, []
        for state, entry in unsettled:
            if entry in self.entries:  # a piece that was merged is not, and is no layer
                self._wants(state)  # drops it if it is left out

    def _wants(self, state: State) -> bool:
        """Return whether `only` selects this layer now, or may do so later: the last layer so far may become number -2.

        A new layer may exclude an older one in this way. Records of an excluded layer are dropped.
        """
        if not state.named:
            state.named = True
            self._seen_names.append(state.name)
            self._kept = self._chosen(up_to_last=True)
            left_out = {name for name in self._seen_names if name not in self._kept}
            for entry in [entry for entry in self.entries if entry.site.name in left_out]:
                self._drop(entry)
            for each in self._states.values():
                if each.named and each.name not in self._kept:
                    each.generation, each.waiting = None, []
        return state.name in self._kept

    def _drop(self, entry: Entry) -> None:
        self.entries.remove(entry)
        call, answers = entry.kept.call(), (answer for _, answer in entry.kept.computed())
        kept = (call.q, call.k, call.v, call.bias, *entry.extras.values())
        self._keeper.forget(*kept, *itertools.chain(*map(list_tensors, answers)))

    def _chosen(self, *, up_to_last: bool = False) -> list[str]:
        """Return the layers seen so far that `only` selects. With `up_to_last`, -3 means -3, -2 and -1."""
        only = self._only
        if up_to_last:
            lowest = min((each for each in only if isinstance(each, int)), default=0)
            only = [*only, *range(max(lowest, -len(self._seen_names)), 0)]
        return select(self._seen_names, only)[0]

    def _computed(self, call: AttentionCall) -> Step:
        """Return the call with its requested statistics, computed from its own queries and keys."""
        answers = compute(call.detached(), self._statistics) if self._statistics else {}
        return Step(call, tuple((each, answers[each.name]) for each in self._statistics))

    def _goes_on(self, place: Place, call: AttentionCall, how: str) -> bool:
        """Add a call to its module's generation if it is a usual decoding step; return whether it was added.

        A usual step has one row (query), and its keys are known to be the keys of the last step and one new key
        (appended.py). Then everything that `found` decides about a computation is the same as for the last step.
        """
        state = self._states.get((place.name, self.parts.find_number(place)))
        entry = None if state is None else state.generation
        if state is None or entry is None or entry.site.kind == "cross" or self._statistics or self.generating.drafts:
            return False
        keys = self._appended.read(call.k)
        if keys is None or keys.older is None or keys.older is not entry.kept.last:
            return False
        if call.q.shape[2] != 1 or call.q.requires_grad or in_backward():
            return False
        if self._add(entry, call, Step(call, ()), keys) is None:
            return False
        self.parts.computed(place)
        state.how = how
        return True

    def _continues(
        self, state: State, step: Step, call: AttentionCall, keys: Keys | None, causal: bool, cross: bool
    ) -> bool:
        entry = state.generation
        if entry is None:
            return False
        # The keys of another sequence are the same in every step, and also if the model is called twice with the same
        # input: cross-attention continues only if the model's self-attention continues.
        continued = [] if self._followed is None else [self._followed]
        # (As many queries as keys are a sequence of its own: an encoder reads the same text in each `generate`.)
        maybe_cross = call.q.shape[2] != call.k.shape[2]
        ways: list[Followed | None] = [*continued] if cross else [None, *(continued if maybe_cross else [])]
        outline = self._keeper.step(call)
        for way in ways:
            if self._add(entry, outline, step, keys, way) is not None:
                if not causal:
                    entry.site = dataclasses.replace(entry.site, causal=False)
                return True
        return False

    def _add(
        self, entry: Entry, outline: AttentionCall, step: Step, keys: Keys | None, among: Followed | None = None
    ) -> Followed | None:
        """Add a step to the record of a generation; return how the step continues it, or None if it does not."""
        before, rejects = entry.kept.nbytes, self.generating.run is not None
        followed = entry.kept.extend(outline, among=among, step=step, rejects=rejects, keys=keys)
        if followed is not None:
            entry.built, entry.run = None, self.generating.run
            self._keeper.count(max(0, entry.kept.nbytes - before))
            self._followed = followed if among is None else self._followed
        return followed

    def _await_gradient(self, state: State, entry: Entry, q: Tensor, event: Event) -> None:
        if not event.out.requires_grad:
            state.waiting = [*state.waiting[-7:], (entry, q.detach())]
            return
        arrange = event.arrange  # a hook on the output must not hold the event

        def keep(gradient: Tensor) -> None:
            with torch.no_grad():
                entry.keep("grad", self._keeper.tensor(arrange(gradient)))

        event.out.register_hook(keep)

    def _found_again(self, place: Place, event: Event, queries: Tensor) -> None:
        """Handle the second run of gradient checkpointing: only this run has a graph, so the gradient comes here."""
        for (name, _), state in self._states.items():
            if name == place.name:
                for i, (entry, q) in enumerate(state.waiting):
                    if torch.equal(q, queries) and event.out.requires_grad:
                        del state.waiting[i]
                        self._await_gradient(state, entry, q, event)
                        return

    def generated(self, beams: Tensor | None, batch: int, length: int | None) -> None:
        if beams is not None:
            self._choose_beams(beams, batch)
        elif length is not None:
            self._end_at(length)

    def _choose_beams(self, beams: Tensor, batch: int) -> None:
        """Keep the beams [N, steps] that a beam search has returned; `batch`: the number of beams that it ran."""
        for state, entry in self._generated():
            if entry.kept.shape[0] != batch:  # an encoder runs once for all beams of an example
                continue
            try:
                if entry.recomputed:
                    raise RecordError(
                        "without a cache each step computes all beams again, and those that were returned are not all "
                        "among the last ones. Generate with use_cache=True"
                    )
                call, computed = entry.kept.call(beams), entry.kept.computed(beams)
                entry.kept = Generation(call, values=self.needs_values, step=Step(call, computed))
            except HeadwiseError as error:
                self.ledger.enter(CallSite(state.name, "refused", 0, str(error)))
                self.entries.remove(entry)
            entry.built, state.generation = None, None

    def _end_at(self, length: int) -> None:
        """Remove the rows of tokens that were rejected at the end of a generation whose cache now has this length."""
        made = self._generated()
        found = [(state, entry) for state, entry in made if entry.kept.continued]
        if not found:  # a single pass of the decoder; a pass of an encoder is not causal
            rows = {entry.kept.shape[2] for _, entry in made if entry.site.causal}
            found = [(s, e) for s, e in made if e.site.causal or (e.site.kind == "cross" and e.kept.shape[2] in rows)]
        keys = [entry.kept.shape[3] for _, entry in found if entry.site.kind == "self"]
        rejected = max(keys, default=0) - length
        for state, entry in found if rejected > 0 else ():
            entry.built = None
            if not entry.kept.cut(rejected, rejected if entry.site.kind == "self" else 0):
                reason = "tokens that were read and rejected at its end are attended to by others"
                self.ledger.enter(CallSite(state.name, "refused", 0, reason))
                self.entries.remove(entry)

    def _generated(self) -> list[tuple[State, Entry]]:
        """Return the records that the running call of `generate` has made, each with the state of its call site."""
        found = [(state, state.generation) for state in self._states.values()]
        return [(state, entry) for state, entry in found if entry is not None and entry.run == self.generating.run]

    def records(self) -> list[AttentionRecord]:
        """Return the records so far."""
        with self._lock:
            self._assembly.close()
            chosen = self._chosen()
            return [entry.record() for entry in self.entries if entry.site.name in chosen]

    def coverage(self) -> Coverage:
        """Return the outcome of every softmax that was multiplied, and the parts inside which nothing can be seen."""
        with self._lock:
            self._assembly.close()
            return self._coverage()

    def _coverage(self) -> Coverage:
        only, chosen = self._only, self._chosen()
        seen = Counter(entry.site.name for entry in self.entries if entry.site.name in chosen)
        lines = self.ledger.sites()
        lines += self.parts.closed({name for name, _ in self._states} | {site.name for site in lines})
        if only and all(isinstance(each, str) for each in only):  # only layers that were seen have a number
            wanted, _ = select(list({site.name: None for site in lines}), only)
            lines = [site for site in lines if site.name in wanted]
        by_name: dict[str, list[CallSite]] = {
            name: [CallSite(name, "seen", seen[name], state.how)] if name in seen else []
            for name, state in ((state.name, state) for state in self._states.values())
        }
        for site in lines:
            by_name.setdefault(site.name, []).append(site)
        sites = [site for found in by_name.values() for site in found]
        notes = [*self.notes, *self.parts.notes()]
        if self._seen_names:
            unmatched = {each: select(self._seen_names, [each])[1] for each in only}
            notes += [f"only={each!r}: {messages[0]}" for each, messages in unmatched.items() if messages][:8]
        elif not sites:
            looked = f"looked for {self.parts.looked_for} of the {self._name} that ran inside the context"
            why = looked if self.parts.ran else f"the {self._name} did not run inside the context"
            notes.append(f"no attention was seen: {why}")
        return Coverage(tuple(sites), tuple(notes))


def _is_causal(call: AttentionCall) -> bool:
    """Whether no query attends to a key after its own position; queries of padding are ignored."""
    blind = None if call.share is not None else find_padding_rows(call)
    return is_causal(*call.whole, None if blind is None else blind[:, :, :-1].cpu())
