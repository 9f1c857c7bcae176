"""Finds where each number of a tensor comes from, through operations that move numbers or change each separately.

Attention in blocks, windows and chunks pads, cuts, stacks and views its queries, keys and scores, so that shapes do not
say which query and which key a score belongs to. The tape remembers the operations, not the numbers: a `Node` for each
tensor, with the nodes from which it was made. Only on demand are the operations run again. They then run on the numbers
(indices) of the elements instead of the elements (`Places`).
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.capture import operation, products
from headwise.capture.trail import Trail, Trails
from headwise.errors import RecordError

# These operations keep every number in its place. Of several operands, the first with the shape of the result counts:
# q * cos, scores + bias.
_IN_PLACE = frozenset((
    *operation.ELEMENTWISE, *operation.KEEPS, *(name.strip("_") for name in operation.BARE), "tril", "triu",
    "layer_norm", "rms_norm", "normalize",
))  # fmt: skip
_MOVES = frozenset((
    *operation.SHAPES, *operation.TURN, *operation.JOIN, *operation.CUT, *operation.SPLIT,
    "pad", "constant_pad_nd", "as_strided", "unfold", "roll", "flip", "repeat", "repeat_interleave", "tile", "diagonal",
    "swapaxes", "rot90", "scatter", "index_put", "index_copy", "index_add", "slice_scatter", "select_scatter",
))  # fmt: skip

# Operations whose numbers come from no other tensor, such as padding.
_CONSTANT = frozenset(
    f"{new}{name}{like}"
    for name in ("zeros", "ones", "full", "empty")
    for new in ("", "new_")
    for like in ("", "_like")
)


@dataclasses.dataclass(eq=False, repr=False, slots=True)
class Node:
    """How a tensor was made: from which nodes. A node without `parts` is an origin: it is not followed further back."""

    shape: torch.Size
    device: torch.device
    name: str = ""  # the operation
    parts: Sequence[Part] = ()
    run: Callable[[list[Tensor]], Tensor] | None = None  # element numbers of its parts -> its own; None = the same
    products: bool = False  # whether it comes from a product

    def __post_init__(self) -> None:
        self.products = any(node is not None and node.products for _, node in self.parts)


Part = tuple[torch.Size, Node | None]  # the shape of an operand, and its node if it has one


@dataclasses.dataclass(eq=False, repr=False, slots=True, kw_only=True)
class Product(Node):
    """The node (how a tensor was made) of a product q kᵀ, with the trail (history of scores) that begins there."""

    trail: Trail  # the trail that begins at this product
    factors: Sequence[Part]
    queries: Node | None  # the node that its queries come from
    arrange: Callable[[list[Tensor]], Trail | None]  # element numbers of its factors -> those of q and k, as a trail

    def __post_init__(self) -> None:
        self.products = True


class Tape:
    """The nodes (how each tensor was made) of all tensors that are alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], Node | None, int | None]] = {}

    def node(self, x: Any) -> Node | None:
        """Return the node (how it was made) of a tensor; None for parameters, numbers, tensors changed via others."""
        if not isinstance(x, Tensor) or not x.is_floating_point() or not x.ndim or isinstance(x, nn.Parameter):
            return None
        found = self._known.get(id(x))
        if found is not None and found[0]() is x:
            return found[1] if found[2] == _version(x) else None
        return self._put(x, Node(x.shape, x.device))

    def step(
        self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        """Remember an operation: make the nodes (how they were made) of the tensors in its result `out`."""
        name = name.partition(".")[0].strip("_")
        if name == "setitem":
            self._written(*args)
        elif name in _IN_PLACE:
            training = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
            name = "clone" if name == "dropout" and not training else name
            if isinstance(out, Tensor) and out.is_floating_point() and out.ndim:
                given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and _spreads(x, out)]
                self._add(out, name, sorted(given, key=lambda x: x.shape != out.shape))
        elif name in _CONSTANT:
            self._put(out, None)
        elif name in ("topk", "sort"):
            of_dim = 2 if name == "topk" else 1
            dim = args[of_dim] if len(args) > of_dim else kwargs.get("dim", -1)
            at = out[1]
            self._add(out[0], name, [args[0]], lambda places: places[0].gather(dim, at))
        elif name in _MOVES:
            for at, part in [(None, out)] if isinstance(out, Tensor) else enumerate(out):
                if isinstance(part, Tensor) and part.is_floating_point():
                    self._moved(func, name, args, kwargs, part, at)

    def _moved(
        self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor, at: int | None
    ) -> None:
        given: list[Tensor] = []
        form = ([_taken(x, given) for x in args], {key: _taken(x, given) for key, x in kwargs.items()})
        if name in ("view", "unsafe_view"):  # places may be laid out in memory in another way
            func, form = torch.reshape, ([form[0][0], out.shape], {})
        memory = _memory(args[0]) if name == "as_strided" else None

        def run(places: list[Tensor]) -> Tensor:
            if memory is not None:  # it reads the memory of its operand
                numel, size, stride, offset = memory
                whole = places[0].new_zeros(numel)
                places = [whole.as_strided(size, stride, offset).copy_(places[0])]
            found = func(*(_given(x, places) for x in form[0]), **{k: _given(x, places) for k, x in form[1].items()})
            moved: Tensor = found if at is None else found[at]
            return moved

        self._add(out, name, given, run)

    def _add(
        self, out: Tensor, name: str, given: Sequence[Tensor], run: Callable[[list[Tensor]], Tensor] | None = None
    ) -> None:
        parts = [(x.shape, self._before(x) if x is out else self.node(x)) for x in given]
        if run is None:  # the first part and the products; others, as of a residual stream, are not needed
            nodes = [part for part in parts if part[1] is not None]
            parts = [part for i, part in enumerate(nodes) if i == 0 or (part[1] is not None and part[1].products)]
        if any(node is not None for _, node in parts):
            self._put(out, Node(out.shape, out.device, name, parts, run))

    def _written(self, into: Tensor, where: Any, value: Any) -> None:
        """Handle into[where] = value: make a new node (how it was made) for the tensor `into`."""
        if not into.is_floating_point():
            return
        if not isinstance(value, Tensor) or not value.ndim:
            self._put(into, self._before(into))
            return

        def run(places: list[Tensor]) -> Tensor:
            whole = places[0].clone()
            whole[where] = places[1]
            return whole

        self._add(into, "setitem", (into, value), run)

    def _before(self, x: Tensor) -> Node | None:
        """Return the node (how it was made) of a tensor before the last write to it."""
        found = self._known.get(id(x))
        if found is None or found[0]() is not x:
            return Node(x.shape, x.device)
        version = _version(x)
        return found[1] if version is None or found[2] is None or version - found[2] <= 1 else None

    def begin(self, x: Tensor, trail: Trail, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Product:
        """Make the node (how it was made) of `x`, a product q kᵀ; `trail`: the history of scores that begins at `x`."""
        given: list[Tensor] = []
        form = (_taken(args, given), {key: _taken(each, given) for key, each in kwargs.items()})
        like = torch.empty_like(x, device="meta")

        def arrange(places: list[Tensor]) -> Trail | None:
            filled = {key: _given(each, places) for key, each in form[1].items()}
            return products.product(name, _given(form[0], places), filled, Trails(), like)

        nodes = [self.node(each) for each in given]
        q = trail.q
        of_q = [node for each, node in zip(given, nodes, strict=True) if q is not None and _share(each, q)]
        queries = origin(of_q[0]) if of_q and of_q[0] is not None else None
        factors = [(each.shape, n) for each, n in zip(given, nodes, strict=True)]
        node = Product(x.shape, x.device, trail=trail, factors=factors, queries=queries, arrange=arrange)
        self._put(x, node)
        return node

    def _put(self, x: Tensor, node: Node | None) -> Node | None:
        key, known = id(x), self._known
        known[key] = (weakref.ref(x, lambda _: known.pop(key, None)), node, _version(x))
        return node


def origin(node: Node) -> Node:
    """Return the origin of the first numbers of a node's tensor: a node that is not followed further back."""
    while node.parts:
        found = next((part for _, part in node.parts if part is not None), None)
        if found is None:
            break
        node = found
    return node


class Origin(NamedTuple):
    """A node that is not followed further back; its elements have the numbers `before` + 1, `before` + 2, …."""

    node: Node
    before: int

    @property
    def shape(self) -> torch.Size:
        return self.node.shape

    def coordinates(self, numbers: Tensor) -> list[Tensor]:
        return list(torch.unravel_index(numbers - self.before - 1, self.shape))

    def holds(self, numbers: Tensor) -> Tensor:
        return (numbers > self.before) & (numbers <= self.before + self.shape.numel())


class Places:
    """Numbers the elements of origins from 1 on, and says which of them the elements of other tensors are; 0 = none.

    An origin is a tensor that is not followed further back. With `products`, only products of queries and keys have
    numbers; biases and masks that are added to them have none. Otherwise the elements of all origins have numbers.
    """

    def __init__(self, *, products: bool) -> None:
        self._products = products
        self.origins: list[Origin] = []
        self.count = 0  # the number of elements that have a number
        self._known: dict[int, Tensor | None] = {}
        self._alive: list[Node] = []  # so that no other node can have its id

    def of(self, node: Node | None) -> Tensor | None:
        """Return the numbers of the elements of a node's tensor, int32, in its shape; None if all would be 0."""
        if node is None:
            return None
        if id(node) not in self._known:
            for each in _in_order(node, self._known):
                self._alive.append(each)
                self._known[id(each)] = self._made(each) if each.parts else self._first(each)
        return self._known[id(node)]

    def _first(self, node: Node) -> Tensor | None:
        if self._products and not isinstance(node, Product):
            return None
        self.origins.append(Origin(node, self.count))
        first = self.count + 1
        self.count += node.shape.numel()
        if self.count >= 2**31:
            raise RecordError("its pieces come from tensors of more than 2³¹ numbers")
        return torch.arange(first, self.count + 1, dtype=torch.int32, device=node.device).view(node.shape)

    def _made(self, node: Node) -> Tensor | None:
        known = [places for _, part in node.parts if (places := self.of(part)) is not None]
        if not known:
            return None
        return known[0].expand(node.shape) if node.run is None else node.run(self.of_all(node.parts, node.device))

    def of_all(self, parts: Sequence[Part], device: torch.device) -> list[Tensor]:
        """Return the element numbers of several operands; a tensor of zeros for an operand without numbers."""
        found = ((shape, self.of(part)) for shape, part in parts)
        return [torch.zeros(shape, dtype=torch.int32, device=device) if x is None else x for shape, x in found]


def _in_order(node: Node, known: Mapping[int, Any]) -> Iterator[Node]:
    """Yield a node and all nodes from which it is made, each after its own parts, without the nodes in `known`."""
    open_, entered, done = [node], set[int](), set[int]()
    while open_:
        each = open_[-1]
        below = [part for _, part in each.parts if part is not None and id(part) not in known and id(part) not in done]
        if below and id(each) not in entered:
            entered.add(id(each))
            open_ += reversed(below)  # the first node is numbered first
            continue
        open_.pop()
        if id(each) not in known and id(each) not in done:
            done.add(id(each))
            yield each


class _Slot(NamedTuple):
    """A placeholder for a float tensor among the arguments of an operation."""

    at: int


def _taken(x: Any, given: list[Tensor]) -> Any:
    """Replace each float tensor in `x` by a placeholder, and append it to `given`: the result keeps no tensor alive."""
    if isinstance(x, Tensor) and x.is_floating_point():
        given.append(x)
        return _Slot(len(given) - 1)
    if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        return type(x)(_taken(part, given) for part in x)
    return x


def _given(x: Any, places: list[Tensor]) -> Any:
    if isinstance(x, _Slot):
        return places[x.at]
    if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        return type(x)(_given(part, places) for part in x)
    return x


def find_products(node: Node | None) -> Iterator[Product]:
    """Yield the nodes of the products q kᵀ from which a tensor comes."""
    for each in () if node is None else _in_order(node, {}):
        if isinstance(each, Product):
            yield each


def _share(x: Tensor, y: Tensor) -> bool:
    try:
        return x.data_ptr() == y.data_ptr()
    except RuntimeError:  # inside torch.func tensors have no memory of their own
        return False


def _memory(x: Tensor) -> tuple[int, torch.Size, tuple[int, ...], int]:
    """Return how many elements a tensor's memory has, and the sizes, strides and offset by which it reads them."""
    return x.untyped_storage().nbytes() // x.element_size(), x.shape, x.stride(), int(x.storage_offset())


def _spreads(x: Tensor, out: Tensor) -> bool:
    """Whether an operand has the shape of the result, or broadcasts to it."""
    return x.shape == out.shape or (
        x.ndim <= out.ndim and all(a in (1, b) for a, b in zip(x.shape[::-1], out.shape[::-1], strict=False))
    )


def _version(x: Tensor) -> int | None:
    return None if x.is_inference() else x._version
