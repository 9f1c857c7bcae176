"""Recognises attention as a watch does, and gives other outputs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.call import AttentionCall
from headwise.capture.functions import Functions
from headwise.capture.keep import Keeping
from headwise.capture.layout import Layout
from headwise.capture.ledger import Softmax
from headwise.capture.products import PRODUCTS, Met
from headwise.capture.recogniser import AS_IS, Arrange, Recogniser, layout_of
from headwise.capture.sites import Place, is_checkpointed, is_running
from headwise.capture.trail import Trail, at_home
from headwise.capture.watcher import Entry, Watcher, in_backward
from headwise.edits.edit import Edit
from headwise.edits.inputs import Inputs
from headwise.edits.naming import Naming
from headwise.edits.progress import Progress
from headwise.edits.run import run, weights_of
from headwise.edits.where import Where
from headwise.errors import ArgumentError, EditRefused, brief
from headwise.functional import editors, running, tell
from headwise.records.coverage import Status
from headwise.records.names import check_choice, select

Planned = tuple[str, AttentionCall, AttentionCall, list[Edit]]  # a layer, its call before and after, by which edits

_KEEPING = Keeping(None, True, False, None, None, 1, None)


@dataclasses.dataclass(frozen=True)
class _Edited:
    """A softmax whose output was edited, and how to get its edited weights."""

    of: Softmax
    layout: Layout
    weights: Callable[[], Tensor]  # [B, H, Q, K]


class EditWatcher(Watcher):
    """Finds places and names, as for a watch; keeps no records. What cannot be edited is an error."""

    asks = "an edit"

    def __init__(self, model: nn.Module, edits: Sequence[Edit]) -> None:
        super().__init__(model, _KEEPING)
        self.edits = edits
        self.elsewhere: EditRefused | None = None  # a layer that ran in another thread
        self._depth = 0  # how often the model runs in this thread
        self._before: dict[int, int] = {}  # how often each module had run when the model began
        self.sites: list[str] = []  # in the order in which they were seen first

    def start(self) -> None:
        """Notice layers that the model runs in other threads."""
        begin = self._model.register_forward_pre_hook(lambda *_: self._count(1))
        end = self._model.register_forward_hook(lambda *_: self._count(-1), always_call=True)
        self._hooks.callback(begin.remove)
        self._hooks.callback(end.remove)
        super().start()

    def _count(self, more: int) -> None:
        if self.is_watching():
            self._depth += more
            if more > 0 and self._depth == 1 and not in_backward():
                self._before = dict(self._runs)

    def nth(self, place: Place) -> int | None:
        """How often the module of a place ran before in this pass of the model; None if that is not known."""
        runs = self._runs.get(id(place.module), 1) - self._before.get(id(place.module), 0)
        if in_backward():  # gradient checkpointing runs the last one first
            return 0 if runs == 1 else None
        return runs - 1 if self._depth else 0

    def _check_thread(self, module: nn.Module, *_: Any) -> None:
        """EditRefused for a layer in another thread, unless that thread runs the whole model for itself."""
        if self.is_watching() or not self._depth or is_running(self._model) or in_backward():
            return
        name = self._names.get(id(module), type(module).__name__)
        if any(self.may_edit(each) for each in self._names.values() if f"{each}.".startswith(f"{name}.")):
            self.elsewhere = EditRefused(
                f"{name} cannot be edited: it ran in another thread, and only that which entered the edit is edited"
            )
            raise self.elsewhere

    def at(self, name: str) -> list[Edit]:
        """The edits of a site."""
        if name not in self.sites:
            self.sites.append(name)
        return [each for each in self.edits if name in select(self.sites, check_choice(each.where))[0]]

    def may_edit(self, name: str) -> bool:
        """Whether an edit means this path, or a number that it may have."""
        return any(_may_mean(each, name) for each in self.edits)

    def of_outputs(self, name: str) -> bool:
        """Whether all edits that may mean this path change outputs alone."""
        return all(each.of_output for each in self.edits if _may_mean(each, name))

    def refuse(
        self,
        place: Place,
        reason: str,
        *,
        status: Status = "refused",
        where: str = "",
        softmax: Softmax | None = None,
        name: str | None = None,
    ) -> None:
        """EditRefused, if an edit means this place."""
        name = name or place.name
        if status != "not attention" and self.at(name):
            at = f" ({where})" if where else ""
            raise EditRefused(f"{name} cannot be edited: {' '.join(reason.split())}{at}")

    def unmatched(self) -> list[str]:
        """For each edit that was at no place a message."""
        found = []
        for each in self.edits:
            for part in check_choice(each.where):
                _, messages = select(self.sites, [part])
                found += [f"{each.name}: where={part!r}: {message}" for message in messages]
        return found


def _may_mean(edit: Edit, name: str) -> bool:
    return any(isinstance(part, int) or select([name], [part])[0] for part in check_choice(edit.where))


class Editor(Recogniser):
    """Gives the edited output of every attention that an edit means."""

    _watcher: EditWatcher
    changes = True

    def start(self, naming: Naming, inputs: Inputs) -> None:
        """Begin with no sequence known."""
        self._progress = Progress(self._watcher.generating, naming, inputs)
        self._applied: set[int] = set()  # the ids of the edits that were made
        self._pending: tuple[Place, AttentionCall, Tensor, Arrange] | None = None
        self._new: Tensor | None = None
        self._met: tuple[Met, Trail] | None = None
        self._done: dict[int, _Edited] = {}  # by the id of the softmax
        self._busy = False  # an edited call runs
        self._recomputed = 0  # passes inside of gradient checkpointing that the backward pass has still to run again
        self.replaced = False  # whether the last output that was read was given another value
        self.emptied = 0  # queries that were left without keys
        self.plans: list[Planned] | None = None  # while plan() runs

    def check_recomputed(self) -> None:
        """EditRefused if a backward pass will run edited layers again, when they are edited no more."""
        if self._recomputed > 0:
            raise EditRefused(
                "the model recomputes its activations in backward() (gradient checkpointing), which did not run inside "
                "of the edit, or runs in another thread: gradients would be those of the layers unedited. Call "
                "backward() inside of the edit, or switch checkpointing off"
            )

    def unmatched(self) -> list[str]:
        """A message for each step that was not reached, and for each position that there was not."""
        late = [each for each in self._watcher.edits if id(each) not in self._applied]
        steps = [f"{each.name}: no pass was among its steps. Received: steps={brief(each.steps)}" for each in late]
        return [*steps, *self._progress.met.missing()]

    # What is recognised waits until it was read; then the edits run, and their errors are the caller's.

    def hear(self, how: str, read: Callable[[Place], object], trail: Trail | None = None) -> None:
        self._pending = None
        super().hear(how, read, trail)
        pending, self._pending = self._pending, None
        if pending is not None:
            self._edit(*pending)

    @contextlib.contextmanager
    def reading(self, how: str, trail: Trail | None = None) -> Iterator[None]:
        graph = torch.is_grad_enabled()
        with super().reading(how, trail), torch.set_grad_enabled(graph):
            yield

    def _found(
        self, place: Place, call: AttentionCall, out: Tensor, arrange: Arrange, how: str, used: Tensor | None = None
    ) -> Entry | None:
        self._pending = place, call, out, arrange
        return None

    def _edit(self, place: Place, call: AttentionCall, out: Tensor, arrange: Arrange) -> None:
        name = self._watcher.name_of(place)
        edits = self._watcher.at(name)
        with torch._C.DisableTorchFunction():
            new, change = self._apply(place, name, call, edits, None if out.is_meta else arrange(out))
            if new is None:
                return
            self._new = _put_back(new.to(out.dtype), out, arrange)
        if self._met is not None and self._met[1].of is not None:
            trail = self._met[1]
            assert trail.of is not None
            heads = self.heads or place.heads or trail.heads
            self._done[id(trail.of)] = _Edited(trail.of, layout_of(trail, heads), change)

    def _apply(
        self, place: Place, name: str, call: AttentionCall, edits: Sequence[Edit], out: Tensor | None = None
    ) -> tuple[Tensor | None, Callable[[], Tensor]]:
        at = self._progress.where(place, name, call, self._watcher.nth(place))
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
            return None, lambda: call.weights()
        _check_overlaps(edits, at)
        if any(each.needs_weights for each in edits) and any(each != self.direct for each in editors()):
            names = ", ".join(each.name for each in edits if each.needs_weights)
            raise EditRefused(
                f"{name} cannot be edited: {names} inside of another edit, which would not see its call. Put all edits "
                "into one headwise.edit"
            )
        self._recomputed += -1 if in_backward() else is_checkpointed()
        self._busy = True
        try:
            changed, new = run(call, edits, at, out)
            if any(each.needs_weights for each in edits):
                tell(changed, new, lambda: weights_of(changed, edits, at))
        finally:
            self._busy = False
        if changed.mask is not call.mask and self.plans is None:
            self.emptied += _emptied(call, changed, new)
        if self.plans is not None:
            self.plans.append((name, call, changed, list(edits)))
        return new, lambda: weights_of(changed, edits, at)

    def direct(self, call: AttentionCall) -> Tensor | None:
        """headwise's own attention is about to run."""
        if running() or self._busy:
            return None
        place = self._watcher.place()
        if place is None or not self._watcher.is_watching():
            return None
        self.heard += 1
        name = self._watcher.name_of(place)
        edits = self._watcher.at(name)
        if not edits:
            return None
        with torch._C.DisableTorchFunction():
            return self._apply(place, name, call, edits)[0]

    def instead(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        place = self._watcher.place()
        if place is None or not self._watcher.may_edit(place.name):
            return AS_IS
        if name == "flex_attention" or self._watcher.of_outputs(place.name):
            return None  # it runs, and is read then
        query, value = (_given(args, kwargs, i, key) for i, key in ((0, "query"), (2, "value")))
        out = torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype, device="meta")
        self._met = None
        self.hear(name, lambda place: self.attended(place, out, *args, **kwargs))
        new, self._new = self._new, None
        return AS_IS if new is None else new

    def meet(self, name: str, out: Tensor, met: Met) -> None:
        self._met = met, met.trail
        of = met.trail.of
        if of is not None and id(of) in self._done:
            of.line = None  # these weights meet other values: their output is edited too
        super().meet(name, out, met)
        self._met = None

    def edited(self, out: Any) -> Any:
        new, self._new = self._new, None
        self.replaced = new is not None
        if new is None:
            return out
        return (new, *out[1:]) if isinstance(out, tuple) else new

    def replaces(self, args: Sequence[Any]) -> bool:
        """Whether a product may be the second one of an attention that is edited."""
        place = None
        for x in args:
            trail = self._trails.get(x) if id(x) in self._trails.known else None
            if trail is not None and trail.of is not None and trail.q is not None:
                place = self._watcher.place()
        if place is None or self._watcher.of_outputs(place.name):
            return False
        return self._watcher.may_edit(place.name)

    # The weights that the model itself returns.

    def rewritten(self, x: Any) -> Any:
        """What stands for a tensor of weights whose output was edited; any other object as it is."""
        trail = self._trails.get(x) if isinstance(x, Tensor) and id(x) in self._trails.known else None
        done = None if trail is None or trail.of is None else self._done.get(id(trail.of))
        if trail is None or done is None:
            return x
        if trail.problem or trail.used or (trail.sinks is not None and not trail.sinks_cut):
            raise EditRefused(
                f"the model returns weights that it changed before they met the values, which cannot be edited: "
                f"{trail.problem or trail.used or 'a learned sink'}"
            )
        weights = done.weights()
        return _put_back(weights.to(x.dtype), x, lambda each: done.layout.fold(at_home(trail, each)))

    def forget(self) -> None:
        """The model has returned: nobody can ask for its weights any more."""
        self._done.clear()

    def touched(self, args: Sequence[Any]) -> bool:
        """Whether weights whose output was edited are among these."""
        known, done = self._trails.known, self._done
        return any(id(x) in known and (of := known[id(x)][1].of) is not None and id(of) in done for x in args)


