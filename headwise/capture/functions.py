"""Hears of every torch function that the model calls, and recognises the attention among them.

Inside the mode torch's own switches choose the plain paths: nn.MultiheadAttention and nn.TransformerEncoder leave their
fused fast path because a mode is active, so that their scaled_dot_product_attention can be seen. The outputs are the
model's own: the mode calls what was called, with what it was called with.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
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
from headwise.capture.masks import Found, Recognised
from headwise.capture.sites import Place
from headwise.capture.trail import Trail, Trails
from headwise.capture.verify import wrong_output, wrong_weights
from headwise.errors import HeadwiseError, RecordError
from headwise.functional import running
from headwise.masks.additive import UNIFORM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwise.capture.watcher import Watcher

Handler = Callable[[Callable[..., Any], str, Sequence[Any], Mapping[str, Any]], Any]
Arrange = Callable[[Tensor], Tensor]

_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "baddbmm_", "einsum")
# What a tensor of an unexpected kind or shape makes torch and headwise raise.
_UNREADABLE = (HeadwiseError, RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError)
# What is asked of a tensor all the time, and makes no other: passed on as quickly as can be.
_QUESTIONS = ("__get__", "dim", "size", "stride", "numel", "is_floating_point", "is_contiguous", "__len__", "item")
# Fused operations that take the model's input and hide its queries and keys.
_HIDDEN = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")


def _seen_inside(function: Any) -> Callable[..., Any]:
    """A function that hands itself to the active mode first of all: the same code, which does not."""
    code, given = function.__code__, {**function.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(code, given, argdefs=function.__defaults__)


_multi_head_attention_forward = _seen_inside(functional.multi_head_attention_forward)
_backward = _seen_inside(torch.autograd.backward)


class Functions(TorchFunctionMode):
    """Tells a watcher of every attention computation among the torch functions that are called."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher
        self._trails = Trails()
        self._outputs = projection.Outputs()
        self._recognised = Recognised()
        self.heard = 0  # how many computations were heard of
        self.sinks: Tensor | None = None  # what the caller will make of a FlexAttention afterwards
        self.asked: torch.Size | None = None  # the shape of the queries that the registry's function was given
        self._heads: int | None = None  # inside nn.MultiheadAttention: its number of heads
        self._handlers: dict[str, Handler] = {
            **dict.fromkeys(_QUESTIONS, self._question),
            **dict.fromkeys(_PRODUCTS, self._product),
            **dict.fromkeys(_HIDDEN, self._hidden),
            "scaled_dot_product_attention": self._sdpa,
            "multi_head_attention_forward": self._multi_head,
            "flex_attention": self._flex,
            "backward": self._backward,
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        name = getattr(func, "__name__", "")
        return self._handlers.get(name, self._operation)(func, name, args, kwargs)

    # Each handler calls the function, and then looks at what it did.

    def _operation(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if (self._trails or self._outputs) and not running():
            self._follow(name, args, kwargs, out)
        return out

    def _follow(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        try:
            with torch.no_grad():
                if self._trails:
                    operations.step(name, self._trails, args, kwargs, out)
                if self._outputs:
                    self._outputs.step(name, args, out)
        except _UNREADABLE:  # not of the kind that it looked like
            if isinstance(out, Tensor):
                self._trails.put(out, None)

    def _question(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if self._trails and isinstance(out, Tensor) and not running():  # x.mT, x.data
            self._follow(func.__self__.__name__, args, kwargs, out)  # type: ignore[attr-defined]
        return out

    def _product(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if running() or not isinstance(out, Tensor):
            return out
        found = None
        with self._reading("matmul and softmax"):
            met = products.values(name, args, kwargs, self._trails) if self._trails else None
            if met is not None:
                self._weighted(*met, out)
                return out
            found = products.product(name, args, kwargs, out)
        if found is None or self._outputs:
            self._follow(name, args, kwargs, out)
        if found is not None:
            self._trails.put(out, found)
        return out

    def _multi_head(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not torch.is_grad_enabled():
            self._watcher.note(
                "nn.MultiheadAttention and nn.TransformerEncoder left their fused fast path: outputs may differ in the "
                "last digits, and at padding, which the fast path sets to 0"
            )
        before, self._heads = self._heads, kwargs.get("num_heads", args[4] if len(args) > 4 else None)
        try:
            with self:
                return _multi_head_attention_forward(*args, **kwargs)
        finally:
            self._heads = before

    def _backward(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Gradient checkpointing runs parts of the model again in there, which must be seen too."""
        if func is Tensor.backward:  # (x, gradient, ...) are (tensors, grad_tensors, ...) of the other
            kwargs = {"grad_tensors" if key == "gradient" else key: value for key, value in kwargs.items()}
        elif func is not torch.autograd.backward:
            return func(*args, **kwargs)
        with self:
            return _backward(*args, **kwargs)

    def _hidden(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        place = self._watcher.place()
        if place is not None:
            self._watcher.refuse(place, f"{name} is one fused operation, which hides its queries and keys")
        return func(*args, **kwargs)

    def _sdpa(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if running():
            return out
        with self._reading(name):
            place = self._watcher.place()
            if place is not None:
                self.heard += 1
                self._attended(place, out, name, **_sdpa_arguments(*args, **kwargs))
        return out

    def _flex(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if running():
            return out
        with self._reading(name):
            place = self._watcher.place()
            if place is not None:
                self.heard += 1
                self._watcher.note("FlexAttention ran uncompiled: its outputs may differ in the last digits")
                call = flex.read(*args, **kwargs)
                self._checked(place, call, out[0] if isinstance(out, tuple) else out, name, lambda x: x)
        return out

    @contextmanager
    def _reading(self, how: str) -> Iterator[None]:
        """What is recognised must never break the model: what cannot be read is refused.

        Inside, nothing is listened to: weights that are worked out to compare are no attention of the model's.
        """
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                yield
        except TooMuch:
            raise
        except _UNREADABLE as error:
            place = self._watcher.place()
            if place is not None:
                self._watcher.refuse(place, f"{how}: {error}")

    # What was recognised, as a call.

    def _weighted(self, found: Trail, v: Tensor, arrange: Arrange, out: Tensor) -> None:
        """Weights that a softmax made of a product have met their values."""
        place = self._watcher.place()
        if place is None:
            return
        self.heard += 1
        how = "matmul and softmax"
        if found.problem:
            self._watcher.refuse(place, found.problem)
            return
        if found.sinks is not None and not found.sinks_cut:
            self._watcher.refuse(place, "the column of sinks met the values too")
            return
        layout = read_layout(found.lead, self._heads or place.heads)
        call = self._call_of(found, v, layout)
        assert found.softmax is not None
        wrong = wrong_weights(call, layout.fold(found.softmax), found.dtype)
        if wrong is not None:
            self._watcher.refuse(place, wrong)
            return
        self._found(place, call, out, lambda x: layout.fold(arrange(x)), how)

    def _call_of(self, found: Trail, v: Tensor, layout: Layout) -> AttentionCall:
        _check_values(found.q)
        # Autocast has lowered what the product took; the record takes the same.
        q, k, v = (x.to(found.dtype) for x in (layout.fold(found.q), layout.fold_keys(found.k), layout.fold_keys(v)))
        if k.shape[1] != v.shape[1]:
            k, v = layout.fold(found.k).to(found.dtype), layout.fold(v).to(found.dtype)
        shape = (*q.shape[:3], k.shape[2])
        mask, biases = None, []
        parts = [] if not found.fills else [self._filled(found, layout, shape)]
        for term, coefficient in found.terms:
            # Multiplied first: what forbids may no longer forbid then, or the other way round.
            term = layout.fold_mask(term if coefficient == 1 else term * coefficient)
            parts.append(self._recognised.additive(term, shape))
        for part, bias in parts:
            mask = part if mask is None else mask if part is None else mask & part
            if bias is not None:
                biases.append(bias)
        softcap = None if found.inner is None else found.factor
        scale = found.factor if found.inner is None else found.inner * found.factor
        sinks = None if found.sinks is None else layout.fold(found.sinks)[0, :, 0, 0]
        if len(biases) > 1 and sinks is None:
            # A row that is forbidden as a whole attends to all keys alike, whatever its scores and other biases are.
            alike = [x <= UNIFORM for x in biases if x.shape[-1] == 1]
            biases = [x for x in biases if x.shape[-1] > 1 or not bool((x <= UNIFORM).any())]
            for rows in alike:
                q = q.masked_fill(rows, 0.0)
                biases = [x.masked_fill(rows, 0.0) for x in biases]
        bias = None if not biases else biases[0] if len(biases) == 1 else sum(biases[1:], biases[0])
        if sinks is None:
            q, bias = _even(q, bias)
        if bias is not None and not bias.is_floating_point():
            bias = bias.to(q.dtype)
        with torch.autocast(q.device.type, enabled=False):
            return make_call(
                q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, dropout=found.dropout
            )

    def _filled(self, found: Trail, layout: Layout, shape: tuple[int, ...]) -> Found:
        """What all fills come to: (mask, bias)."""
        fills = [(layout.fold_mask(x), value) for x, value in found.fills]
        (forbidden, value), *others = fills
        for more, _ in others:
            forbidden = forbidden | more
        if any(other != value for _, other in others) and bool(forbidden.all(-1).any()):
            raise RecordError("its scores were filled with several numbers, in rows that these forbid as a whole")
        return self._recognised.filled(forbidden, value, shape)

    def _attended(
        self,
        place: Place,
        out: Tensor,
        how: str,
        *,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None,
        dropout: float,
        is_causal: bool,
        scale: float | None,
    ) -> None:
        """F.scaled_dot_product_attention was called."""
        _check_values(q)
        lead = torch.broadcast_shapes(q.shape[:-2], *(x.shape[:-2] for x in (k, v) if x.ndim != 4 or q.ndim != 4))
        layout = read_layout(tuple(lead), self._heads or place.heads)
        q = layout.fold(q)
        k, v = (x if x.ndim == 4 and x.shape[0] == len(q) else layout.fold_keys(x) for x in (k, v))
        arrange: Arrange = layout.fold
        asked = self.asked
        if asked is not None and q.shape != asked and tuple(asked) == (len(q), q.shape[1] * q.shape[2], 1, q.shape[3]):
            # transformers puts the query heads of a key head below one another when there is a single query.
            q = q.reshape(asked)
            if attn_mask is not None and attn_mask.ndim == 4 and attn_mask.shape[1] > 1:
                attn_mask = attn_mask.reshape(len(attn_mask), asked[1], 1, attn_mask.shape[3])
            heads = asked[1]
            arrange = lambda x: layout.fold(x).reshape(len(x), heads, 1, x.shape[-1])  # noqa: E731
            layout = Layout((len(q), heads), len(q), heads)
        shape = (*q.shape[:3], k.shape[2])
        mask, bias = None, None
        if is_causal:
            mask = masks.causal(offset=0)
        elif attn_mask is not None and attn_mask.dtype == torch.bool:
            mask = self._recognised.mask(layout.fold_mask(attn_mask), shape)
        elif attn_mask is not None:
            mask, bias = self._recognised.additive(layout.fold_mask(attn_mask), shape)
        q, bias = _even(q, bias)
        call = make_call(q, k, v, mask=mask, bias=bias, scale=scale, dropout=dropout)
        self._found(place, call, out, arrange, how)

    def told(self, call: AttentionCall, out: Tensor) -> None:
        """headwise's own attention was called."""
        with self._reading("headwise.attention"):
            place = self._watcher.place()
            if place is not None:
                self._found(place, call, out, lambda x: x, "headwise.attention")

    def opaque(
        self, name: str, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, result: Any, *args: Any, **kwargs: Any
    ) -> None:
        """A function of Hugging Face's registry did its work where no torch function could be seen."""
        with self._reading(name):
            place = self._watcher.place()
            if place is not None:
                out = result[0] if isinstance(result, tuple) else result
                call = huggingface.read(module, q, k, v, *args, **kwargs)
                self._checked(place, call, out, name, lambda x: x.transpose(1, 2))

    def _checked(self, place: Place, call: AttentionCall, out: Tensor, how: str, arrange: Arrange) -> None:
        """A call that was only read off its arguments: kept if it explains the output."""
        wrong = wrong_output(call, arrange(out))
        if wrong is not None:
            self._watcher.refuse(place, wrong)
            return
        if self.sinks is not None:  # FlexAttention knows none: Hugging Face scales its output afterwards
            call = dataclasses.replace(call, sinks=self.sinks.detach().to(call.q.dtype))
        self._found(place, call, out, arrange, how)

    def _found(self, place: Place, call: AttentionCall, out: Tensor, arrange: Arrange, how: str) -> None:
        k, v = (out_of_buffer(x) for x in share_heads(call.k, call.v))
        call = dataclasses.replace(call, k=k, v=v)
        entry = self._watcher.found(place, call, out, arrange, how)
        if entry is not None and self._watcher.values:
            self._outputs.put(out, call.shape[1], entry.keep_output_weight)


def _even(q: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Queries and bias where a bias [., ., Q, K] forbids rows as a whole: they attend to all their keys alike.

    So do queries of 0 without a bias; the low number would round the row's log-sum-exp.
    """
    if bias is None or bias.ndim < 4 or bias.shape[-1] == 1:
        return q, bias
    first = bias[..., :1]
    rows = (first <= UNIFORM) & (first != -torch.inf)
    if not bool(rows.any()):
        return q, bias
    if bool((rows & (bias <= UNIFORM).all(-1, keepdim=True) & (bias != first).any(-1, keepdim=True)).any()):
        raise RecordError("its bias forbids rows as a whole, with several numbers")
    rows &= (bias == first).all(-1, keepdim=True)
    return q.masked_fill(rows, 0.0), bias.masked_fill(rows, 0.0)


def _check_values(q: Tensor) -> None:
    """Raise RecordError for tensors that are only shapes."""
    if q.is_meta or type(q).__name__ == "FakeTensor":
        raise RecordError(f"its tensors hold no numbers: they are {'on meta' if q.is_meta else 'FakeTensors'}")


def _sdpa_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> dict[str, Any]:
    """The arguments of F.scaled_dot_product_attention, by name."""
    return {
        "q": query,
        "k": key,
        "v": value,
        "attn_mask": attn_mask,
        "dropout": dropout_p,
        "is_causal": is_causal,
        "scale": scale,
    }
