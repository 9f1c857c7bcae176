"""Listens to every torch function that the model calls, and recognises attention among them.

While the mode is active, nn.MultiheadAttention and nn.TransformerEncoder do not use their fused fast path, so that
their scaled_dot_product_attention can be seen. The outputs are the model's own: the mode calls the same function with
the same arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import types
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from headwise import masks
from headwise.call import AttentionCall, make_call
from headwise.capture import flex, huggingface, operations, products, projection
from headwise.capture.keep import TooMuch
from headwise.capture.layout import Layout, out_of_buffer, read_layout, share_heads
from headwise.capture.ledger import PART, Line, Softmax, where
from headwise.capture.masks import Found, Recognised
from headwise.capture.products import Met
from headwise.capture.sites import Place
from headwise.capture.trail import Trail, Trails, at_home
from headwise.capture.verify import with_own_rows, wrong_output, wrong_weights
from headwise.errors import HeadwiseError, RecordError
from headwise.functional import running
from headwise.masks.additive import FORBIDS
from headwise.records.coverage import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwise.capture.watcher import Entry, Watcher

Handler = Callable[[Callable[..., Any], str, Sequence[Any], Mapping[str, Any]], Any]
Arrange = Callable[[Tensor], Tensor]

_FACTORS = "its weights are multiplied with other weights: a product of softmaxes (as in Nyström attention)"
_POWERS = "its weights are multiplied with themselves: a power of a matrix (as in a transitive closure)"
_LOST = "a product of queries and keys meets values without a softmax that could be followed"
_LINEAR = "a product of products without a softmax, as in linear attention"
_UNNORMALISED = "its weights are exp(scores), which are not normalised before they meet other tensors"
_ASSIGNED = (
    "its softmax is over the queries, so that the weights on each key sum to 1: an assignment, as of slots to tokens"
)
_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "mv", "baddbmm", "baddbmm_", "einsum", "sum", "mean")
_FUSED = ("scaled_dot_product_attention", "flex_attention")
# What torch and headwise raise for a tensor of an unexpected kind or shape.
_UNREADABLE = (HeadwiseError, RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError)
# Fused operations that take the model's input and hide its queries and keys.
_HIDDEN = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")


def _seen_inside(function: Any) -> Callable[..., Any]:
    """The same code, without the first step of passing itself to the active mode."""
    code, given = function.__code__, {**function.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(code, given, argdefs=function.__defaults__)


_multi_head_attention_forward = _seen_inside(functional.multi_head_attention_forward)
_backward = _seen_inside(torch.autograd.backward)


class Functions(TorchFunctionMode):
    """Reports every attention computation among the torch functions that are called to a watcher."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher
        self._trails = Trails()
        self._known = self._trails.known
        self._outputs = projection.Outputs()
        self._recognised = Recognised()
        self.heard = 0  # how many computations were seen as torch functions
        self.sinks: Tensor | None = None  # learned sinks that the caller applies to the output of FlexAttention
        self.asked: torch.Size | None = None  # the shape of the queries that the registry's function was given
        self._heads: int | None = None  # inside nn.MultiheadAttention: its number of heads
        self._made: dict[int, tuple[weakref.ref[Tensor], Softmax]] = {}  # outputs, and the softmax that made them
        self._handlers: dict[str, Handler | None] = {  # name -> what handles it; None = an operation like any other
            **dict.fromkeys(_PRODUCTS, self._product),
            **dict.fromkeys(_HIDDEN, self._hidden),
            **dict.fromkeys(_FUSED, self._fused),
            **dict.fromkeys(operations.BARE, self._softmax),
            "linear": self._linear,
            "__get__": self._attribute,
            "multi_head_attention_forward": self._multi_head,
            "backward": self._backward,
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # Most calls have nothing to do with attention: they must be quick.
        name = getattr(func, "__name__", "")
        try:
            handler = self._handlers[name]
        except KeyError:
            handler = self._handlers[name] = self._handler_of(func, name)
        if handler is not None:
            return handler(func, name, args, kwargs or {})
        out = func(*args, **kwargs) if kwargs else func(*args)
        if (self._known or self._outputs) and not running():
            self._follow(name, args, kwargs or {}, out)
        return out

    def _handler_of(self, func: Any, name: str) -> Handler | None:
        """What handles a function that is called for the first time."""
        base = name.partition(".")[0]  # torch.ops.aten.bmm.default is called bmm.default
        handler = self._handlers.get(base)
        if handler is not None:
            return lambda func, _, args, kwargs: handler(func, base, args, kwargs)
        if "softmax" in name:
            return self._softmax
        if "attention" in name or "attn" in name:
            return self._hidden
        own = getattr(func, "namespace", "aten") not in ("aten", "prims", "prim", "higher_order")
        return self._opaque_operation if own else None

    # Each handler calls the function, and then reads what it did.

    def _attribute(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args)  # x.shape, x.device; x.mT, x.data
        if isinstance(out, Tensor) and (self._known or self._outputs) and not running():
            self._follow(func.__self__.__name__, args, kwargs, out)  # type: ignore[attr-defined]
        return out

    def _follow(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """What became of the scores and the weights among the arguments of an operation."""
        known = self._known
        if known and (_any_known(known, args) or (kwargs and _any_known(known, kwargs.values()))):
            base = name.partition(".")[0]
            try:
                with torch.no_grad(), torch._C.DisableTorchFunction():
                    operations.step(base, self._trails, args, kwargs, out)
            except _UNREADABLE as error:  # not of the kind that it looked like
                self._lose(base, args, out, error)
        if self._outputs:
            with contextlib.suppress(*_UNREADABLE), torch.no_grad():
                self._outputs.step(name, args, out)

    def _lose(self, name: str, args: Sequence[Any], out: Any, error: Exception) -> None:
        """The result of an operation that could not be read keeps the trail of its operand, with a problem."""
        followed = [trail for trail in map(self._trails.get, args) if trail]
        if followed and isinstance(out, Tensor) and out.is_floating_point():
            self._trails.put(out, followed[0].with_problem(f"`{name}` could not be followed: {error}"))

    def _softmax(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and not running():
            self._follow(name, args, kwargs, out)
            if id(out) not in self._known:
                with self._reading(name):
                    self._trails.put(out, operations.bare(name.partition(".")[0], args, kwargs, out))
        return out

    def _linear(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        weight = args[1] if len(args) > 1 else None
        trail = self._trails.get(args[0]) if id(args[0]) in self._known else None
        if isinstance(weight, nn.Parameter) and (trail is None or trail.of is None):
            out = func(*args, **kwargs)
            if self._outputs and not running():
                self._follow(name, args, kwargs, out)
            return out
        return self._product(func, name, args, kwargs)

    def _product(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if running() or not isinstance(out, Tensor):
            return out
        met = found = None
        with self._reading("matmul and softmax"):
            met = products.values(name, args, kwargs, self._trails, out) if self._known else None
            found = products.product(name, args, kwargs, self._trails, out) if met is None else None
        if met is not None:
            self._meet(name, out, met)
            if met.kind != "no softmax":
                return out
            with self._reading(name):
                found = products.product(name, args, kwargs, Trails(), out)
        if self._outputs or (found is None and self._known):
            self._follow(name, args, kwargs, out)
        if found is not None:
            self._trails.put(out, found)
        return out

    def _fused(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if not running():
            read = self._flex if name == "flex_attention" else self._attended
            self._hear(name, lambda place: read(place, out, *args, **kwargs))
        return out

    def _multi_head(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not torch.is_grad_enabled():
            self._watcher.note(
                "nn.MultiheadAttention and nn.TransformerEncoder did not use their fused fast path: outputs may differ "
                "in the last digits, and at padding, which the fast path sets to 0"
            )
        before, self._heads = self._heads, kwargs.get("num_heads", args[4] if len(args) > 4 else None)
        try:
            with self:
                return _multi_head_attention_forward(*args, **kwargs)
        finally:
            self._heads = before

    def _backward(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Gradient checkpointing runs parts of the model again during backward; these must be seen too."""
        if func is Tensor.backward:  # its (x, gradient, ...) are the (tensors, grad_tensors, ...) of autograd.backward
            kwargs = {"grad_tensors" if key == "gradient" else key: value for key, value in kwargs.items()}
        elif func is not torch.autograd.backward:
            return func(*args, **kwargs)
        with self:
            return _backward(*args, **kwargs)

    def _hidden(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        place = None if running() else self._watcher.place()
        if place is not None:
            self._watcher.refuse(
                place, f"{name} is one fused operation, which hides its queries and keys", where=where()
            )
        return func(*args, **kwargs)

    def _opaque_operation(
        self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """An operation that is not of torch, and may be attention: it is given three or more tensors of vectors."""
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
        if sum(x.ndim > 2 and not products.is_parameter(x) for x in given) >= 3 and not running():
            reason = f"`{name}` is an operation of another library: nothing can be seen inside"
            self._settle(Softmax(), "missed", reason)
        return func(*args, **kwargs)

    # What else reports attention.

    def told(self, call: AttentionCall, out: Tensor) -> None:
        """headwise's own attention was called."""
        how = "headwise.attention"
        self._hear(how, lambda place: self._found(place, call, out, lambda x: x, how))

    def opaque(
        self, name: str, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, result: Any, *args: Any, **kwargs: Any
    ) -> None:
        """A function of Hugging Face's registry was called, and computed nothing that is seen as a torch function."""

        def read(place: Place) -> None:
            call = huggingface.read(module, q, k, v, *args, **kwargs)
            self._checked(place, call, result, name, lambda x: x.transpose(1, 2))

        self._hear(name, read)

    def _hear(
        self, how: str, read: Callable[[Place], object], of: Softmax | None = None, q: Tensor | None = None
    ) -> None:
        """Read a computation that was recognised, if it was made in the model."""
        with self._reading(how, of, q):
            place = self._watcher.place()
            if place is not None:
                self.heard += 1
                read(place)
            else:
                self._watcher.outside(where())

    @contextlib.contextmanager
    def _reading(self, how: str, of: Softmax | None = None, q: Tensor | None = None) -> Iterator[None]:
        """Reading must never break the model: what cannot be read is refused.

        Inside, no function is listened to: weights that are computed for the comparison are not the model's attention.
        """
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                yield
        except TooMuch:
            raise
        except _UNREADABLE as error:
            place = self._watcher.place()
            if place is not None:
                self._watcher.refuse(place, f"{how}: {error}", where=where(), softmax=of)
                if q is not None:
                    self._watcher.refuse_parts(place, q)

    # Where weights meet their values.

    def _meet(self, name: str, out: Tensor, met: Met) -> None:
        """Weights met another tensor in a product: an attention, or what else it is."""
        trail, of = met.trail, met.trail.of or Softmax()
        if met.kind == "no softmax":
            changed = trail.loose or trail.problem
            self._settle(of, "missed" if changed else "not attention", _LOST if changed else _LINEAR)
            return
        if met.kind == "mixed":
            if trail.q is None and not products.is_parameter(met.other):
                self._settle(of, "not attention", "its weights are summed over another axis than its softmax")
            elif trail.q is not None:
                self._trails.put(out, trail.with_problem(f"the weights were mixed with each other by `{name}`"))
            return
        if met.kind == "factors":
            other = self._trails.get(met.other)
            reason = _POWERS if other is not None and other.product is trail.product else _FACTORS
            self._trails.put(out, trail.but(problem=reason))
            for each in (of, None if other is None else other.of):
                if each is not None:
                    self._settle(each, "refused", reason)
            return
        if trail.problem in (_FACTORS, _POWERS):  # and what it meets may be the last factor times the values
            made = self._made.get(id(met.other))
            if made is not None and made[0]() is met.other:
                self._settle(made[1], "refused", trail.problem)
        if of.line is not None and of.line.status == "seen":
            return  # these weights have met other values before: one softmax is one record
        learned = trail.q is not None and trail.k is not None and any(map(products.is_parameter, (trail.q, trail.k)))
        if trail.problem and products.is_parameter(met.other):
            self._settle(of, "missed", trail.problem)
        elif trail.exps:
            self._settle(of, "missed", _UNNORMALISED)
        elif met.kind == "assigned":
            self._settle(of, "refused", _ASSIGNED)
        elif met.kind:
            self._settle(of, "not attention" if trail.q is None or learned else "refused", met.kind)
        elif trail.q is None and products.is_parameter(met.other):
            self._settle(of, "not attention", "a softmax whose scores come from no product meets parameters")
        elif trail.q is None:
            reason = "its scores come from no product of queries and keys that could be followed"
            self._settle(of, "missed", f"{reason}; {trail.problem}" if trail.problem else reason)
        elif trail.k is not None and products.is_parameter(trail.k):
            self._settle(of, "not attention", "its keys are parameters: a router, or a table that is looked up softly")
        else:
            self._hear("matmul and softmax", lambda place: self._weighted(place, out, met), of, trail.q)

    def _settle(self, softmax: Softmax, status: Status, reason: str) -> None:
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
        if found.problem:
            raise RecordError(found.problem)
        if found.sinks is not None and not found.sinks_cut:
            raise RecordError("the column of sinks was multiplied by the values too")
        if values is None and self._watcher.values:
            raise RecordError("its values could not be read from the product, and are asked for")
        heads = self._heads or place.heads or found.heads
        if len(found.lead) == 1 and found.q is not None and _is_slice(found.q, heads):
            raise RecordError(
                "it is of some heads or examples of a tensor in which both are one dimension: which is not known"
            )
        layout = read_layout(found.lead, heads)
        if layout.at is not None and found.rows != found.keys:
            raise RecordError("its queries are cut into blocks that have keys of other blocks too")
        how, weights = "matmul and softmax", found.softmax
        if found.used or weights is None or found.q is None:
            weights = at_home(found, met.weights)
        if found.q is None or found.loose or found.used:
            call = self._kept(found, values, layout, weights)
            how = "softmax of other scores" if found.q is None else "matmul and softmax, its scores kept"
        else:
            call = self._call_of(found, values, layout)
        weights = layout.fold(weights)
        wrong = wrong_weights(call, weights, found.dtype)
        if wrong is not None:
            call = with_own_rows(call, weights)
            wrong = wrong_weights(call, weights, found.dtype)
        if wrong is not None:
            raise RecordError(wrong)
        arrange = met.arrange
        if found.q is not None and self._watcher.is_part(place, found.q):
            raise RecordError(PART)
        entry = self._found(place, call, out, lambda x: layout.fold(x if arrange is None else arrange(x)), how)
        softmax = found.of
        assert softmax is not None
        self._watcher.ledger.strike(softmax)
        softmax.line = Line(place.name, "seen", how, "")
        if entry is not None:
            softmax.withdraw = functools.partial(self._watcher.withdraw, entry)
            if found.q is not None:
                self._watcher.may_be_part(place, found.q, softmax)
            key, made = id(out), self._made
            made[key] = weakref.ref(out, lambda _: made.pop(key, None)), softmax

    def _kept(self, found: Trail, values: Tensor | None, layout: Layout, weights: Tensor) -> AttentionCall:
        """A call whose scores are kept as what they are beside those of its queries and keys.

        Of weights that were changed after the softmax these are the logarithms of those that were used.
        """
        scores = None if found.scores is None or found.used else layout.fold(found.scores).float()
        if scores is None:
            weights = layout.fold(weights)
            if not operations.sum_to_one(weights) or bool((weights < 0).any()):
                raise RecordError(
                    f"its weights were changed by `{found.used}` after the softmax, and do not sum to 1: no softmax "
                    "gives them"
                )
            scores = weights.float().log()
        if found.q is None or found.k is None:
            q, k = scores.new_zeros(*scores.shape[:3], 1), scores.new_zeros(*scores.shape[:2], scores.shape[3], 1)
            scale = 1.0
        else:
            _check_values(found.q)
            q, k = (layout.fold(x).to(found.dtype) for x in (found.q, found.k))
            scale = found.factor if found.inner is None else 0.0
        if bool((scores.isnan() | (scores == torch.inf)).any()):
            raise RecordError("its scores are not all numbers")
        top = scores.amax(-1, keepdim=True)
        forbidden = (scores - top <= FORBIDS) | (scores == -torch.inf)
        rest = scores - scale * (q.float() @ k.float().mT)
        if found.used:
            count = (~forbidden).sum(-1, keepdim=True).clamp(min=1)
            rest = rest - rest.masked_fill(forbidden, 0.0).sum(-1, keepdim=True) / count
        rest = rest.masked_fill(forbidden, 0.0)
        size = scores.masked_fill(forbidden, 0.0).abs().amax(-1, keepdim=True)
        nothing = 4 * torch.finfo(found.dtype).eps * (1 + size) if found.dtype == torch.float32 else 0.0
        rest = rest.masked_fill((rest.abs() <= nothing).all(-1, keepdim=True), 0.0)
        for dim in (0, 1, 3):
            first = rest.narrow(dim, 0, 1)
            rest = first if torch.equal(rest, first.expand_as(rest)) else rest
        shape = (*q.shape[:3], k.shape[2])
        mask, _ = self._recognised.mask(~forbidden, shape) if bool(forbidden.any()) else (None, None)
        v = k[..., :1] if values is None else layout.fold(values).to(k.dtype)
        bias = rest if bool(rest.any()) else None
        with torch.autocast(q.device.type, enabled=False):
            return make_call(q, k, v, mask=mask, bias=bias, scale=scale, dropout=found.dropout)

    def _call_of(self, found: Trail, values: Tensor | None, layout: Layout) -> AttentionCall:
        assert found.q is not None
        assert found.k is not None
        _check_values(found.q)
        # Autocast has lowered the operands of the product; the record gets the same.
        q, k = (layout.fold(x).to(found.dtype) for x in (found.q, found.k))
        v = k[..., :1] if values is None else layout.fold(values).to(found.dtype)
        shape = (*q.shape[:3], k.shape[2])
        parts = [self._filled(found, layout, shape)] if found.fills else []
        for term, coefficient in found.terms:
            # Multiplied first: the factor may decide whether a value forbids.
            term = layout.fold_mask(term if coefficient == 1 else term * coefficient)
            parts.append(self._recognised.additive(term, shape, found.dtype))
        allowed = [mask for mask, _ in parts if mask is not None]
        biases = [bias for _, bias in parts if bias is not None]
        mask = functools.reduce(operator.and_, allowed) if allowed else None
        bias = functools.reduce(operator.add, biases) if biases else None
        softcap = None if found.inner is None else found.factor
        scale = found.factor if found.inner is None else found.inner * found.factor
        sinks = None if found.sinks is None else layout.fold(found.sinks)
        if sinks is not None and not bool((sinks == sinks[:1, :, :1]).all()):
            # A sink of each query: scores less that sink, beside a sink of 0, have the same softmax.
            rows = -sinks.float()
            bias, sinks = rows if bias is None else bias + rows, torch.zeros_like(sinks)
        sinks = None if sinks is None else sinks[0, :, 0, 0]
        if bias is not None and not bias.is_floating_point():
            bias = bias.to(q.dtype)
        with torch.autocast(q.device.type, enabled=False):
            return make_call(
                q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, dropout=found.dropout
            )

    def _filled(self, found: Trail, layout: Layout, shape: tuple[int, ...]) -> Found:
        """(mask, bias) of all fills together."""
        forbidden = functools.reduce(operator.or_, (layout.fold_mask(x) for x, _ in found.fills))
        value, *others = {value for _, value in found.fills}
        if others and bool(forbidden.all(-1).any()):
            raise RecordError("its scores were filled with several numbers, in rows that are forbidden completely")
        return self._recognised.filled(forbidden, value, shape)

    def _attended(
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
        _check_values(query)
        lead = torch.broadcast_shapes(
            query.shape[:-2], *(x.shape[:-2] for x in (key, value) if x.ndim != 4 or query.ndim != 4)
        )
        layout = read_layout(tuple(lead), self._heads or place.heads)
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
        self._found(place, call, out, arrange, "scaled_dot_product_attention")

    def _flex(self, place: Place, out: Tensor | tuple[Tensor, ...], *args: Any, **kwargs: Any) -> None:
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

    def _found(self, place: Place, call: AttentionCall, out: Tensor, arrange: Arrange, how: str) -> Entry | None:
        k, v = (out_of_buffer(x) for x in share_heads(call.k, call.v))
        call = dataclasses.replace(call, k=k, v=v)
        entry = self._watcher.found(place, call, out, arrange, how)
        if entry is not None and self._watcher.values:
            self._outputs.put(out, call.shape[1], lambda weight: entry.keep("output_weight", weight))
        return entry


def _is_slice(x: Tensor, heads: int | None) -> bool:
    """Whether `x` [n, Q, D] is some of the matrices of a larger tensor, and not all heads of an example."""
    whole = x._base
    some = whole is not None and whole.shape[-2:] == x.shape[-2:] and whole.numel() > x.numel()
    return some and len(x) > 1 and x.stride(0) == x.shape[1] * x.shape[2] and (not heads or len(x) % heads > 0)


def _any_known(known: Container[int], given: Iterable[Any]) -> bool:
    """Whether a followed tensor is among arguments, or in a list among them."""
    for x in given:  # noqa: SIM110 - any() takes twice as long, and every call asks
        if id(x) in known or (isinstance(x, (list, tuple)) and any(id(part) in known for part in x)):
            return True
    return False


def _check_values(q: Tensor) -> None:
    """Raise RecordError for tensors that are only shapes."""
    if q.is_meta or type(q).__name__ == "FakeTensor":
        raise RecordError(f"its tensors hold no numbers: they are {'on meta' if q.is_meta else 'FakeTensors'}")
