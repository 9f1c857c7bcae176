"""Follows a running model, and replaces the output of each attention computation that an edit selects."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.capture.follower import Event, Follower, Refusal
from headwise.capture.functions import recogniser_here
from headwise.capture.modules import ELSEWHERE, Modules
from headwise.capture.sites import Place, in_backward, is_checkpointed
from headwise.edits.edit import Edit
from headwise.edits.inputs import Inputs
from headwise.edits.naming import Naming
from headwise.edits.progress import Progress
from headwise.edits.run import edit_output, edit_weights, run
from headwise.edits.where import Met, Where
from headwise.errors import ArgumentError, EditRefused, brief
from headwise.functional import attention, editors, running, tell, unasked
from headwise.records.names import check_choice, select

Planned = tuple[str, AttentionCall, AttentionCall, list[Edit]]  # a layer, its call before and after, the edits


class Editor(Follower):
    """A `Follower` (it gets every attention computation of a running model) that applies edits.

    Args:
        parts: the modules of the model, by path.
        edits: the edits, in the order in which they are applied.
        naming: gives the texts of tokens.
        inputs: gives the ids that the model got.
    """

    parts: Modules
    needs_values = changes = True

    def __init__(self, parts: Modules, edits: Sequence[Edit], naming: Naming, inputs: Inputs) -> None:
        self.parts, self.generating = parts, inputs.generating
        self.sites: list[str] = []  # in the order in which the layers were first seen
        self.emptied = 0  # the number of queries that were left without keys
        self.plans: list[Planned] | None = None  # a list only while `Editing.plan` runs
        self._edits = edits
        self._met = Met()  # remembers which positions that edits select have occurred in a call
        self._progress = Progress(naming, inputs, self._met)
        self._applied: set[int] = set()  # the ids of the edits that were applied
        self._elsewhere: EditRefused | None = None  # the error for a layer that ran where it could not be followed
        self._recomputed = 0  # passes inside of gradient checkpointing that the backward pass has still to run again

    def means(self, place: Place) -> bool:
        if place.name not in self.sites:
            self.sites.append(place.name)
        return self.may_edit(place.name)

    def may_edit(self, name: str) -> bool:
        """Return whether an edit selects this path, or selects layers by a number, which this path may have."""
        parts = (part for each in self._edits for part in check_choice(each.where))
        return any(isinstance(part, int) or select([name], [part])[0] for part in parts)

    def attention(self, place: Place, event: Event) -> None:
        """Edit a computation (`event`) that was recognised in the module `place` (a running module)."""
        assert event.call is not None
        with unasked((self,)), torch._C.DisableTorchFunction():
            self._apply(place, event, event.call)

    def __call__(self, call: AttentionCall) -> Tensor | None:
        """Edit a call of headwise's own attention before it runs. Return its output, or None if no edit changes it."""
        place = None if running() else self.parts.place()
        recogniser = recogniser_here()
        if place is None or recogniser is None:
            return None
        recogniser.heard += 1
        event = Event(call, None, lambda x: x, "headwise.attention")
        with torch._C.DisableTorchFunction():
            self._apply(place, event, call)
            if event.weights is None:
                return None
            out = event.new
            out = attention(call.q, call.k, call.v, mask=call.mask, **call.options()) if out is None else out
            return out if event.then is None else event.then(out)

    def _apply(self, place: Place, event: Event, call: AttentionCall) -> None:
        """Apply the edits that select this layer to a call, and put the edited output and weights into `event`."""
        number = self.parts.find_number(place)
        self.parts.computed(place)
        name = f"{place.name}#{number + 1}" if number else place.name
        edits = self._select_edits(name)
        if not edits:
            return
        at = self._progress.where(place, name, call, self.parts.nth(place))
        if at.drafts and any(each.steps is not None for each in edits):
            raise EditRefused(
                f"{name} cannot be edited in some steps: this pass reads the prompt and drafts of later tokens together"
            )
        if at.heads == 1 and not _has_batch(place, at.batch):
            chosen = [each for each in edits if each.heads is not None or each.examples is not None]
            if chosen:
                raise EditRefused(
                    f"{name} cannot be edited by heads or examples: its {at.batch} rows may be both, and the module "
                    f"does not say how many heads it has (num_heads). Received: {chosen[0].name}"
                )
        edits = [each for each in edits if each.applies(at)]
        self._applied.update(map(id, edits))
        if not edits:
            return
        _check_overlaps(edits, at)
        of_weights = [each for each in edits if each.needs_weights]
        if of_weights and editors():
            names = ", ".join(each.name for each in of_weights)
            raise EditRefused(
                f"{name} cannot be edited: {names} inside of another edit, which would not see its call. Put all edits "
                "into one headwise.edit"
            )
        self._recomputed += -1 if in_backward() else is_checkpointed()
        changed, new = run(call, edits, at)
        event.new, event.weights = new, functools.partial(edit_weights, changed, edits, at)
        if new is not None and of_weights:
            tell(changed, new, event.weights)
        if self.plans is not None:
            self.plans.append((name, call, changed, edits))
        elif new is not None and changed.mask is not call.mask:
            self.emptied += _emptied(call, changed, new)
        if of_outputs := [each for each in edits if each.changes_output]:
            event.then = functools.partial(edit_output, of_outputs, at)

    def _select_edits(self, name: str) -> list[Edit]:
        if name not in self.sites:
            self.sites.append(name)
        return [each for each in self._edits if name in select(self.sites, check_choice(each.where))[0]]

    # Errors for attention that cannot be edited.

    def refuse(self, place: Place, refusal: Refusal) -> None:
        """Raise EditRefused, with the reason, if an edit selects a module whose attention was not recognised."""
        if refusal.status != "not attention" and self._select_edits(place.name):
            at = f" ({refusal.where})" if refusal.where else ""
            raise EditRefused(f"{place.name} cannot be edited: {' '.join(refusal.reason.split())}{at}")

    def check_closed(self) -> None:
        """Raise EditRefused, when the context begins, if an edit selects a module whose inside cannot be followed."""
        for line in self.parts.closed(set()):
            if self.may_edit(line.name) and self._select_edits(line.name):
                raise EditRefused(f"{line.name} cannot be edited: {line.how}")

    def missed(self, name: str) -> None:
        """Raise EditRefused if an edit selects the module `name`, or one in it: it runs where nothing is followed."""
        if any(self.may_edit(each) for each in self.parts.names.values() if f"{each}.".startswith(f"{name}.")):
            self._elsewhere = EditRefused(f"{name} cannot be edited: {ELSEWHERE}")
            raise self._elsewhere

    def check(self) -> None:
        """Check at the end: raise EditRefused for a module that was not edited, ArgumentError for an unused edit."""
        if self._elsewhere is not None:
            raise self._elsewhere
        if self._recomputed > 0:
            raise EditRefused(
                "the model recomputes its activations in backward() (gradient checkpointing), which did not run inside "
                "of the edit, or runs in another thread: gradients would be those of the layers unedited. Call "
                "backward() inside of the edit, or switch checkpointing off"
            )
        for each in self._edits:
            for part in check_choice(each.where):
                for message in select(self.sites, [part])[1]:
                    raise ArgumentError(f"edit: {each.name}: where={part!r}: {message}")
        for each in self._edits:
            if id(each) not in self._applied:
                raise ArgumentError(
                    f"edit: {each.name}: no pass was among its steps. Received: steps={brief(each.steps)}"
                )
        for message in self._met.missing():
            raise ArgumentError(f"edit: {message}")


