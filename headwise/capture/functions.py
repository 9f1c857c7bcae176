"""Listens to every torch function that a watched or edited model calls, and recognises attention among them.

While this mode (a `TorchFunctionMode`) is active, nn.MultiheadAttention and nn.TransformerEncoder do not use their
fused fast path, so that their scaled_dot_product_attention can be seen. The outputs are the model's own: the mode calls
the same function with the same arguments.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _len_torch_function_stack,
    _pop_mode,
    _push_mode,
)

from headwise.capture import operation, operations, products
from headwise.capture.follower import FOLLOWERS
from headwise.capture.ledger import Softmax
from headwise.capture.pieces import Cells
from headwise.capture.recogniser import UNREADABLE, Read, Recogniser
from headwise.capture.trail import COPIES, Trails, copied, is_learned, is_parameter
from headwise.functional import running

Handler = Callable[[Callable[..., Any], str, Sequence[Any], Mapping[str, Any]], Any]

# These functions sum numbers by group, such as the edges of each node of a graph.
_GROUPED = (
    "index_add",
    "index_add_",
    "scatter_add",
    "scatter_add_",
    "scatter_reduce",
    "scatter_reduce_",
    "segment_reduce",
)
_FUSED = ("scaled_dot_product_attention", "flex_attention")
# Functions in which weights may be multiplied with values a second time.
_MEETS = frozenset(products.PRODUCTS) - {"sum", "mean"}
# Fused operations that take the model's input and hide its queries and keys.
_HIDDEN = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")


def _seen_inside(function: Any) -> Callable[..., Any]:
    """Copy a torch function so that the active mode sees the calls inside it, and not the function as a single call."""
    code, given = function.__code__, {**function.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(code, given, argdefs=function.__defaults__)


_multi_head_attention_forward = _seen_inside(functional.multi_head_attention_forward)
_backward = _seen_inside(torch.autograd.backward)


class Functions(TorchFunctionMode):
    """A mode of torch that reports every attention computation among the torch functions called in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.recogniser = Recogniser()
        self._trails, self._tape, self._outputs = self.recogniser.trails, self.recogniser.tape, self.recogniser.outputs
        self._known, self._unprojected = self._trails.known, self._outputs.known
        self._rewriting = self.recogniser.rewriting
        self._handlers: dict[str, Handler | None] = {  # name -> its handler; None = an ordinary operation
            **dict.fromkeys(products.PRODUCTS, self._product),
            **dict.fromkeys(_HIDDEN, self._hidden),
            **dict.fromkeys(_FUSED, self._fused),
            **dict.fromkeys((*operation.BARE, "exp", "exp_"), self._softmax),
            **dict.fromkeys(("cat", "concat", "concatenate"), self._joined),
            **dict.fromkeys(_GROUPED, self._grouped),
            "linear": self._linear,
            "multi_head_attention_forward": self._multi_head,
            "backward": self._backward,
        }

    def close(self) -> None:
        """Remove this mode and release everything that it followed, when no follower listens here any more."""
        _take_out(self)
        self._handlers.clear()  # the handlers hold this object

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not FOLLOWERS.here():
            return func(*args, **kwargs) if kwargs else func(*args)
        if self._rewriting and not running() and self._rewriting.touches(args):
            return self._call_edited(func, args, kwargs)
        return self._handle(func, args, kwargs)

    def _handle(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        # Most calls have nothing to do with attention: they must be quick.
        name = getattr(func, "__name__", "")  # the name of x.shape, x.device, x.mT is "__get__"
        try:
            handler = self._handlers[name]
        except KeyError:
            handler = self._handlers[name] = self._find_handler(func, name)
        if handler is not None:
            return handler(func, name, args, kwargs or {})
        out = func(*args, **kwargs) if kwargs else func(*args)
        if name in COPIES:
            copied(name, args, out)
        in_steps = self.recogniser.in_steps
        if self._known or self._unprojected or not in_steps:
            name = name if name != "__get__" else func.__self__.__name__  # type: ignore[attr-defined]
            if not in_steps and not running():
                self._remember(func, name, args, kwargs or {}, out)
            if self._known or self._unprojected:
                self._follow(name, args, kwargs, out)
        return out

    def _call_edited(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        """Call a function that gets attention weights whose output was edited before.

        If the function multiplies them with other values, the edit changes this product too. Any other function gets
        the edited weights in their place.
        """
        if getattr(func, "__name__", "") in _MEETS:
            self.recogniser.has_changed = False
            out = self._handle(func, args, kwargs)
            if self.recogniser.has_changed:
                return out
        with torch._C.DisableTorchFunction():
            args = tuple(self._rewriting.rewritten(x) for x in args)
        return self._handle(func, args, kwargs)

    def _find_handler(self, func: Any, name: str) -> Handler | None:
        """Find the method that reads calls of a torch function, when the function is called for the first time."""
        base = name.partition(".")[0]  # torch.ops.aten.bmm.default is called bmm.default
        handler = self._handlers.get(base)
        if handler is not None:
            return lambda func, _, args, kwargs: handler(func, base, args, kwargs)
        if "softmax" in name:
            return self._softmax
        if "attention" in name or "attn" in name:
            return self._hidden
        packet = getattr(func, "_qualified_op_name", "aten::").partition("::")[0]
        own = getattr(func, "namespace", packet) not in ("aten", "prims", "prim", "higher_order")
        return self._opaque_operation if own else None

    # Each handler calls the function, and then reads what it did.

    def _remember(
        self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        """Put an operation on the tape (tape.py: how each tensor was made), except in decoding steps of one token.

        If the tape cannot keep an operation, its result counts as a tensor of unknown origin.
        """
        if not self.recogniser.in_steps:
            with contextlib.suppress(*UNREADABLE):
                self._tape.step(func, name, args, kwargs, out)

    def _follow(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None, out: Any) -> None:
        """If arguments are scores, weights or attention outputs, note how the result was computed from them."""
        known, unprojected = self._known, self._unprojected
        followed = known and (_any_known(known, args) or (kwargs and _any_known(known, kwargs.values())))
        if not (followed or unprojected) or running():
            return
        if followed:
            base = name.partition(".")[0]
            try:
                # Queries and keys are viewed as the scores are; an edit computes with them, and needs their gradients.
                graph = torch.is_grad_enabled() and any(follower.changes for follower in FOLLOWERS.here())
                with torch.set_grad_enabled(graph), torch._C.DisableTorchFunction():
                    operations.step(base, self._trails, args, kwargs or {}, out)
                    if base in operation.BARE or base == "exp":
                        self._keep_cells(args, kwargs or {}, out)
            except UNREADABLE as error:  # the operation is not what its name says
                self._lose(base, args, out, error)
        if unprojected:
            with contextlib.suppress(*UNREADABLE), torch.no_grad():
                self._outputs.step(name, args, out)

    def _keep_cells(self, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Keep the scores of a softmax that are in blocks or were rearranged: they may have to be read one by one."""
        found = self._known.get(id(out))
        trail = None if found is None else found[1]
        if trail is None or trail.of is None or trail.of.cells is not None or trail.q is None:
            return
        joined = trail.born is None or trail.keys != trail.born.trail.keys
        if trail.problem or joined or len(trail.lead) > 2:
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            trail.of.cells = Cells(args[0].detach(), self._tape.node(args[0]), dim if isinstance(dim, int) else -1)

    def _plain(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function, and note how its result was computed, as for an ordinary operation."""
        out = func(*args, **kwargs)
        if not running():
            self._remember(func, name, args, kwargs, out)
            self._follow(name, args, kwargs, out)
        return out

    def _joined(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = self._plain(func, name, args, kwargs)
        if not running():
            for follower in FOLLOWERS.here():
                follower.joined(out, *args, **kwargs)
        return out

    def _lose(self, name: str, args: Sequence[Any], out: Any, error: Exception) -> None:
        """Give the result of an unreadable operation the trail (history) of its operand, with the error as problem."""
        followed = [trail for trail in map(self._trails.get, args) if trail]
        if followed and isinstance(out, Tensor) and out.is_floating_point():
            self._trails.put(out, followed[0].with_problem(f"`{name}` could not be followed: {error}"))

    def _softmax(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call and read a softmax; or an exp, which becomes a softmax if the model divides it by its sum later."""
        out = self._plain(func, name, args, kwargs)
        if isinstance(out, Tensor) and not running() and id(out) not in self._known:
            with self.recogniser.reading(name):
                self._trails.put(out, operations.bare(name.partition(".")[0], args, kwargs, out))
        return out

    def _grouped(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        for trail in map(self._trails.get, (*args, *kwargs.values())):
            if trail is not None and trail.exps and trail.of is not None and not running():
                self.recogniser.settle(
                    trail.of,
                    "missed",
                    f"exp(scores) is summed by `{name}`: a softmax of groups, as of the edges of a graph",
                )
        return self._plain(func, name, args, kwargs)

    def _linear(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        weight = args[1] if len(args) > 1 else None
        trail = self._trails.get(args[0]) if id(args[0]) in self._known else None
        plain = trail is None or (trail.of is None and (trail.q is None or trail.problem))
        if isinstance(weight, nn.Parameter) and plain:
            out = func(*args, **kwargs)
            if self._unprojected and not running():
                self._follow(name, args, kwargs, out)
            return out
        return self._product(func, name, args, kwargs)

    def _product(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if running() or not isinstance(out, Tensor):
            return out
        met = found = None
        with self.recogniser.reading("matmul and softmax"):
            met = products.values(name, args, kwargs, self._trails, out) if self._known else None
            found = products.product(name, args, kwargs, self._trails, out) if met is None else None
        if met is not None:
            new = self.recogniser.meet(name, out, met)
            if met.kind != "no softmax":
                return new
            with self.recogniser.reading(name):
                found = products.product(name, args, kwargs, Trails(), out)
        if self._unprojected or (found is None and self._known):
            self._follow(name, args, kwargs, out)
        if found is not None:
            if not (found.problem or self.recogniser.in_steps or is_learned(found)):
                found = found.but(born=self._tape.begin(out, found, name, args, kwargs))
            self._trails.put(out, found)
        return out

    def _fused(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if running():
            return func(*args, **kwargs)
        recogniser, edits = self.recogniser, None
        listed = recogniser.flex if name == "flex_attention" else recogniser.attended

        def read(out: Any) -> Read:
            return lambda place, values: listed(place, values, out, *args, **kwargs)

        if name != "flex_attention" and any(follower.changes for follower in FOLLOWERS.here()):
            query, value = (args[at] if len(args) > at else kwargs[key] for at, key in ((0, "query"), (2, "value")))
            out = torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype, device="meta")
            edits = recogniser.hear_before(name, read(out))
            if edits and edits[-1].new is not None:
                return recogniser.changed(out, edits)
        heard = recogniser.heard
        out = func(*args, **kwargs)
        if recogniser.heard != heard:  # headwise's own attention was called inside, and reported already
            return out
        return recogniser.hear(name, read(out), out, edits=edits)

    def _multi_head(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not torch.is_grad_enabled():
            self.recogniser.note(
                "nn.MultiheadAttention and nn.TransformerEncoder did not use their fused fast path: outputs may differ "
                "in the last digits, and at padding, which the fast path sets to 0"
            )
        before, self.recogniser.heads = (
            self.recogniser.heads,
            kwargs.get("num_heads", args[4] if len(args) > 4 else None),
        )
        try:
            with self:
                return _multi_head_attention_forward(*args, **kwargs)
        finally:
            self.recogniser.heads = before

    def _backward(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a backward pass with this mode active: gradient checkpointing runs parts of the model again in it."""
        if func is Tensor.backward:  # its (x, gradient, ...) are the (tensors, grad_tensors, ...) of autograd.backward
            kwargs = {"grad_tensors" if key == "gradient" else key: value for key, value in kwargs.items()}
        elif func is not torch.autograd.backward:
            return func(*args, **kwargs)
        with self:
            return _backward(*args, **kwargs)

    def _hidden(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not running() and self.recogniser.placed():
            self.recogniser.refuse(f"{name} is one fused operation, which hides its queries and keys")
        return func(*args, **kwargs)

    def _opaque_operation(
        self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call another library's operation; report one that gets three or more tensors: it may be attention."""
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
        if sum(x.ndim > 2 and not is_parameter(x) for x in given) >= 3 and not running():
            reason = f"`{name}` is an operation of another library: nothing can be seen inside"
            self.recogniser.settle(Softmax(), "missed", reason)
        return func(*args, **kwargs)


def _any_known(known: Container[int], given: Iterable[Any]) -> bool:
    """Return whether a followed tensor (its id is in `known`) is among the arguments, or in a list among them."""
    for x in given:  # noqa: SIM110 - any() takes twice as long, and every call asks
        if id(x) in known or (isinstance(x, (list, tuple)) and any(id(part) in known for part in x)):
            return True
    return False


# The function mode of each thread, while a model is watched or edited there.


class _Thread(threading.local):
    users = 0
    mode: Functions | None = None


_thread = _Thread()


@contextlib.contextmanager
def functions_here() -> Iterator[None]:
    """Return a context in which this thread's torch functions are listened to. Such contexts may end in any order."""
    mode = _thread.mode
    if mode is None:
        mode = _thread.mode = Functions()
        _push_mode(mode)
    _thread.users += 1
    try:
        yield
    finally:
        _thread.users -= 1
        if not _thread.users:
            mode.close()
            _thread.mode = None


def recogniser_here() -> Recogniser | None:
    """Return the object that recognises attention in this thread; None if its torch functions are not listened to."""
    return None if _thread.mode is None else _thread.mode.recogniser


def listened_to() -> contextlib.AbstractContextManager[object] | None:
    """Return a context in which the torch functions of this thread are listened to again; None if they already are.

    This is needed if another framework runs the followed code in one of its threads, and because torch removes modes
    inside of an operator.
    """
    if _thread.mode is None:
        return functions_here()
    return None if _thread.mode in _get_current_function_mode_stack() else _thread.mode


def _take_out(mode: Functions) -> None:
    """Remove a mode from this thread's stack of torch function modes; the other modes keep their order."""
    above = []
    while _len_torch_function_stack() and (top := _pop_mode()) is not mode:
        above.append(top)
    for each in reversed(above):
        _push_mode(each)
