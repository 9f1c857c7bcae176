"""Makes records of the attention that was recognised, or says why there is none."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise import masks
from headwise.call import AttentionCall, Scores, make_call
from headwise.capture import flex, huggingface, products, projection
from headwise.capture.assembly import HOW, Assembly
from headwise.capture.explain import call_of, check_values, kept_call
from headwise.capture.keep import TooMuch
from headwise.capture.layout import Layout, out_of_buffer, read_layout, share_heads
from headwise.capture.ledger import Line, Softmax, where
from headwise.capture.masks import Recognised
from headwise.capture.operations import sum_to_one
from headwise.capture.pieces import Cells, Meeting, Piece, number_of, read_call, read_cells, sides
from headwise.capture.products import Met
from headwise.capture.sites import Place
from headwise.capture.tape import Node, Places, Product, Tape, origin, products_of
from headwise.capture.trail import Trail, Trails, at_home, is_learned, is_parameter
from headwise.capture.verify import with_own_rows, wrong_output, wrong_weights
from headwise.errors import HeadwiseError, RecordError
from headwise.records.coverage import Status

if TYPE_CHECKING:
    from headwise.capture.watcher import Entry, Watcher

Arrange = Callable[[Tensor], Tensor]

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


AS_IS = object()


class Recogniser:
    """Tells a watcher of the attention among what a function mode follows."""

    changes = False  # whether it gives other outputs

    def __init__(self, watcher: Watcher, trails: Trails, tape: Tape, outputs: projection.Outputs) -> None:
        self._watcher, self._trails, self._tape, self._outputs = watcher, trails, tape, outputs
        self._recognised = Recognised()
        self._assembly = Assembly(watcher, self._recognised)
        watcher.finish = self._finish
        self.heard = 0  # how many computations were seen as torch functions
        self.sinks: Tensor | None = None  # learned sinks that the caller applies to the output of FlexAttention
        self.asked: torch.Size | None = None  # the shape of the queries that the registry's function was given
        self.heads: int | None = None  # inside nn.MultiheadAttention: its number of heads
        self._made: dict[int, tuple[weakref.ref[Tensor], Softmax]] = {}  # outputs, and the softmax that made them

    def _finish(self) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            self._assembly.close()

    # For an edit (headwise.edits), which gives other outputs. A watch changes nothing.

    def instead(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The output of a fused attention that is not to run; AS_IS for one that is, None if it is to be read then."""

    def edited(self, out: Any) -> Any:
        """What takes the place of an output that was just read; of a tuple, the first is the output."""
        return out

    def replaces(self, args: Sequence[Any]) -> bool:
        """Whether the product of these may get another value, so that others should not see it as it is."""
        return False

    def heard_of(self, args: Sequence[Any]) -> None:
        """The product of these was replaced by an attention that was told of."""
        for trail in map(self._trails.get, args):
            if trail is not None and trail.of is not None:
                trail.of.line = Line("", "seen", "edited", "")

    @contextlib.contextmanager
    def unless_heard(self) -> Iterator[Callable[[], bool]]:
        """Gives what tells whether headwise's own attention was called inside, and so told of already."""
        before = self.heard
        yield lambda: self.heard != before

    def told(self, call: AttentionCall, out: Tensor, used: Tensor | None = None) -> None:
        """headwise's own attention was called, or an edit changed its weights to `used` [B, H, Q, K]."""
        how = "headwise.attention"

        def read(place: Place) -> None:
            if used is not None:
                self._check_used("an edit changed its weights")
            self._found(place, call, out, lambda x: x, how, used)

        self.hear(how, read)

    def opaque(
        self, name: str, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, result: Any, *args: Any, **kwargs: Any
    ) -> None:
        """A function of Hugging Face's registry was called, and computed nothing that is seen as a torch function."""

        def read(place: Place) -> None:
            call = huggingface.read(module, q, k, v, *args, **kwargs)
            self._checked(place, call, result, name, lambda x: x.transpose(1, 2))

        self.hear(name, read)

    def hear(self, how: str, read: Callable[[Place], object], trail: Trail | None = None) -> None:
        """Read a computation that was recognised, if it was made in the model."""
        with self.reading(how, trail):
            place = self._watcher.place()
            if place is not None:
                self.heard += 1
                read(place)
            else:
                self._watcher.outside(where())

    @contextlib.contextmanager
    def reading(self, how: str, trail: Trail | None = None) -> Iterator[None]:
        """Reading must never break the model: what cannot be read is refused.

        Inside, no function is listened to: weights that are computed for the comparison are not the model's attention.
        """
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                yield
        except TooMuch:
            raise
        except UNREADABLE as error:
            place = self._watcher.place()
            if place is not None:
                of = None if trail is None else trail.of
                self._watcher.refuse(place, f"{how}: {error}", where=where(), softmax=of)
                if trail is not None and trail.born is not None and trail.born.queries is not None:
                    self._assembly.refuse(place, trail.born.queries)

    # Where weights meet their values.

    def meet(self, name: str, out: Tensor, met: Met) -> None:
        """Weights met another tensor in a product: an attention, or what else it is."""
        trail, of = met.trail, met.trail.of or Softmax()
        if met.kind == "no softmax":
            changed = trail.loose or trail.problem
            self.settle(of, "missed" if changed else "not attention", _LOST if changed else _LINEAR)
            return
        if met.kind == "mixed":
            if trail.q is None and not is_parameter(met.other):
                self.settle(of, "not attention", "its weights are summed over another axis than its softmax")
            else:
                mixed = trail.with_problem(f"the weights were mixed with each other by `{name}`")
                self._trails.put(out, mixed.but(intact=trail.intact or trail))
            return
        if met.kind == "factors":
            other = self._trails.get(met.other)
            reason = _POWERS if other is not None and other.product is trail.product else _FACTORS
            self._trails.put(out, trail.but(problem=reason, intact=None))
            for each in (trail, other):
                if each is not None and each.of is not None:
                    seen = each.of.line is not None and each.of.line.status == "seen"
                    if not (seen and each.intact is not None):  # else of what was made of weights that have a record
                        self.settle(each.of, "refused", reason)
            return
        if trail.problem in (_FACTORS, _POWERS):  # and what it meets may be the last factor times the values
            made = self._made.get(id(met.other))
            if made is not None and made[0]() is met.other:
                self.settle(made[1], "refused", trail.problem)
        if of.line is not None and of.line.status == "seen":
            if of.again is not None:
                with self.reading(name):
                    of.again(self._meeting(met))
            elif (trail.used or trail.intact is not None) and (of.used is None or of.used() is not met.weights):
                self._watcher.note(
                    f"{of.line.name}: the weights of one softmax met values in several forms; its record has the first"
                )
            return  # these weights have met other values before: one softmax is one record
        if trail.problem and is_parameter(met.other):
            self.settle(of, "missed", trail.problem)
        elif trail.exps:
            self.settle(of, "missed", _UNNORMALISED)
        elif met.kind == "assigned":
            self.settle(of, "refused", _ASSIGNED)
        elif met.kind:
            self.settle(of, "not attention" if trail.q is None or is_learned(trail) else "refused", met.kind)
        elif trail.q is None and is_parameter(met.other):
            self.settle(of, "not attention", "a softmax whose scores come from no product meets parameters")
        elif trail.q is None:
            reason = "its scores come from no product of queries and keys that could be followed"
            self.settle(of, "missed", f"{reason}; {trail.problem}" if trail.problem else reason)
        elif trail.k is not None and is_parameter(trail.k):
            self.settle(of, "not attention", "its keys are parameters: a router, or a table that is looked up softly")
        else:
            self.hear("matmul and softmax", lambda place: self._weighted(place, out, met), trail)

    def settle(self, softmax: Softmax, status: Status, reason: str) -> None:
        if softmax.withdraw is not None:
            softmax.withdraw()
            softmax.withdraw = None
        place = self._watcher.place()
        if place is None:
            self._watcher.outside(where())
        else:
            self._watcher.refuse(place, reason, status=status, where=where(), softmax=softmax)

    # What was recognised, as a call.

    def _weighted(self, place: Place, out: Tensor, met: Met) -> None:
        """Weights that a softmax made of a product were multiplied by their values."""
        found, values = met.trail, met.values
        heads = self.heads or place.heads or found.heads
        layout = layout_of(found, heads)
        in_blocks = found.rows != found.keys and (layout.at is not None or self._is_padded(found))
        if (found.problem or in_blocks) and self._in_pieces(place, met, heads):
            return
        if found.problem or (found.used and not _is_softmax(found, met.weights)):
            self._changed(place, out, met, heads)
            return
        if found.sinks is not None and not found.sinks_cut:
            raise RecordError("the column of sinks was multiplied by the values too")
        if values is None and self._watcher.values:
            raise RecordError("its values could not be read from the product, and are asked for")
        some = len(found.lead) == 1 and found.q is not None and _is_slice(found.q, heads)
        some = some or self._is_mixed(found, layout)
        if some and (found.born is None or found.born.queries is None or self._watcher.values):
            raise RecordError(_MIXED)
        layout = read_layout(found.lead, None) if some else layout
        if in_blocks:
            raise RecordError("its queries are cut into blocks that have keys of other blocks too")
        weights = found.softmax
        if found.used or weights is None or found.q is None:
            weights = at_home(found, met.weights)
        call, how = self._explained(found, values, layout, weights)
        softmax, arrange = found.of, met.arrange
        assert softmax is not None
        read = functools.partial(_piece, found.born, found.lead, found.keys, layout, call.detached(), found.dtype)
        if some:
            self._assembly.add(place, found.born.queries, heads, softmax, read)
            softmax.line = Line(place.name, "seen", HOW, "")
            return
        entry = self._found(place, call, out, lambda x: layout.fold(x if arrange is None else arrange(x)), how)
        self._settled(place, softmax, how, entry)
        softmax.used = weakref.ref(met.weights)
        if entry is not None:
            if not self._watcher.values and found.born is not None and found.born.queries is not None:
                self._assembly.recorded(place, found.born.queries, heads, softmax, read, entry)
            key, made = id(out), self._made
            made[key] = weakref.ref(out, lambda _: made.pop(key, None)), softmax

    def _explained(
        self, found: Trail, values: Tensor | None, layout: Layout, weights: Tensor
    ) -> tuple[AttentionCall, str]:
        """(the call that gives these weights [*lead, Q, K], how it was found)."""
        if found.q is None or found.loose or found.used:
            call = kept_call(found, values, layout, weights, self._recognised)
            how = "softmax of other scores" if found.q is None else "matmul and softmax, its scores kept"
        else:
            call, how = call_of(found, values, layout, self._recognised), "matmul and softmax"
        weights = layout.fold(weights)
        wrong = wrong_weights(call, weights, found.dtype)
        if wrong is not None:
            call = with_own_rows(call, weights)
            wrong = wrong_weights(call, weights, found.dtype)
        if wrong is not None:
            raise RecordError(wrong)
        return call, how

    def _check_used(self, reason: str) -> None:
        """RecordError where used weights cannot be kept beside the call."""
        if self._watcher.values or self._watcher.generating.run is not None:
            when = self._watcher.asks if self._watcher.values else "model.generate"
            raise RecordError(f"{reason}, which is not supported with {when}")

    def _changed(self, place: Place, out: Tensor, met: Met, heads: int | None) -> None:
        """Weights that were changed after the softmax, and are none of a softmax any more: they are kept beside it."""
        found = met.trail
        reason = found.problem or f"its weights were changed by `{found.used}` after the softmax"
        used = products.as_used(met) if found.problem else at_home(found, met.weights)
        if used is None or not _fits(used, found.intact or found) or (found.problem and found.intact is None):
            raise RecordError(reason)
        self._check_used(reason)
        used = read_layout(tuple(used.shape[:-2]), heads).fold(used)
        for trail in (found.intact or found, *found.also):
            layout = layout_of(trail, heads)
            if layout.at is not None and layout.batch != len(used):  # more heads than the module says it has
                layout = read_layout(trail.lead, None)
            fits = layout.batch == len(used) and layout.heads % used.shape[1] == 0
            if (
                layout.at is not None
                or self._is_mixed(trail, layout)
                or (trail.q is not None and _is_slice(trail.q, heads))
            ):
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
            entry = self._found(place, call, out, lambda x: x, how, used)
            self._settled(place, trail.of, how, entry)
            trail.of.used = weakref.ref(met.weights)
            if entry is not None and trail.born is not None and trail.born.queries is not None:
                read = functools.partial(
                    _piece, trail.born, trail.lead, trail.keys, layout, call.detached(), trail.dtype
                )
                self._assembly.recorded(place, trail.born.queries, heads, trail.of, read, entry, met=met)

    def _settled(self, place: Place, softmax: Softmax, how: str, entry: Entry | None) -> None:
        """There is a record of a softmax, or the watch does not want one."""
        self._watcher.ledger.strike(softmax)
        softmax.line = Line(place.name, "seen", how, "")
        if entry is not None:
            softmax.withdraw = functools.partial(self._watcher.withdraw, entry)

    def _meeting(self, met: Met) -> Meeting:
        return Meeting(met.weights, self._tape.node(met.weights), self._tape.node(met.other), met.letters)

    def _is_padded(self, found: Trail) -> bool:
        """Whether some of its queries or keys, in blocks, are padding that the model added."""
        if len(found.lead) < 3 or found.born is None or self._watcher.values:
            return False
        return any(bool((side.numbers == 0).any()) for side in sides(found.born, Places(products=False)))

    def _is_mixed(self, found: Trail, layout: Layout) -> bool:
        """Whether examples and heads are one dimension, in another order than examples first."""
        if len(found.lead) != 1 or layout.batch == 1 or layout.heads == 1:
            return False
        if found.born is None or found.born.queries is None:
            return False
        first = sides(found.born, Places(products=False))[0].numbers[:, 0]
        ordered = bool((first[1:] > first[:-1]).all())
        return not ordered and len(first.unique()) == len(first)

    def _in_pieces(self, place: Place, met: Met, heads: int | None) -> bool:
        """Read a softmax cell by cell; False if its scores come from nothing that was followed."""
        trail, of = met.trail, met.trail.of
        cells: Cells | None = None if of is None else of.cells
        found = () if cells is None else products_of(cells.node)
        queries = next((each.queries for each in found if each.queries is not None), None)
        if of is None or cells is None or queries is None or trail.q is None:
            return False
        if self._watcher.values:
            raise RecordError(f"it is computed in pieces, which are not put together for {self._watcher.asks}")
        meeting = self._meeting(met)

        def read(sources: Places) -> Piece:
            piece, of.again = read_cells(cells, meeting, sources, trail.factor, trail.dtype)
            return piece

        self._assembly.add(place, queries, heads, of, read)
        of.line, of.cells = Line(place.name, "seen", HOW, ""), None
        return True

    def attended(
        self,
        place: Place,
        out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """F.scaled_dot_product_attention was called."""
        check_values(query)
        lead = query.shape[:-2]
        if not query.ndim == key.ndim == value.ndim == 4:
            lead = torch.broadcast_shapes(lead, *(x.shape[:-2] for x in (key, value) if x.ndim != 4 or query.ndim != 4))
        heads = self.heads or place.heads
        layout = read_layout(tuple(lead), heads)
        # Where memory does not tell, it is as torch's documentation has it: examples first.
        layout = _by_memory(layout, heads, lambda: self._numbers(query)) or read_layout(tuple(lead), None)
        q = layout.fold(query)
        k, v = (x if x.ndim == 4 and x.shape[0] == len(q) else layout.fold(x) for x in (key, value))
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
            mask = masks.causal(offset=0)
        elif attn_mask is not None:
            read = self._recognised.mask if attn_mask.dtype == torch.bool else self._recognised.additive
            mask, bias = read(layout.fold_mask(attn_mask), shape)
        call = make_call(q, k, v, mask=mask, bias=bias, scale=scale, dropout=dropout_p)
        entry = self._found(place, call, out, arrange, "scaled_dot_product_attention")
        of_q, of_k = (None if self._watcher.generating.in_steps else self._tape.node(x) for x in (query, key))
        if entry is None or of_q is None or of_k is None or self._watcher.values:
            return

        piece = functools.partial(_fused_piece, of_q, of_k, layout, call.detached())
        softmax = Softmax()
        softmax.withdraw = functools.partial(self._watcher.withdraw, entry)
        self._assembly.recorded(place, origin(of_q), self.heads or place.heads, softmax, piece, entry)

    def _numbers(self, x: Tensor) -> Tensor | None:
        """The place of each vector of a tensor in the memory that it comes from."""
        node = None if self._watcher.generating.in_steps else self._tape.node(x)
        places = None if node is None else Places(products=False).of(node)
        return None if places is None else number_of(places)

    def flex(self, place: Place, out: Tensor | tuple[Tensor, ...], *args: Any, **kwargs: Any) -> None:
        """FlexAttention was called."""
        self._watcher.note("FlexAttention ran uncompiled: its outputs may differ in the last digits")
        self._checked(place, flex.read(*args, **kwargs), out, "flex_attention", lambda x: x)

    def _checked(self, place: Place, call: AttentionCall, result: Any, how: str, arrange: Arrange) -> None:
        """A call that was only read from its arguments: kept if it explains the output."""
        out = result[0] if isinstance(result, tuple) else result
        wrong = wrong_output(call, arrange(out))
        if wrong is not None:
            raise RecordError(wrong)
        if self.sinks is not None:  # FlexAttention has none: Hugging Face scales its output afterwards
            call = dataclasses.replace(call, sinks=self.sinks.detach().to(call.q.dtype))
        self._found(place, call, out, arrange, how)

    def _found(
        self, place: Place, call: AttentionCall, out: Tensor, arrange: Arrange, how: str, used: Tensor | None = None
    ) -> Entry | None:
        if self._watcher.goes_on(place, call, how):
            return None
        k, v = (out_of_buffer(x) for x in share_heads(call.k, call.v))
        call = dataclasses.replace(call, k=k, v=v)
        entry = self._watcher.found(place, call, out, arrange, how, used=used)
        if entry is not None and self._watcher.values:
            self._outputs.put(out, call.shape[1], lambda weight: entry.keep("output_weight", weight))
        if self._watcher.generating.run is not None and call.shape[2] == 1:
            self._watcher.generating.in_steps = True
        return entry


def _piece(
    born: Product,
    lead: tuple[int, ...],
    keys: int,
    layout: Layout,
    call: Scores,
    dtype: torch.dtype,
    sources: Places,
) -> Piece:
    """The piece that a call is. It must not hold the trail, which holds the weights."""
    queries, of_keys = sides(born, sources)
    if of_keys.numbers.shape[-1] != keys:
        raise RecordError("its keys are of several products")
    one, two = (layout.fold(x.numbers.reshape(*lead, -1, 1))[..., 0] for x in (queries, of_keys))
    return read_call(call, one, two, dtype)


def _fused_piece(of_q: Node, of_k: Node, layout: Layout, call: Scores, sources: Places) -> Piece:
    """The piece that a fused attention is."""
    rows, keys = (sources.of(node) for node in (of_q, of_k))
    if rows is None or keys is None:
        raise RecordError("its queries or keys come from nothing that was followed")
    rows, keys = (layout.fold(number_of(x)[..., None])[..., 0] for x in (rows, keys))
    return read_call(call, rows, keys, call.q.dtype)


def layout_of(found: Trail, heads: int | None) -> Layout:
    """The layout of the scores of a trail."""

    def numbers() -> Tensor | None:
        if found.born is None or found.born.queries is None:
            return None
        first = sides(found.born, Places(products=False))[0].numbers
        return first if first.numel() == math.prod(found.lead) * found.rows else None

    layout = read_layout(found.lead, heads)
    return _by_memory(layout, heads, numbers) or layout


def _by_memory(layout: Layout, heads: int | None, numbers: Callable[[], Tensor | None]) -> Layout | None:
    """The layout of two leading dimensions where it is not clear which are the heads; None where it stays unknown.

    Those of one example stand beside each other in memory: `numbers` gives the places of the queries.
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


def _is_softmax(found: Trail, weights: Tensor) -> bool:
    """Whether weights that were changed after the softmax are still those of one."""
    weights = at_home(found, weights)
    return sum_to_one(weights) and not bool((weights < 0).any())


def _fits(used: Tensor | None, trail: Trail) -> bool:
    """Whether these may be weights of the queries and keys of a trail."""
    return used is not None and tuple(used.shape[-2:]) == (trail.rows, trail.keys)


def _is_slice(x: Tensor, heads: int | None) -> bool:
    """Whether `x` [n, Q, D] is some of the matrices of a larger tensor, and not all heads of an example."""
    whole = x._base
    some = whole is not None and whole.shape[-2:] == x.shape[-2:] and whole.numel() > x.numel()
    return some and len(x) > 1 and x.stride(0) == x.shape[1] * x.shape[2] and (not heads or len(x) % heads > 0)
