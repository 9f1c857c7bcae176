"""Every softmax of a model that is attention, with its weights, as torch's own operators compute them.

Nothing here is shared with `headwise.capture`: a dispatch mode sees the operators below autograd, and marks say of
every number which softmax, row and column it came from. Fused attention is taken apart by torch (`SDPBackend.MATH`).

A softmax is attention if its scores come from a product of two tensors that are not weights of the model, and if its
normalised axis is then contracted with something that is not a weight either. If only the second holds, it is a gate:
a router, a pooling by a linear layer, a choice among sampled points.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

# A mark: 0 = nothing; PRODUCT = a product of activations; TERM = what is to be summed to one; above, a weight: (entry,
# many?, row, column).
PRODUCT, TERM, COLUMN, MANY = -1, -2, 2**18, 2**42
SOFTMAX = {"_softmax", "_safe_softmax", "_log_softmax", "softmax", "log_softmax"}
# Weights that are not a softmax: of scores alone, and listed only if they are contracted.
OTHER = {"sigmoid", "exp", "relu", "silu", "softplus", "elu", "tanh"}
# What is summed after these is no product any more: the norm of an outer product is not a score.
CURVED = {"pow", "square", "abs", "exp", "sigmoid", "silu", "gelu", "relu", "tanh", "softplus", "elu"}
BATCHED, MATRICES = {"bmm", "baddbmm"}, {"mm", "addmm", "linear", "mv", "addmv", "dot"}
MOVES = {
    *(
        "clone",
        "_to_copy",
        "cat",
        "stack",
        "index",
        "index_select",
        "gather",
        "constant_pad_nd",
        "roll",
        "flip",
        "repeat",
    ),
    *(
        "slice_scatter",
        "select_scatter",
        "index_put",
        "index_put_",
        "_unsafe_index",
        "scatter",
        "scatter_",
        "tril",
        "triu",
    ),
    *("masked_select", "index_copy", "index_copy_", "copy_", "_unsafe_view", "im2col", "reflection_pad2d", "copy"),
    *("as_strided_scatter", "diagonal_scatter", "_reshape_copy", "expand_copy", "unfold_copy", "masked_scatter"),
    *("replication_pad2d", "rot90", "take", "take_along_dim", "repeat_interleave", "embedding", "_reshape_alias"),
}
FORGET = {
    "convolution",
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit_no_training",
}
MAKES = SOFTMAX | BATCHED | MATRICES | FORGET | {"_cdist_forward", "copy_"}
OF_A_CPU = "_scaled_dot_product_flash_attention_for_cpu"
FUSED = ("_scaled_dot_product", "_native_multi_head", "_transformer_encoder", "flex_attention", "_flash_attention")


@dataclasses.dataclass(eq=False)
class Entry:
    """A softmax, or what stands in its place."""

    module: str  # the path of the innermost module that was running
    operator: str
    weights: Tensor  # the operator's result
    dim: int
    empty: Tensor  # whether all scores of a row are masked
    of_product: bool
    largest: float  # of the scores that are not masked: what their rounding is measured by
    contracted: bool = False
    used: Tensor | None = None  # what was contracted, the normalised axis last
    where: str = ""

    @property
    def rows(self) -> Tensor:
        """[..., K]: the weights, the normalised axis last."""
        w = self.weights.exp() if "log_softmax" in self.operator else self.weights
        return w.movedim(self.dim, -1)


class Truth(TorchDispatchMode):
    """The entries of what runs inside; `attention` are those that count."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        self.fused: list[str] = []
        self._marks: dict[int, tuple[Any, Tensor, int]] = {}  # storage -> (it, a mark for each element, their size)
        of_keras = [x.value for x in getattr(model, "variables", ())]
        self._weights = {x.untyped_storage()._cdata for x in (*model.parameters(), *model.buffers(), *of_keras)}
        self._parameters = [x.detach() for x in model.parameters()]
        self._kept: list[Any] = []  # so that no storage of `_weights` is used again for something else
        self._names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}
        self._running: list[str] = []
        # What the model rounds to; its softmax may be in float32 all the same.
        self.dtype = next((x.dtype for x in model.parameters() if x.is_floating_point()), torch.float32)

    @property
    def attention(self) -> list[Entry]:
        """What is contracted, and made of a product."""
        return [entry for entry in self.entries if entry.contracted and entry.of_product]

    @property
    def gates(self) -> list[Entry]:
        """What is contracted, and not made of a product of activations."""
        return [entry for entry in self.entries if entry.contracted and not entry.of_product]

    def is_parameter(self, x: Tensor) -> bool:
        """Whether the numbers of a tensor are those of a parameter of the model."""
        return any(p.numel() == x.numel() and torch.equal(p.flatten(), x.flatten()) for p in self._parameters)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Truth]:
        """Run what is inside with torch's plain operators, and see them."""

        def enter(module: nn.Module, _: Any) -> None:
            around = self._running[-1] if self._running else ""  # of a module that is made on the way
            self._running.append(self._names.get(id(module), around))

        def leave(module: nn.Module, _: Any, __: Any) -> None:
            self._running.pop()

        hooks = [
            nn.modules.module.register_module_forward_pre_hook(enter),
            nn.modules.module.register_module_forward_hook(leave, always_call=True),
        ]
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), self:
                yield self
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for hook in hooks:
                hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and func._can_decompose():  # there nothing has taken it apart before
            with self:
                return func.decompose(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        # Before: an operator in place changes what it reads.
        read = [x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)]
        marks = [self._of(x) for x in read]
        scores = args[0].clone() if name in SOFTMAX else None
        out = func(*args, **kwargs)
        if name == OF_A_CPU:  # the model chose it itself, against `sdpa_kernel` in `watching`
            with self:
                _attend(*args, **kwargs)
        elif any(part in name for part in FUSED):
            self.fused.append(name)
        written = [x for x in tree_iter(out) if isinstance(x, Tensor)]
        if read and name not in MAKES and all(self._is_weight(x) for x in read):  # a weight in another form
            for x in written:
                self._weights.add(x.untyped_storage()._cdata)
                self._kept.append(x.untyped_storage())
        if name in SOFTMAX:
            self._softmax(name, scores, args, out)
        elif name in BATCHED or name in MATRICES:
            self._product(name, args, out)
        elif name == "_cdist_forward":
            self._set(out, torch.full(out.shape, PRODUCT))
        elif name in FORGET or func.is_view:
            pass
        elif name in MOVES:
            if any(mark is not None for mark in marks):
                self._move(func, name, args, kwargs, out)
            else:
                self._clear(written, read)
        elif name in ("sum", "mean"):
            self._sum(args, out)
        elif name == "topk" and marks[0] is not None:
            dim = args[2] if len(args) > 2 else -1
            self._set(out[0], marks[0].gather(dim, out[1]))
        elif len(written) == 1 and written[0].is_floating_point():
            self._elementwise(name, args, read, marks, written[0])
        return out

    # What operators do to marks.

    def _softmax(self, name: str, scores: Tensor, args: Any, out: Tensor) -> None:
        if not out.ndim:
            return
        mark, dim = self._of(args[0]), args[1] % out.ndim
        of_product = mark is not None and bool((mark == PRODUCT).any())
        if mark is not None and bool((mark > 0).any()):
            of_product = True  # a softmax of a softmax
        highest = scores.movedim(dim, -1).amax(-1)
        sizes = scores.float().abs()
        largest = float(sizes.masked_fill(~(sizes < 1e4), 0.0).max()) if scores.numel() else 0.0
        self._enter(name, out, dim, (highest <= -1e30) | highest.isnan(), of_product, largest)

    def _enter(self, name: str, out: Tensor, dim: int, empty: Tensor, of_product: bool, largest: float) -> None:
        self.entries.append(
            Entry(
                self._running[-1] if self._running else "", name, out.detach().clone(), dim, empty, of_product, largest
            )
        )
        rows = torch.arange(empty.numel()).view(empty.shape).unsqueeze(dim)
        columns = torch.arange(out.shape[dim]).view(-1, *[1] * (out.ndim - dim - 1))
        self._set(out, (len(self.entries) * MANY * 2 + rows * COLUMN + columns).expand(out.shape))

    def _product(self, name: str, args: Any, out: Tensor) -> None:
        a, b = args[1:3] if name in ("baddbmm", "addmm", "addmv") else args[:2]
        if name == "linear":
            b = b.mT
        for x, dim, other in ((a, -1, b), (b, -2 if b.ndim > 1 else -1, a)):
            self._contracted(self._of(x), x, dim, other)
        if name in BATCHED:
            made = not (self._is_weight(a) and self._is_weight(b))
        else:
            made = not (self._is_weight(a) or self._is_weight(b))
        self._set(out, torch.full(out.shape, PRODUCT) if made else None)

    def _contracted(self, mark: Tensor | None, x: Tensor, dim: int, other: Tensor | None) -> None:
        if mark is None or not bool((mark > 0).any()):
            return
        mark = mark.movedim(dim, -1)
        if other is not None and self._is_weight(other):
            return
        numbers = mark // (2 * MANY)
        least, most = numbers.aminmax()  # unique() sorts
        for number in [int(most)] if least == most else numbers.unique().tolist():
            entry = self.entries[number - 1] if number > 0 else None
            if entry is None or (entry.contracted and entry.used is not None):
                continue
            mine = numbers == number
            rows, columns = mark % MANY // COLUMN, mark % COLUMN
            lines = mine.flatten(0, -2).any(-1)
            rows, columns, mine = (each.flatten(0, -2)[lines] for each in (rows, columns, mine))
            one_row = (rows.masked_fill(~mine, -1).amax(-1) == rows.masked_fill(~mine, 2**40).amin(-1)).all()
            several = entry.rows.shape[-1] == 1 or bool(
                (columns.amax(-1) > columns.masked_fill(~mine, 2**40).amin(-1)).any()
            )
            if bool(one_row) and several:
                entry.contracted = True
                used = x.detach().movedim(dim, -1).clone()
                entry.used = used
                if columns.shape == (entry.empty.numel(), entry.rows.shape[-1]) and bool(mine.all()):
                    order, straight = rows[:, 0], bool((columns == torch.arange(columns.shape[1])).all())
                    if straight and torch.equal(order.sort().values, torch.arange(len(order))):
                        # Each row once: heads and queries may stand in one dimension.
                        entry.used = used.flatten(0, -2)[order.argsort()].view(entry.rows.shape)

    def _sum(self, args: Any, out: Tensor) -> None:
        x = args[0]
        mark = self._of(x)
        if mark is None or len(args) < 2 or args[1] is None:
            self._set(out, None)
            return
        dims = [args[1]] if isinstance(args[1], int) else list(args[1])
        if len(dims) == 1 and bool(((mark > 0) & (mark % (2 * MANY) >= MANY)).any()):
            self._contracted(mark, x, dims[0], None)
        keep = bool(args[2]) if len(args) > 2 else False
        left = mark.amin(dims, keepdim=keep) if dims else mark
        self._set(out, torch.where(left < 0, PRODUCT, 0) if bool((left < 0).any()) else None)

    def _move(self, func: Any, name: str, args: Any, kwargs: Any, out: Tensor) -> None:
        if name in ("clone", "_to_copy", "_unsafe_view", "copy_", "copy"):
            mark = self._of(args[1] if name.startswith("copy") and len(args) > 1 else args[0])
            self._set(
                out,
                None if mark is None else mark.reshape(out.shape) if name == "_unsafe_view" else mark.expand(out.shape),
            )
            return

        def of(x: Any) -> Any:
            if isinstance(x, Tensor) and x.is_floating_point():
                mark = self._of(x)
                return torch.zeros(x.shape, dtype=torch.long) if mark is None else mark.clone()
            return x

        marked = [tree_map(of, part) for part in args]
        if name == "constant_pad_nd":
            marked[2:] = [0]
        elif name in ("scatter", "scatter_") and not isinstance(args[-1], Tensor):
            marked[-1] = 0
        try:
            found = func(*marked, **tree_map(of, kwargs))
        except (RuntimeError, TypeError, NotImplementedError):
            found = None
        self._set(out, found)

    def _elementwise(self, name: str, args: Any, read: list[Tensor], marks: list[Tensor | None], out: Tensor) -> None:
        found: Tensor | None = None
        for x, mark in zip(read, marks, strict=True):
            if mark is None:
                continue
            try:
                mark = mark.expand(out.shape)
            except RuntimeError:
                continue  # a reduction or something else: what it gives is not known
            if name in CURVED:
                mark = torch.where(mark == TERM, 0, mark)
            if name == "mul" and out.numel() > x.numel():
                mark = torch.where(mark > 0, mark // MANY * MANY + mark % MANY + MANY * (mark // MANY % 2 == 0), mark)
            if found is not None:  # of a product and a term it is the product that counts
                both = (found != 0) & (mark != 0)
                mark = torch.where(both, self._counts(found, mark) if bool(both.any()) else 0, found + mark)
            found = mark
        if name == "mul" and found is None and len(read) == 2:
            outer = all(out.numel() > x.numel() > 1 and not self._is_weight(x) for x in read)
            found = torch.full(out.shape, TERM) if outer else None
        name = name.removesuffix("_")
        if found is not None and name in OTHER and bool((found == PRODUCT).all()) and out.ndim:
            self._enter(name, out, out.ndim - 1, torch.zeros(out.shape[:-1], dtype=torch.bool), True, 0.0)
            return
        self._set(out, found)

    def _counts(self, one: Tensor, two: Tensor) -> Tensor:
        """Of two marks the one that counts: of two softmaxes that which was made of a product, else the later one."""
        made = torch.tensor([False, *(entry.of_product for entry in self.entries)])
        first, second = (made[(mark // (2 * MANY)).clamp(min=0)] for mark in (one, two))
        return torch.where(first & ~second, one, torch.where(second & ~first, two, torch.maximum(one, two)))

    # Where marks are kept: beside the storage, so that views and writes into views need no rule.

    def _is_weight(self, x: Tensor) -> bool:
        return x.untyped_storage()._cdata in self._weights

    def _of(self, x: Tensor) -> Tensor | None:
        kept = self._marks.get(x.untyped_storage()._cdata)
        if kept is None or not x.numel() or x.element_size() != kept[2]:
            return None
        mark = kept[1].as_strided(x.shape, x.stride(), x.storage_offset())
        return mark if bool(mark.any()) else None

    def _set(self, x: Tensor, mark: Tensor | None) -> None:
        storage = x.untyped_storage()
        if storage._cdata not in self._marks:
            if mark is None:
                return
            size = math.ceil(storage.nbytes() / x.element_size())
            self._marks[storage._cdata] = (storage, torch.zeros(size, dtype=torch.long), x.element_size())
        whole = self._marks[storage._cdata][1]
        region = whole.as_strided(x.shape, x.stride(), x.storage_offset())
        if mark is None:
            region.zero_()
        elif 0 in x.stride():
            pass
        else:
            region.copy_(mark)

    def _clear(self, written: list[Tensor], read: list[Tensor]) -> None:
        for x in written:
            if x.untyped_storage()._cdata in self._marks:
                self._set(x, None)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, _: float = 0.0, causal: bool = False, *, attn_mask: Any = None, scale: Any = None
) -> None:
    """The fused operator in plain ones; those that torch takes apart, as matmul, would come as a whole here."""
    lead = q.shape[:-2]
    q, k, v = (x.clone(memory_format=torch.contiguous_format).view(-1, *x.shape[-2:]) for x in (q, k, v))
    s = torch.bmm(q, k.transpose(1, 2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    if attn_mask is not None:
        s = (s.view(*lead, *s.shape[-2:]) + attn_mask).view(s.shape)
    torch.bmm(torch._softmax(s, -1, False), v)