# In these weights may meet values again.
_MEETS = frozenset(PRODUCTS) - {"sum", "mean"}


class EditFunctions(Functions):
    """The function mode of an edit."""

    recogniser: Editor

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not self.recogniser._done or running() or not self.recogniser.touched(args):
            return super().__torch_function__(func, types, args, kwargs)
        if getattr(func, "__name__", "") in _MEETS:
            out = super().__torch_function__(func, types, args, kwargs)
            if self.recogniser.replaced:
                return out
        with torch._C.DisableTorchFunction():
            args = tuple(self.recogniser.rewritten(x) for x in args)
        return super().__torch_function__(func, types, args, kwargs)


def _put_back(new: Tensor, like: Tensor, arrange: Arrange) -> Tensor:
    """`new` [B, H, Q, E] in the arrangement of `like`, which `arrange` brings to [B, H, Q, E]."""
    with torch.no_grad():
        places = arrange(torch.arange(like.numel(), device=new.device).view(like.shape))
        straight = places.shape == like.shape
        straight = straight and torch.equal(places.flatten(), torch.arange(like.numel(), device=new.device))
    if straight:
        return new.reshape(like.shape)
    flat = new.new_empty(like.numel())
    return flat.index_put((places.flatten(),), new.flatten()).view(like.shape)


