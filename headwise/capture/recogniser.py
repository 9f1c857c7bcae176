"""Finds attention among the torch functions of a thread and tells the followers, which watch or edit its model."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from headwise import masks
from headwise.call import AttentionCall, Scores, make_call
from headwise.capture import flex, products, projection, registered
from headwise.capture.explain import build_call, check_values, kept_call
from headwise.capture.follower import FOLLOWERS, Arrange, Event, Follower, Part, Refusal
from headwise.capture.keep import TooMuch
from headwise.capture.layout import Layout, read_layout
from headwise.capture.ledger import Softmax, where
from headwise.capture.masks import Recognised
from headwise.capture.operations import is_softmax
from headwise.capture.pieces import Cells, Meeting, Piece, number_vectors, read_call, read_cells, sides
from headwise.capture.products import Met
from headwise.capture.rewriting import Rewriting, put_back
from headwise.capture.sites import Place, in_backward
from headwise.capture.tape import Node, Places, Product, Tape, find_products, origin
from headwise.capture.trail import Trail, Trails, at_home, is_learned, is_parameter
from headwise.capture.verify import with_own_rows, wrong_output, wrong_weights
from headwise.errors import HeadwiseError, RecordError
from headwise.records.coverage import Status

Placed = list[tuple[Follower, Place]]
Read = Callable[[Place, bool], list[Event]]  # what was computed at a place; True = the values are needed

_CAUSAL = masks.causal(offset=0)  # aligned as in PyTorch; one mask for all layers, which share what it remembers
_FACTORS = "its weights are multiplied with other weights: a product of softmaxes (as in Nyström attention)"
_POWERS = "its weights are multiplied with themselves: a power of a matrix (as in a transitive closure)"
_LOST = "a product of queries and keys meets values without a softmax that could be followed"
_LINEAR = "a product of products without a softmax, as in linear attention"
_MIXED = "it is of some heads or examples of a tensor in which both are one dimension: which is not known"
_UNNORMALISED = "its weights are exp(scores), which are not normalised before they meet other tensors"
_ASSIGNED = (
    "its softmax is over the queries, so that the weights on each key sum to 1: an assignment, as of slots to tokens"
)
# What torch and headwise raise for a tensor of an unexpected kind or shape.
UNREADABLE = (HeadwiseError, RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError)


class Recogniser:
    """Informs the followers (objects that watch or edit a model) of attention in this thread, or why it is refused."""

    def __init__(self) -> None:
        self.trails, self.tape, self.outputs = Trails(), Tape(), projection.Outputs()
        self.rewriting = Rewriting(self.trails)
        self.heard = 0  # the number of computations that were reported
        self.sinks: Tensor | None = None  # learned sinks that the caller applies to the output of FlexAttention
        self.asked: torch.Size | None = None  # the shape of the queries that the registry's function was given
        self.heads: int | None = None  # inside nn.MultiheadAttention: its number of heads
        self.has_changed = False  # whether the last reported output was changed by an edit
        self._recognised = Recognised()
        self._made = WeakTensorKeyDictionary()  # outputs, and the softmax that made them

    @property
    def in_steps(self) -> bool:
        """Whether every model that is followed here is in the decoding steps of `generate`, one token at a time."""
        return all(follower.generating.in_steps for follower in FOLLOWERS.here())

    # Reports to followers.

    def hear(self, how: str, read: Read, out: Any, trail: Trail | None = None, edits: list[Event] | None = None) -> Any:
        """Report a recognised computation to the followers. Returns its output `out`, changed if there are edits.

        `read` reads the computation as events. `edits`: events that edits have already changed (`hear_before`).
        """
        placed = self.placed()
        if not placed:
            for follower in FOLLOWERS.here():
                _note_outside(follower)
            return out
        self.heard += 1
        edits = self._edited(placed, how, read, trail) if edits is None else edits
        if not edits or edits[-1].new is None:  # otherwise the watchers have received the call that replaced it
            for values in (False, True):
                group = [each for each in placed if not each[0].changes and each[0].needs_values is values]
                for event in self._events(group, how, read, trail, values) if group else ():
                    for each in group:
                        with self.reading(how, trail, [each]):
                            each[0].attention(each[1], event)
                            if event.softmax is not None:
                                event.softmax.seen = event.softmax.seen or each[1].name
        return self.changed(out, edits)

    def hear_before(self, how: str, read: Read) -> list[Event]:
        """Let edits change a computation before it runs; return their events. If one replaces it, it need not run."""
        edits = self._edited(self.placed(), how, read, None)
        self.heard += bool(edits) and edits[-1].new is not None
        return edits

    def told(self, follower: Follower, call: AttentionCall, out: Tensor, used: Tensor | None = None) -> None:
        """Report a call of headwise's own attention. `used` [B, H, Q, K]: its weights, if an edit changed them."""
        place = follower.parts.place()
        if place is None:
            _note_outside(follower)
            return
        self.heard += 1
        how = "headwise.attention"
        with self.reading(how, None, [(follower, place)]):
            if used is not None:
                self._check_used("an edit changed its weights", follower.needs_values)
            follower.attention(place, self._event(call, out, lambda x: x, how, used=used))

    def note(self, note: str) -> None:
        """Give all followers a note: that models run in a changed way."""
        for follower in FOLLOWERS.here():
            follower.note(note)

    def refuse(self, reason: str, status: Status = "refused", softmax: Softmax | None = None) -> None:
        """Report a computation that may be attention, and the reason why it is not reported as attention."""
        for follower in FOLLOWERS.here():
            place = follower.parts.place()
            if place is None:
                _note_outside(follower)
            else:
                follower.refuse(place, Refusal(reason, status, where(), softmax))

    def placed(self) -> Placed:
        """Return the followers of the code that runs here, each with the place (running module) in its model."""
        found = [(follower, follower.parts.place()) for follower in FOLLOWERS.here()]
        return [(follower, place) for follower, place in found if place is not None]

    def _events(self, placed: Placed, how: str, read: Read, trail: Trail | None, values: bool) -> list[Event]:
        """Read a computation as events. [] if it cannot be read; the followers in `placed` are then informed."""
        found: list[Event] = []
        with self.reading(how, trail, placed):
            found = read(placed[0][1], values)
        return found

    @contextlib.contextmanager
    def reading(self, how: str, trail: Trail | None = None, placed: Placed | None = None) -> Iterator[None]:
        """Return a context in which a computation that cannot be read is reported as refused and raises no error.

        The followers in `placed` get the report (None = all). Inside, torch functions are not listened to: weights that
        are computed for a comparison are not the model's attention. If there is an edit, gradients flow through tensors
        that are read, because the edit computes with them.
        """
        followers = FOLLOWERS.here() if placed is None else [follower for follower, _ in placed]
        graph = torch.is_grad_enabled() and any(follower.changes for follower in followers)
        try:
            with torch.set_grad_enabled(graph), torch._C.DisableTorchFunction():
                yield
        except TooMuch:
            raise
        except UNREADABLE as error:
            softmax = None if trail is None else trail.of
            queries = None if trail is None or trail.born is None else trail.born.queries
            refusal = Refusal(f"{how}: {error}", "refused", where(), softmax, queries)
            for follower, place in self.placed() if placed is None else placed:
                follower.refuse(place, refusal)

    # Edits.

    def _edited(self, placed: Placed, how: str, read: Read, trail: Trail | None) -> list[Event]:
        """Let edits change a computation, the last entered first, until one replaces it by another call.

        Returns their events. `headwise.attention` has reported the other call to the remaining edits, which may have
        changed it further.
        """
        found: list[Event] = []
        for each in reversed(placed):
            if each[0].changes and each[0].means(each[1]):
                for event in self._events([each], how, read, trail, values=True):
                    each[0].attention(each[1], event)
                    found.append(event)
                    if event.new is not None:
                        return found
        return found

    def changed(self, out: Any, edits: list[Event]) -> Any:
        """Return the output `out` of a computation as the edits change it."""
        then = [event.then for event in reversed(edits) if event.then is not None]
        self.has_changed = bool(then) or (bool(edits) and edits[-1].new is not None)
        if not self.has_changed:
            return out
        last, before = edits[-1], out[0] if isinstance(out, tuple) else out
        with torch._C.DisableTorchFunction():
            new = last.arrange(before) if last.new is None else last.new
            for each in then:
                new = each(new)
            new = put_back(new.to(before.dtype), before, last.arrange)
        first = next(event for event in edits if event.weights is not None)
        if first.softmax is not None and first.layout is not None and first.weights is not None:
            first.softmax.seen = "edited"
            self.rewriting.add(first.softmax, first.layout, first.weights)
        return (new, *out[1:]) if isinstance(out, tuple) else new

    # Products in which weights are multiplied with their values.

    def meet(self, name: str, out: Tensor, met: Met) -> Tensor:
        """Handle a product of weights and another tensor: report its attention, or the reason why it is none.

        Returns the product, changed if there are edits.
        """
        trail, of, other = met.trail, met.trail.of or Softmax(), met.product.b
        if met.kind == "no softmax":
            changed = trail.loose or trail.problem
            self.settle(of, "missed" if changed else "not attention", _LOST if changed else _LINEAR)
            return out
        if met.kind == "mixed":
            if trail.q is None and not is_parameter(other):
                self.settle(of, "not attention", "its weights are summed over another axis than its softmax")
            else:
                mixed = trail.with_problem(f"the weights were mixed with each other by `{name}`")
                self.trails.put(out, mixed.but(intact=trail.intact or trail))
            return out
        if met.kind == "factors":
            second = self.trails.get(other)
            reason = _POWERS if second is not None and second.product is trail.product else _FACTORS
            self.trails.put(out, trail.but(problem=reason, intact=None))
            for each in (trail, second):
                # Else the product is made of weights that have a record already.
                if each is not None and each.of is not None and not (each.of.seen and each.intact is not None):
                    self.settle(each.of, "refused", reason)
            return out
        # A product of softmaxes may be multiplied with its last factor times the values.
        if trail.problem in (_FACTORS, _POWERS) and other in self._made:
            self.settle(self._made[other], "refused", trail.problem)
        if of.seen and of not in self.rewriting:  # else these weights multiply other values: edit this output too
            for again in of.again:
                again(self._meeting(met))
            is_first = of.used is not None and of.used() is met.product.a
            if not of.again and (trail.used or trail.intact is not None) and not is_first:
                self.note(
                    f"{of.seen}: the weights of one softmax met values in several forms; its record has the first"
                )
            return out  # these weights have multiplied other values before: one softmax is one record
        if trail.problem and is_parameter(other):
            self.settle(of, "missed", trail.problem)
        elif trail.exps:
            self.settle(of, "missed", _UNNORMALISED)
        elif met.kind == "assigned":
            self.settle(of, "refused", _ASSIGNED)
        elif met.kind:
            self.settle(of, "not attention" if trail.q is None or is_learned(trail) else "refused", met.kind)
        elif trail.q is None and is_parameter(other):
            self.settle(of, "not attention", "a softmax whose scores come from no product meets parameters")
        elif trail.q is None:
            reason = "its scores come from no product of queries and keys that could be followed"
            self.settle(of, "missed", f"{reason}; {trail.problem}" if trail.problem else reason)
        elif trail.k is not None and is_parameter(trail.k):
            self.settle(of, "not attention", "its keys are parameters: a router, or a table that is looked up softly")
        else:
            of.seen = ""
            return self._hear_met(out, met)
        return out

    def settle(self, softmax: Softmax, status: Status, reason: str) -> None:
        """Report that a softmax is no attention that can be recorded, and withdraw the records that were made of it."""
        for withdraw in softmax.withdraw:
            withdraw()
        softmax.withdraw, softmax.seen = [], ""
        self.refuse(reason, status, softmax)

    def _hear_met(self, out: Tensor, met: Met) -> Tensor:
        of = met.trail.of

        def read(place: Place, values: bool) -> list[Event]:
            return self._weighted(place, values, out, met)

        new: Tensor = self.hear("matmul and softmax", read, out, met.trail)
        if of is not None and of.seen:
            of.cells = None
            if of.used is None and not of.again:
                of.used = weakref.ref(met.product.a)
            if new is out:
                self._made[out] = of
        return new

    # Recognised computations as calls.
    def _event(self, call: AttentionCall, out: Any, arrange: Arrange, how: str, **more: Any) -> Event:
        heads, of = call.shape[1], out[0] if isinstance(out, tuple) else out
        return Event(call, out, arrange, how, project=lambda tell: self.outputs.put(of, heads, tell), **more)

    def _weighted(self, place: Place, values: bool, out: Tensor, met: Met) -> list[Event]:
        """Return an `Event` (an attention to report) for weights that are a softmax and were multiplied with values."""
        found = met.trail
        heads = self.heads or place.heads or found.heads
        layout = find_layout(found, heads)
        in_blocks = found.rows != found.keys and (layout.at is not None or (_is_padded(found) and not values))
        if (found.problem or in_blocks) and (piece := self._in_pieces(met, heads, values)) is not None:
            return [piece]
        if found.problem or (found.used and not is_softmax(at_home(found, met.product.a))):
            return list(self._changed_weights(out, met, heads, values))
        if found.sinks is not None and not found.sinks_cut:
            raise RecordError("the column of sinks was multiplied by the values too")
        if met.values is None and values:
            raise RecordError("its values could not be read from the product, and are asked for")
        some = len(found.lead) == 1 and found.q is not None and _is_slice(found.q, heads)
        some = some or _is_mixed(found, layout)
        if some and (found.born is None or found.born.queries is None or values):
            raise RecordError(_MIXED)
        layout = read_layout(found.lead, None) if some else layout
        if in_blocks:
            raise RecordError("its queries are cut into blocks that have keys of other blocks too")
        weights = found.softmax
        if found.used or weights is None or found.q is None:
            weights = at_home(found, met.product.a)
        call, how = self._explained(found, met.values, layout, weights)
        part = None if values else _make_part(found, layout, call, heads)
        arrange = layout.fold if met.arrange is None else lambda x: layout.fold(met.arrange(x))
        event = self._event(call, out, arrange, how, softmax=found.of, layout=layout, part=part)
        return [dataclasses.replace(event, call=None) if some else event]

    def _explained(
        self, found: Trail, values: Tensor | None, layout: Layout, weights: Tensor
    ) -> tuple[AttentionCall, str]:
        """Make the call that gives these weights [*lead, Q, K]: (the call, a description of how it was found)."""
        if found.q is None or found.loose or found.used:
            call = kept_call(found, values, layout, weights, self._recognised)
            how = "softmax of other scores" if found.q is None else "matmul and softmax, its scores kept"
        else:
            call, how = build_call(found, values, layout, self._recognised), "matmul and softmax"
        weights = layout.fold(weights)
        wrong = wrong_weights(call, weights, found.dtype)
        if wrong is not None:
            call = with_own_rows(call, weights)
            wrong = wrong_weights(call, weights, found.dtype)
        if wrong is not None:
            raise RecordError(wrong)
        return call, how

    def _check_used(self, reason: str, values: bool) -> None:
        """Raise RecordError if weights that were changed cannot be kept beside the call."""
        in_generate = any(follower.generating.run is not None for follower in FOLLOWERS.here())
        if values or in_generate:
            when = "values=True, gradients=True or an edit" if values else "model.generate"
            raise RecordError(f"{reason}, which is not supported with {when}")

    def _changed_weights(self, out: Tensor, met: Met, heads: int | None, values: bool) -> Iterator[Event]:
        """Yield an `Event` (an attention to report) for weights that the model changed after the softmax.

        The record keeps the changed weights beside the call.
        """
        found = met.trail
        reason = found.problem or f"its weights were changed by `{found.used}` after the softmax"
        used = products.arrange_weights(met) if found.problem else at_home(found, met.product.a)
        intact = found.intact or found
        lost = found.problem and found.intact is None
        if used is None or tuple(used.shape[-2:]) != (intact.rows, intact.keys) or lost:
            raise RecordError(reason)
        self._check_used(reason, values)
        used = read_layout(tuple(used.shape[:-2]), heads).fold(used)
        for trail in (intact, *found.also):
            layout = find_layout(trail, heads)
            if layout.at is not None and layout.batch != len(used):  # more heads than the module says
                layout = read_layout(trail.lead, None)
            fits = layout.batch == len(used) and layout.heads % used.shape[1] == 0
            if layout.at is not None or _is_mixed(trail, layout) or (trail.q is not None and _is_slice(trail.q, heads)):
                raise RecordError(f"{reason}, and its heads come before its examples, or are some of them")
            if not fits or trail.softmax is None or trail.of is None:
                raise RecordError(reason)
            if trail.sinks is not None and not trail.sinks_cut:
                raise RecordError(reason)
            weights = trail.softmax
            if found.intact is None:  # the softmax was written over, or there is none: each row's shares
                if bool((weights < 0).any()):
                    raise RecordError(reason)
                weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
            call, how = self._explained(trail, None, layout, weights)
            how = f"{how}, and changed after it: record.used_weights() has what met the values"
            part = _make_part(trail, layout, call, heads, met)
            yield self._event(call, out, lambda x: x, how, used=used, softmax=trail.of, part=part)

    def _meeting(self, met: Met) -> Meeting:
        return Meeting(met.product.a, self.tape.node(met.product.a), self.tape.node(met.product.b), met.product[:2])

    def _in_pieces(self, met: Met, heads: int | None, values: bool) -> Event | None:
        """Return an `Event` (an attention to report) for one softmax, read score by score as a piece of an attention.

        None if its scores come from no tensor that was followed.
        """
        trail, of = met.trail, met.trail.of
        cells: Cells | None = None if of is None else of.cells
        found = () if cells is None else find_products(cells.node)
        queries = next((each.queries for each in found if each.queries is not None), None)
        if of is None or cells is None or queries is None or trail.q is None:
            return None
        if values:
            raise RecordError(
                "it is computed in pieces, which are not put together for values=True, gradients=True or an edit"
            )
        meeting = self._meeting(met)

        def read(sources: Places) -> Piece:
            piece, again = read_cells(cells, meeting, sources, trail.factor, trail.dtype)
            of.again.append(again)
            return piece

        return Event(None, None, lambda x: x, "", softmax=of, part=Part(queries, heads, read))

    def attended(
        self,
        place: Place,
        values: bool,
        out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> list[Event]:
        """Return an `Event` (an attention to report) for a call of F.scaled_dot_product_attention."""
        check_values(query)
        lead = query.shape[:-2]
        if not query.ndim == key.ndim == value.ndim == 4:
            lead = torch.broadcast_shapes(lead, *(x.shape[:-2] for x in (key, value) if x.ndim != 4 or query.ndim != 4))
        heads = self.heads or place.heads
        layout = read_layout(tuple(lead), heads)
        # If the memory layout does not show the order, it is the one of torch's documentation: examples first.
        layout = _by_memory(layout, heads, lambda: self._numbers(query)) or read_layout(tuple(lead), None)
        q = layout.fold(query)
        as_is = layout.at is None  # examples come first; keys may have fewer heads than queries
        k, v = (x if as_is and x.ndim == 4 and x.shape[0] == len(q) else layout.fold(x) for x in (key, value))
        arrange: Arrange = layout.fold
        asked = self.asked
        if asked is not None and q.shape != asked and tuple(asked) == (len(q), q.shape[1] * q.shape[2], 1, q.shape[3]):
            # transformers writes the query heads of a key head as rows when there is a single query.
            q = q.reshape(asked)
            if attn_mask is not None and attn_mask.ndim == 4 and attn_mask.shape[1] > 1:
                attn_mask = attn_mask.reshape(len(attn_mask), asked[1], 1, attn_mask.shape[3])
            arrange = lambda x: layout.fold(x).reshape(*q.shape[:3], x.shape[-1])  # noqa: E731
        shape = (*q.shape[:3], k.shape[2])
        mask, bias = None, None
        if is_causal:
            mask = _CAUSAL
        elif attn_mask is not None:
            read = self._recognised.mask if attn_mask.dtype == torch.bool else self._recognised.additive
            mask, bias = read(layout.fold_mask(attn_mask), shape)
        call = make_call(q, k, v, mask=mask, bias=bias, scale=scale, dropout=dropout_p)
        part, softmax = None, None
        of_q, of_k = (None if values or self.in_steps else self.tape.node(x) for x in (query, key))
        if of_q is not None and of_k is not None:
            piece = functools.partial(_fused_piece, of_q, of_k, layout, call.detached())
            part, softmax = Part(origin(of_q), heads, piece), Softmax()
        how = "scaled_dot_product_attention"
        return [self._event(call, out, arrange, how, softmax=softmax, part=part)]

    def _numbers(self, x: Tensor) -> Tensor | None:
        """Return, for each vector of `x`, its index in the memory of the tensor that `x` comes from; None = unknown."""
        node = None if self.in_steps else self.tape.node(x)
        places = None if node is None else Places(products=False).of(node)
        return None if places is None else number_vectors(places)

    def flex(self, place: Place, values: bool, out: Any, *args: Any, **kwargs: Any) -> list[Event]:
        """Return an `Event` (an attention to report) for a call of FlexAttention."""
        self.note("FlexAttention ran uncompiled: its outputs may differ in the last digits")
        return [self._checked(flex.read(*args, **kwargs), out, "flex_attention", lambda x: x)]

    def opaque(self, name: str, out: Any, *args: Any, **kwargs: Any) -> Any:
        """Handle a Hugging Face attention function inside which no torch function was seen: read its arguments."""

        def read(place: Place, values: bool) -> list[Event]:
            call = registered.read(*args, **kwargs)
            return [self._checked(call, out, name, lambda x: x.transpose(1, 2))]

        return self.hear(name, read, out)

    def _checked(self, call: AttentionCall, out: Any, how: str, arrange: Arrange) -> Event:
        """Return an `Event` (an attention to report) for a call that was made only from arguments.

        RecordError if the call does not give the output `out` of the model.
        """
        wrong = wrong_output(call, arrange(out[0] if isinstance(out, tuple) else out))
        if wrong is not None:
            raise RecordError(wrong)
        if self.sinks is not None:  # FlexAttention has no sinks: Hugging Face scales its output afterwards
            call = dataclasses.replace(call, sinks=self.sinks.detach().to(call.q.dtype))
        return self._event(call, out, arrange, how)


def _note_outside(follower: Follower) -> None:
    """Note that attention was computed outside of the model's modules, where it is not seen."""
    if not in_backward() and follower.parts.is_outside():
        follower.note(
            f"a softmax that met a product was computed outside of the model's modules, and is not seen: {where()}"
        )


def _make_part(found: Trail, layout: Layout, call: AttentionCall, heads: int | None, met: object = None) -> Part | None:
    """Return an attention as a possible piece of a larger one that has the same queries; None if these are unknown."""
    born = found.born
    if born is None or born.queries is None:
        return None
    read = functools.partial(_piece, born, found.lead, found.keys, layout, call.detached(), found.dtype)
    return Part(born.queries, heads, read, met)


def _is_padded(found: Trail) -> bool:
    """Return whether the queries or keys, which are in blocks, include padding that the model added."""
    if len(found.lead) < 3 or found.born is None:
        return False
    return any(bool((side.numbers == 0).any()) for side in sides(found.born, Places(products=False)))


def _is_mixed(found: Trail, layout: Layout) -> bool:
    """Return whether examples and heads are one dimension, in another order than examples first."""
    if len(found.lead) != 1 or layout.batch == 1 or layout.heads == 1:
        return False
    if found.born is None or found.born.queries is None:
        return False
    first = sides(found.born, Places(products=False))[0].numbers[:, 0]
    ordered = bool((first[1:] > first[:-1]).all())
    return not ordered and len(first.unique()) == len(first)


def _piece(
    born: Product,
    lead: tuple[int, ...],
    keys: int,
    layout: Layout,
    call: Scores,
    dtype: torch.dtype,
    sources: Places,
) -> Piece:
    """Read a call as a piece of a larger attention. (It gets no trail, because a trail keeps the weights alive.)"""
    queries, of_keys = sides(born, sources)
    if of_keys.numbers.shape[-1] != keys:
        raise RecordError("its keys are of several products")
    one, two = (layout.fold(x.numbers.reshape(*lead, -1, 1))[..., 0] for x in (queries, of_keys))
    return read_call(call, one, two, dtype)


def _fused_piece(of_q: Node, of_k: Node, layout: Layout, call: Scores, sources: Places) -> Piece:
    """Read a fused attention (scaled_dot_product_attention) as a piece of a larger attention."""
    rows, keys = (sources.of(node) for node in (of_q, of_k))
    if rows is None or keys is None:
        raise RecordError("its queries or keys come from nothing that was followed")
    rows, keys = (layout.fold(number_vectors(x)[..., None])[..., 0] for x in (rows, keys))
    return read_call(call, rows, keys, call.q.dtype)


def find_layout(found: Trail, heads: int | None) -> Layout:
    """Find the layout of the scores of a trail: which of their dimensions are examples, and which are heads."""

    def numbers() -> Tensor | None:
        if found.born is None or found.born.queries is None:
            return None
        first = sides(found.born, Places(products=False))[0].numbers
        return first if first.numel() == math.prod(found.lead) * found.rows else None

    layout = read_layout(found.lead, heads)
    return _by_memory(layout, heads, numbers) or layout


def _by_memory(layout: Layout, heads: int | None, numbers: Callable[[], Tensor | None]) -> Layout | None:
    """Decide which of two leading dimensions are the heads, if both may be; None if it stays unknown.

    The heads of one example are next to each other in memory: `numbers` gives the positions of the queries in memory.
    """
    lead = layout.lead
    if len(lead) != 2 or min(lead) == 1 or heads not in lead or (layout.at is None and lead[0] != lead[1]):
        return layout
    found = numbers()
    if found is None:
        return None
    first = found.reshape(*lead, -1)[..., 0]
    heads_first = bool(first[1, 0] - first[0, 0] < first[0, 1] - first[0, 0])
    return Layout(lead, lead[1], lead[0], 0) if heads_first else Layout(lead, *lead)


def _is_slice(x: Tensor, heads: int | None) -> bool:
    """Return whether `x` [n, Q, D] is a slice of a larger tensor that has only some of the heads of an example."""
    whole = x._base
    some = whole is not None and whole.shape[-2:] == x.shape[-2:] and whole.numel() > x.numel()
    return some and len(x) > 1 and x.stride(0) == x.shape[1] * x.shape[2] and (not heads or len(x) % heads > 0)