def _has_batch(place: Place, batch: int) -> bool:
    """Return whether a tensor among the inputs of the module `place` has this batch size; True if it has no tensors."""
    inputs = [x for x in (*place.arguments, *place.keywords.values()) if isinstance(x, Tensor)]
    return not inputs or any(batch in x.shape[:2] for x in inputs)


def _emptied(before: AttentionCall, after: AttentionCall, out: Tensor) -> int:
    """Count queries that edits left without any key, over all examples (and over heads, if their masks differ)."""
    if after.mask is None:
        return 0
    rows = (out.detach() == 0).all(-1).any(1).any(0).nonzero().flatten()  # a query without keys has the output 0
    count = 0
    cols = torch.arange(after.shape[3], device=out.device)
    for some in rows.split(256):
        empty = ~after.mask.cells(some, cols).any(-1)
        if before.mask is not None:
            empty = empty & before.mask.cells(some, cols).any(-1)
        count += int(empty.sum()) * (len(out) // empty.shape[0])
    return count


def _check_overlaps(edits: Sequence[Edit], at: Where) -> None:
    """Raise ArgumentError if two edits overwrite the same thing, such as the output, of one head."""
    for i, one in enumerate(edits):
        for two in edits[:i]:
            if one.sets and one.sets == two.sets and bool((one.cells(at) & two.cells(at)).any()):
                raise ArgumentError(
                    f"edit: two edits set the {one.sets} of one head of {at.site}: {two.name} and {one.name}. Leave "
                    "out one of them"
                )
