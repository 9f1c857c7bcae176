"""One torch operation on scores or weights (`Step`), and which operations do what."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from headwise.capture.trail import Trail

# Names are without the underscores of `add_` and `__add__`. First the operations that keep the numbers, and perhaps
# their shape.
DTYPES = ("to", "float", "half", "bfloat16", "double", "type", "type_as", "to_copy")
MEMORY = ("contiguous", "clone", "detach", "cpu", "cuda", "data", "alias", "requires_grad", "pin_memory")
SHAPES = (
    *("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "expand", "view_as", "reshape_as"),
    *("unsafe_view", "ravel", "broadcast_to", "expand_as"),
)
KEEPS = (*DTYPES, *MEMORY)
ARRANGE = (*KEEPS, *SHAPES)
TURN = (
    *("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis"),
    *("mT", "T", "t", "mH", "adjoint", "numpy_T"),
)
LIMIT = ("clamp", "clamp_min", "clamp_max", "clip", "max", "maximum", "min", "minimum", "nan_to_num")
MULTIPLY = ("mul", "rmul", "imul", "multiply")
DIVIDE = ("div", "true_divide", "truediv", "itruediv", "divide")
SUBTRACT = ("sub", "isub", "subtract")
ADD = ("add", "radd", "iadd")
JOIN = ("cat", "concat", "concatenate", "stack", "hstack")
SOFTMAXES = ("softmax", "safe_softmax", "log_softmax", "special_softmax", "special_log_softmax")
# These operations begin a trail where there is none.
BARE = frozenset(f"{line}{name}" for name in SOFTMAXES for line in ("", "_"))
CUT = ("getitem", "slice", "narrow", "select", "index", "index_select", "gather", "take_along_dim")
SPLIT = ("split", "chunk", "unbind", "tensor_split", "split_with_sizes", "unsafe_split", "unsafe_chunk", "iter")
ELEMENTWISE = frozenset(("rsub", "rtruediv", "rpow", "rdiv")) | frozenset((
    *LIMIT, *MULTIPLY, *DIVIDE, *SUBTRACT, *ADD, "masked_fill", "where", "tanh", "relu", "leaky_relu", "gelu",
    "abs", "neg", "pow", "square", "sqrt", "rsqrt", "exp", "log", "sigmoid", "softplus", "elu", "silu", "addcmul",
    "addcdiv", "lerp", "round", "threshold", "hardtanh", "erf", "sign", "reciprocal", "masked_scatter", "dropout",
    "sin", "cos", "log1p", "expm1",
))  # fmt: skip
# These operations make one number of several.
REDUCE = frozenset((
    "sum", "mean", "amax", "amin", "logsumexp", "norm", "std", "var", "prod", "median", "vector_norm",
    "linalg_vector_norm", "quantile",
))  # fmt: skip
# The results of these operations on scores are not scores.
STATISTICS = REDUCE | frozenset((
    "einsum", "matmul", "rmatmul", "bmm", "mm", "mv", "baddbmm", "linear",  # products.py follows these
    "argmax", "argmin", "argsort", "mode", "kthvalue", "any", "all", "count_nonzero", "nonzero", "bernoulli",
    "multinomial", "shape", "size", "isnan", "isinf", "max_pool1d", "histc", "item", "tolist", "backward",
))  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Step:
    """A call of an operation on a tensor that has a trail (trail.py: how it was computed from q kᵀ)."""

    name: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    operands: tuple[Any, ...]
    at: int  # the index of the operand that has the trail
    out: Tensor

    @property
    def tracked(self) -> Tensor:
        """The operand that has the trail."""
        found: Tensor = self.operands[self.at]
        return found

    def other(self) -> Any:
        """Return the second of two operands: the one that has no trail. None if there is no second operand."""
        return self.operands[1 - self.at] if len(self.operands) > 1 and self.at < 2 else None

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument, given by its position or its name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


Rule = Callable[[Trail, Step], "Trail | None"]


def what(trail: Trail) -> str:
    """Return the word for the tensor of a trail (history of scores) in messages: "scores" or "weights"."""
    return "scores" if trail.of is None else "weights"


def unknown(trail: Trail, step: Step) -> Trail:
    """Return the trail (history of scores) after an operation that a trail cannot describe: with a problem."""
    return trail.with_problem(f"the {what(trail)} went through `{step.name}`, which a record cannot represent")


def in_place(trail: Trail, step: Step) -> Trail:
    """Return the trail (history of scores) after an operation on each number separately.

    The trail cannot describe such an operation exactly, so the record must store the new numbers themselves.
    """
    if step.name not in ELEMENTWISE or tuple(step.out.shape) != trail.shape:
        return unknown(trail, step)
    if trail.of is not None:
        return trail.but(used=trail.used or step.name)
    if trail.sinks is not None:
        return unknown(trail, step)
    return trail.but(loose=True)
