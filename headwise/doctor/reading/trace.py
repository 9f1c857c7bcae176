"""Trace one forward: the matrix products and softmaxes of a module, with marks on their operands.

`trace(module, inputs, function, output)` runs `function` under a dispatch mode. It sees the operations that every style
of code is executed as: einsum, bmm, `@` and Linear are all products, and fused attention is run as separate operations.
For each product and softmax it records the operands, the line of code, and the marks (marks.py). events.py describes
the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from headwise.doctor.lines import running_line
from headwise.doctor.probing.listen import Dispatching
from headwise.doctor.reading import marks, products
from headwise.doctor.reading.events import Ledger, Norm, Reshape, Trace, exchanges, regroups
from headwise.doctor.reading.marks import Marks
from headwise.doctor.reading.softmaxes import Softmaxes

T = TypeVar("T")


def trace(
    module: nn.Module, inputs: Sequence[Tensor | None], function: Callable[[], T], output: Callable[[T], Tensor]
) -> Trace:
    """Run `function`, which calls `module` on `inputs` ([B, N, M] each), and record its operations. The result's
    `output` is marked too.
    """
    ledger = Ledger(module, inputs)
    with torch.no_grad(), without_fused():
        with Tracing(ledger):
            result = function()
        found = ledger.trace
        found.result = result
        found.out = ledger.marks_of(output(result))
    return found


@contextmanager
def without_fused() -> Iterator[None]:
    """Run attention as separate operations: products and a softmax."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class Tracing(Dispatching):
    """The dispatch mode: how each of torch's operations changes the marks of its operands."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger
        self._softmaxes = Softmaxes(ledger)

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        self.ledger.order += 1
        # The numbers that an operation is about to overwrite, if they are needed.
        overwritten = args[0].detach().clone() if name in ("exp_", "exp2_") else None
        out = func(*args, **kwargs)
        try:
            self._follow(func, name, args, kwargs, out, overwritten)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            self.ledger.trace.problem = self.ledger.trace.problem or f"{name}: {error}"
        return out

    def _follow(
        self, func: Any, name: str, args: Sequence[Any], kwargs: Any, out: Any, overwritten: Tensor | None
    ) -> None:
        if name in ("sqrt", "rsqrt") and self.ledger.marks_of(args[0]).live:
            self.ledger.trace.roots += 1
        if name in _SPREADS:
            self._spread(name, args)
        in_place = name.endswith("_") and not name.startswith("__")
        plain = name.rstrip("_") if in_place else name
        if plain in _MULTIPLYING:
            products.product(self.ledger, plain, args, out)
        elif plain in ("_softmax", "_safe_softmax", "softmax"):
            self._softmaxes.operation(args[0], args[1], out)
        elif plain in ("convolution", "mkldnn_convolution"):
            products.convolution(self.ledger, args, out)
        elif plain == "embedding":
            products.embedding(self.ledger, args, out)
        elif plain in ("cat", "stack"):
            parts, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
            if out.numel():
                parts = [x for x in parts if plain == "stack" or x.numel() or x.ndim == out.ndim]
            self._joined([self.ledger.marks_of(x) for x in parts], dim, plain, out)
        elif plain == "view_as_complex":
            self.ledger.put(out, self.ledger.marks_of(args[0]).move(lambda x: x[..., 0]))
        elif plain == "view_as_real":
            found = self.ledger.marks_of(args[0])
            beside = torch.where(found.source < 0, found.source, found.source + 1)  # the two were adjacent
            self.ledger.put(
                out, found.like(torch.stack([found.token] * 2, -1), torch.stack([found.source, beside], -1))
            )
        elif plain in _MOVING:
            self._move(func, plain, args, kwargs, out)
        elif plain in ("copy", "index_put", "index_copy") and in_place:
            self._assign(func, plain, args)
        elif plain in ("fill", "zero") and in_place:
            self.ledger.step(plain, self.ledger.marks_of(args[0]), args)
        elif plain in _DICE and isinstance(out, Tensor):
            found = marks.constant(out.shape)
            found.noise = True
            self.ledger.put(out, found)
        elif plain == "sum" and self._softmaxes.summed(args, out):
            pass
        elif plain in _HANDING_ON or plain in _SINGLY or torch.Tag.pointwise in func.tags:
            self._single(plain, args, kwargs, out, in_place, overwritten)
        else:
            self._other(args, kwargs, out)

    def _spread(self, name: str, args: Sequence[Any]) -> None:
        """A statistic over dims along which the token changes."""
        x = args[0]
        found = self.ledger.marks_of(x)
        if not found.live or self._met_of_live(found):  # of scores, or of the result of an attention
            return
        dims = sorted({d % x.ndim for d in _reduced(name, args)})
        rest = [d for d in range(x.ndim) if d not in dims]
        tokens = found.token.permute(*rest, *dims).reshape([x.shape[d] for d in rest] + [-1])
        examples = marks.example_of(tokens)
        known = (tokens >= 0).all(-1) & (examples == examples[..., :1]).all(-1)
        if bool(known.any()) and bool((tokens != tokens[..., :1]).any(-1)[known].all()):
            self.ledger.trace.norms.append(Norm(name, running_line(), self.ledger.order))

    def _other(self, args: Any, kwargs: Any, out: Any) -> None:
        """An unknown operation: its results depend on the inputs if one of its operands does."""
        parts = [self.ledger.marks_of(x) for x in marks.tensors_in([list(args), kwargs])]
        for x in marks.tensors_in(out):
            found = marks.constant(x.shape)
            found.live, found.noise = any(p.live for p in parts), any(p.noise for p in parts)
            if found.live:
                found.token.fill_(marks.MIXED)
            self.ledger.put(x, found)

    def _single(self, name: str, args: Any, kwargs: Any, out: Any, in_place: bool, overwritten: Tensor | None) -> None:
        """An elementwise operation: its results have the marks of its operands."""
        results = marks.tensors_in(out)
        if not results:
            return
        first = results[0]
        if name in ("cos", "sin", "polar") and (where := running_line()) is not None:  # not tables that are passed
            self.ledger.trace.functions.append((name, first.dtype, where))
            angle = args[1 if name == "polar" else 0]
            self.ledger.trace.angles.append(
                angle.detach().clone() if isinstance(angle, Tensor) else torch.tensor(angle)
            )
        operands = marks.tensors_in([list(args), kwargs]) if name not in _HANDING_ON else marks.tensors_in(args[0])[:1]
        parts = [self.ledger.marks_of(x) for x in operands]
        if name == "where" and len(args) == 3:  # the condition is not a number
            parts = [self.ledger.marks_of(x) for x in args[1:] if isinstance(x, Tensor)]
        strong = [x for x in parts if self._met_of_live(x)]
        found = marks.merge(strong or parts, first.shape)
        if strong and len(strong) < len(parts):
            found.noise = any(x.noise for x in parts)
        found.shift = _shift(name, args, parts, first)
        if name == "add" and not in_place:
            self._biased(operands, parts, first)
        found.noise = found.noise or name == "native_dropout"
        unequal = name in ("add", "sub") and len({x.factor for x in parts if x.live}) > 1  # a sum has no one factor
        restarts = unequal or "norm" in name or name in ("rsqrt", "pow")
        found.factor = 1.0 if restarts else found.factor * _number(name, args)
        self._softmaxes.single(name, operands if overwritten is None else [overwritten], parts, first, found)
        if name in _NOTING and found.live:
            noise = any(p.noise for p in parts) or name == "native_dropout"
            names = frozenset[str]().union(*(p.names for p in parts if not p.live))
            summed = name == "add" and not in_place and len(operands) == len(args) == 2
            self.ledger.step(name, found, args, noise=noise, names=names, terms=parts if summed else ())
        if in_place and isinstance(args[0], Tensor):
            old = self.ledger.marks_of(args[0])
            old.token.copy_(found.token)
            old.source.copy_(found.source)
            found = dataclasses.replace(found, token=old.token, source=old.source)
        if found.noise and found.live:
            found.noise = False  # noted
        self.ledger.put(first, found)
        for x in results[1:]:
            self.ledger.put(x, marks.constant(x.shape))

    def _met_of_live(self, part: Marks) -> bool:
        """Whether it comes from a product whose operands both depend on the inputs: scores, or weights times values."""
        number = int(marks.seed_of(part.source).max()) if part.live and part.source.numel() else -1
        if number < 0:
            return False
        seed = self.ledger.trace.seed(number)
        return seed.left is not None and seed.right is not None and seed.left.live and seed.right.live

    def _biased(self, operands: list[Tensor], parts: list[Marks], out: Tensor) -> None:
        """A bias that is added directly to a projection is part of the projection's output."""
        alive = [(x, part) for x, part in zip(operands, parts, strict=False) if part.live]
        rest = [part for part in parts if not part.live]
        numbers = marks.seed_of(alive[0][1].source).unique() if len(alive) == 1 else torch.tensor([])
        if len(numbers) != 1 or numbers[0] < 0 or not rest or not all(part.names for part in rest):
            return
        if any(self.ledger.trace.seed(int(n)).kind == "projection" for part in rest for n in part.seeds()):
            return  # an embedding, of positions
        (x, part), seed = alive[0], self.ledger.trace.seed(int(numbers[0]))
        at = marks.element_of(part.source).flatten()
        flat = seed.value.flatten()
        if seed.kind == "projection" and x.shape == out.shape and torch.equal(flat[at], x.detach().flatten()):
            flat[at] = out.detach().flatten()
            seed.value = flat.view(seed.value.shape)

    def _move(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        source = self.ledger.marks_of(args[0])
        if name in _VIEWS and source.token.numel():
            self._regrouped(source, args[0].shape, out.shape)

        def change(x: Tensor) -> Any:
            if name in _VIEWS:
                return x.reshape(tuple(out.shape))
            if name == "constant_pad_nd":
                return torch.nn.functional.pad(x, args[1], value=marks.UNKNOWN)
            if name == "expand":
                return x.expand(out.shape)
            if name in ("_conj", "resolve_conj"):
                return x
            return func(x, *args[1:], **kwargs)

        if isinstance(out, Tensor):
            self.ledger.put(out, source.move(change))
            return
        for x, token, origin in zip(out, change(source.token), change(source.source), strict=True):
            self.ledger.put(x, source.like(token, origin))

    def _regrouped(self, found: Marks, shape: Sequence[int], into: Sequence[int]) -> None:
        """A reshape across axes, of numbers that depend on the inputs or were gathered from a parameter."""
        cuts = regroups(shape, into)
        if not cuts and not exchanges(shape, into):
            return
        elements = marks.element_of(found.source).flatten()
        gathered = bool(found.names) and not torch.equal(elements, torch.arange(len(elements)))
        if found.live or gathered:
            unknown = found.source == marks.UNKNOWN
            padded = bool(unknown.any()) and not bool(unknown.all())
            self.ledger.trace.reshapes.append(Reshape(tuple(shape), tuple(into), cuts, padded, running_line()))

    def _joined(self, parts: list[Marks], dim: int, name: str, out: Tensor) -> None:
        join = torch.cat if name == "cat" else torch.stack
        token, source = join([x.token for x in parts], dim), join([x.source for x in parts], dim)
        names = frozenset[str]().union(*(x.names for x in parts))
        self.ledger.put(out, Marks(token, source, any(x.live for x in parts), names, any(x.noise for x in parts)))

    def _assign(self, func: Any, name: str, args: Any) -> None:
        target = self.ledger.marks_of(args[0])
        value = args[{"copy": 1, "index_put": 2, "index_copy": 3}[name]]
        given = self.ledger.marks_of(value)
        if name == "index_put":
            self.ledger.step(name, target, args)
        if not given.live:
            return
        target.live = True
        for to, of in ((target.token, given.token), (target.source, given.source)):
            if name == "copy":
                to.copy_(of.expand(to.shape))
            else:
                func(to, *args[1 : 3 if name == "index_copy" else 2], of)


def _reduced(name: str, args: Sequence[Any]) -> Sequence[int]:
    """The dims that a statistic is taken over."""
    of = 2 if name == "linalg_vector_norm" else 1
    given = args[of] if len(args) > of else None
    if "norm" in name and name.startswith(("native", "_fused")):  # given is a shape
        return range(-len(given or ()), 0)
    if isinstance(given, int):
        return [given]
    return given if isinstance(given, (list, tuple)) else range(args[0].ndim)


# Statistics that norms are made of.
_SPREADS = frozenset(
    ("var", "var_mean", "std", "std_mean", "linalg_vector_norm", "native_layer_norm", "_fused_rms_norm", "mean")
)
# Operations that move numbers; that pass the marks of the input to one result; that multiply matrices.
_MOVES = """
alias as_strided channel_shuffle chunk constant_pad_nd detach diagonal expand expand_copy flip gather im2col index
index_select lift_fresh narrow permute pixel_shuffle pixel_unshuffle repeat resolve_conj roll rot90 select slice
slice_copy split split_with_sizes squeeze t take_along_dim transpose unbind unfold unsafe_chunk unsafe_split unsqueeze
view _conj _reshape_alias _unsafe_view
"""
_AS_ITS_INPUT = """
clone contiguous cudnn_batch_norm cumsum index_add nan_to_num native_batch_norm native_dropout native_group_norm
native_layer_norm tril triu _fused_rms_norm _log_softmax _native_batch_norm_legit_no_training _to_copy
"""
_VIEWS = ("view", "_unsafe_view", "_reshape_alias")
_PRODUCTS = "mm bmm addmm baddbmm addbmm mv dot addmv"
_SINGLE = "masked_fill where rsub complex polar index_fill"  # torch calls only some of their forms pointwise
_NOTED = "masked_fill where add sub mul div tanh bernoulli native_dropout index_put nan_to_num clamp rsub"
_RANDOM = "bernoulli uniform normal rand rand_like randn randn_like"
_MOVING, _HANDING_ON, _MULTIPLYING, _NOTING, _SINGLY, _DICE = (
    frozenset(names.split()) for names in (_MOVES, _AS_ITS_INPUT, _PRODUCTS, _NOTED, _SINGLE, _RANDOM)
)


def _shift(name: str, args: Sequence[Any], parts: Sequence[Marks], out: Tensor) -> Tensor | None:
    """What a subtraction takes off whole rows; a copy keeps it."""
    if name in ("_to_copy", "clone") and parts:
        return parts[0].shift
    if name != "sub" or len(args) != 2 or not isinstance(args[1], Tensor):
        return None
    whole_rows = args[1].ndim == out.ndim > 1 and 1 in args[1].shape  # a block may be a single key wide
    return args[1].detach().clone() if whole_rows else None


def _number(name: str, args: Sequence[Any]) -> float:
    """The factor of a multiplication, if it is a single number."""
    if name not in ("mul", "div") or len(args) < 2:
        return 1.0
    for x in (args[1], args[0]):
        if isinstance(x, (int, float)) or (isinstance(x, Tensor) and x.numel() == 1):
            number = float(x)
            return number if name == "mul" else 1 / number if number and x is args[1] else 1.0
    return 1.0