def _has_batch(place: Place, batch: int) -> bool:
    """Whether the inputs of a module have this batch size."""
    inputs = [x for x in (*place.arguments, *place.keywords.values()) if isinstance(x, Tensor)]
    return not inputs or any(batch in x.shape[:2] for x in inputs)


def _given(args: Sequence[Any], kwargs: Mapping[str, Any], at: int, name: str) -> Any:
    return args[at] if len(args) > at else kwargs[name]


def _emptied(before: AttentionCall, after: AttentionCall, out: Tensor) -> int:
    """How many queries of all examples may attend to no key any more, once for each head with a mask of its own."""
    if after.mask is None:
        return 0
    rows = (out.detach() == 0).all(-1).any(1).any(0).nonzero().flatten()  # an empty row gives 0
    count = 0
    cols = torch.arange(after.shape[3], device=out.device)
    for some in rows.split(256):
        empty = ~after.mask.cells(some, cols).any(-1)
        if before.mask is not None:
            empty = empty & before.mask.cells(some, cols).any(-1)
        count += int(empty.sum()) * (len(out) // empty.shape[0])
    return count


def _check_overlaps(edits: Sequence[Edit], at: Where) -> None:
    """ArgumentError for two edits that set the same of one head."""
    for i, one in enumerate(edits):
        for two in edits[:i]:
            if one.sets and one.sets == two.sets and bool((one.cells(at) & two.cells(at)).any()):
                raise ArgumentError(
                    f"edit: two edits set the {one.sets} of one head of {at.site}: {two.name} and {one.name}. Leave "
                    "out one of them"
                )
