"""Listens to every torch function that the model calls, and recognises attention among them.

While the mode is active, nn.MultiheadAttention and nn.TransformerEncoder do not use their fused fast path, so that
their scaled_dot_product_attention can be seen. The outputs are the model's own: the mode calls the same function with
the same arguments.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwise.capture.watcher import Watcher

Handler = Callable[[Callable[..., Any], str, Sequence[Any], Mapping[str, Any]], Any]
Arrange = Callable[[Tensor], Tensor]

_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "baddbmm_", "einsum")
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
        self._outputs = projection.Outputs()
        self._recognised = Recognised()
        self.heard = 0  # how many computations were seen as torch functions
        self.sinks: Tensor | None = None  # learned sinks that the caller applies to the output of FlexAttention
        self.asked: torch.Size | None = None  # the shape of the queries that the registry's function was given
        self._heads: int | None = None  # inside nn.MultiheadAttention: its number of heads
        self._handlers: dict[str, Handler] = {
            **dict.fromkeys(_PRODUCTS, self._product),
            **dict.fromkeys(_HIDDEN, self._hidden),
            **dict.fromkeys(("scaled_dot_product_attention", "flex_attention"), self._fused),
            "multi_head_attention_forward": self._multi_head,
            "backward": self._backward,
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        name = getattr(func, "__name__", "")
        return self._handlers.get(name, self._operation)(func, name, args, kwargs)

    # Each handler calls the function, and then reads what it did.

    def _operation(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        # Most calls only ask (for a shape, a number) and make no tensor: they must be quick.
        if (isinstance(out, Tensor) or name == "__setitem__") and (self._trails or self._outputs) and not running():
            if name == "__get__":  # x.mT, x.data
                name = func.__self__.__name__  # type: ignore[attr-defined]
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

    def _product(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if running() or not isinstance(out, Tensor):
            return out
        met = found = None
        with self._reading("matmul and softmax"):
            met = products.values(name, args, kwargs, self._trails) if self._trails else None
            found = products.product(name, args, kwargs, out) if met is None else None
        if met is not None:
            self._hear("matmul and softmax", lambda place: self._weighted(place, out, *met))
            return out
        if found is None or self._outputs:
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
        place = self._watcher.place()
        if place is not None:
            self._watcher.refuse(place, f"{name} is one fused operation, which hides its queries and keys")
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

    def _hear(self, how: str, read: Callable[[Place], None]) -> None:
        """Read a computation that was recognised, if it was made in the model."""
        with self._reading(how):
            place = self._watcher.place()
            if place is not None:
                self.heard += 1
                read(place)

    @contextmanager
    def _reading(self, how: str) -> Iterator[None]:
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
                self._watcher.refuse(place, f"{how}: {error}")

    # What was recognised, as a call.

    def _weighted(self, place: Place, out: Tensor, found: Trail, v: Tensor, arrange: Arrange) -> None:
        """Weights that a softmax made of a product were multiplied by their values."""
        if found.problem:
            raise RecordError(found.problem)
        if found.sinks is not None and not found.sinks_cut:
            raise RecordError("the column of sinks was multiplied by the values too")
        layout = read_layout(found.lead, self._heads or place.heads)
        call = self._call_of(found, v, layout)
        assert found.softmax is not None
        wrong = wrong_weights(call, layout.fold(found.softmax), found.dtype)
        if wrong is not None:
            raise RecordError(wrong)
        self._found(place, call, out, lambda x: layout.fold(arrange(x)), "matmul and softmax")

    def _call_of(self, found: Trail, v: Tensor, layout: Layout) -> AttentionCall:
        _check_values(found.q)
        # Autocast has lowered the operands of the product; the record gets the same.
        q, k, v = (layout.fold(x).to(found.dtype) for x in (found.q, found.k, v))
        shape = (*q.shape[:3], k.shape[2])
        parts = [self._filled(found, layout, shape)] if found.fills else []
        for term, coefficient in found.terms:
            # Multiplied first: the factor may decide whether a value forbids.
            term = layout.fold_mask(term if coefficient == 1 else term * coefficient)
            parts.append(self._recognised.additive(term, shape))
        allowed = [mask for mask, _ in parts if mask is not None]
        biases = [bias for _, bias in parts if bias is not None]
        mask = functools.reduce(operator.and_, allowed) if allowed else None
        bias = functools.reduce(operator.add, biases) if biases else None
        softcap = None if found.inner is None else found.factor
        scale = found.factor if found.inner is None else found.inner * found.factor
        sinks = None if found.sinks is None else layout.fold(found.sinks)[0, :, 0, 0]
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

    def _found(self, place: Place, call: AttentionCall, out: Tensor, arrange: Arrange, how: str) -> None:
        k, v = (out_of_buffer(x) for x in share_heads(call.k, call.v))
        call = dataclasses.replace(call, k=k, v=v)
        entry = self._watcher.found(place, call, out, arrange, how)
        if entry is not None and self._watcher.values:
            self._outputs.put(out, call.shape[1], lambda weight: entry.keep("output_weight", weight))


def _check_values(q: Tensor) -> None:
    """Raise RecordError for tensors that are only shapes."""
    if q.is_meta or type(q).__name__ == "FakeTensor":
        raise RecordError(f"its tensors hold no numbers: they are {'on meta' if q.is_meta else 'FakeTensors'}")
