"""A way to call a module: which argument takes which input, the layout of tensors, and where the output is returned."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.forward_arguments import Maker, Sizes, sides
from headwise.doctor.finding import Where
from headwise.errors import DoctorError

LAYOUTS = {
    "BNM": "[batch, length, width]",
    "NBM": "[length, batch, width]",
    "NM": "[length, width]",
    "1NM": "[1, length, width]",
    "BHND": "[batch, heads, length, head width]",
    "BNHD": "[batch, length, heads, head width]",
    "B1NM": "[batch, 1, length, width]",
    "BMN": "[batch, width, length]",
    "BM": "[batch, width] for the one query",
    "BN": "[batch, samples] of a signal",
    "BHWM": "[batch, rows, columns, width]",
    "BMHW": "[batch, width, rows, columns]",
    "BNM,B1NM": "[batch, length, width], and a memory [batch, 1, length, width]",
    "NBM,BNM": "[1, batch, width] for the one query, and a memory [batch, length, width]",
    "BM,NBM": "[batch, width] for the one query, and a memory [length, batch, width]",
    "BMHW,BNM": "[batch, width, rows, columns], and a memory [batch, length, width]",
}
MAPS = ("BHWM", "BMHW")  # maps of tokens, row by row
STATES = ("NBM,BNM", "BM,NBM")  # a decoder's state [1, B, M] beside a memory [B, N, M], and [B, M] beside [N, B, M]
MAP = 24  # tokens of a map that may have any sides: 4 rows and 6 columns, which cannot be confused


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of a module, batch first; key and value are None if it takes one input."""

    query: Tensor  # [B, Q, M]
    key: Tensor | None = None  # [B, K, key width]
    value: Tensor | None = None  # [B, K, value width]

    @property
    def key_length(self) -> int:
        """K; the queries are the keys where there are no others."""
        return (self.query if self.key is None else self.key).shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """Those that the module takes, by name."""
        found = {"query": self.query, "key": self.key, "value": self.value}
        return {name: x for name, x in found.items() if x is not None}

    def each(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """Every tensor, changed."""
        return Inputs(**{name: change(x) for name, x in self.tensors().items()})


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a call."""

    output: Tensor  # [B, Q, Mo], batch first
    weights: Tensor | None  # as returned
    raw: Any  # everything that was returned


class Fails(DoctorError):  # noqa: N818 (what a module does)
    """Every call of a module has one mistake, at `where` if that is known.

    finding: "does-not-run" (it raises), "output-shape" (it returns a string, another batch size, or NaN alone).
    """

    def __init__(self, finding: str, said: str, where: Where | None = None) -> None:
        super().__init__(said)
        self.finding, self.where = finding, where


class OutputProblem(Exception):  # noqa: N818 (what is wrong with what came back)
    """Nothing in the returned value can be the output."""


@dataclasses.dataclass(frozen=True)
class Way:
    """How a module is called. A slot is (role, argument); an argument that is a number is a position in *args."""

    takes: str
    slots: tuple[tuple[str, str], ...]
    positional: tuple[str, ...] = ()  # arguments that are passed by position, in order
    packed: bool = False  # all inputs in one tuple
    turned: bool = False  # against what the names say
    layout: str = "BNM"
    heads: int = 1  # for layouts with heads
    widths: tuple[int, int, int] = (0, 0, 0)
    extras: tuple[tuple[str, Maker], ...] = ()
    lengths: tuple[int, int] = (0, 0)  # queries and keys with which it worked
    keys: int = 0  # the only number that works, where that is known
    output_at: tuple[Any, ...] | None = None
    weights_at: tuple[Any, ...] | None = None

    @property
    def alone(self) -> bool:
        """Whether it takes one example at a time."""
        return self.layout in ("NM", "1NM")

    @property
    def batch_first(self) -> bool:
        return self.layout != "NBM"

    def sizes(self, inputs: Inputs) -> Sizes:
        (batch, length, width), x = inputs.query.shape, inputs.query
        return Sizes(batch, length, inputs.key_length, width, x.dtype, x.device, self.batch_first)

    def inputs(
        self, batch: int, queries: int, keys: int, *, seed: int, dtype: torch.dtype, device: torch.device | str
    ) -> Inputs:
        """N(0, 1) for query, key and value, as far as the module takes them."""
        q, k, v = self.widths
        keys = self.keys or keys
        shapes = ((batch, queries, q), (batch, keys, k), (batch, keys, v))
        taken = {"self": 1, "memory": 2, "qkv": 3}[self.takes]
        return Inputs(*(noise(*x, seed=seed + i, dtype=dtype, device=device) for i, x in enumerate(shapes[:taken])))

    def arguments(self, inputs: Inputs, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the call; `given` overrides all others."""
        at = self.sizes(inputs)
        values: dict[str, Any] = {name: make(at) for name, make in self.extras if name not in given}
        tensors = {"query": inputs.query, "key": inputs.key, "value": inputs.value, "memory": inputs.key}
        placed = {
            name: lay(x, self.layout, self.heads, query=role == "query")
            for role, name in self.slots
            if (x := tensors[role]) is not None
        }
        if self.packed:
            values[self.slots[0][1]] = list(placed.values())
        else:
            values.update(placed)
        values.update(given)
        return [values.pop(name) for name in self.positional if name in values], values

    def call(self, module: nn.Module, inputs: Inputs, given: Mapping[str, Any]) -> Any:
        args, kwargs = self.arguments(inputs, given)
        return module(*args, **kwargs)

    def read(self, raw: Any, inputs: Inputs) -> Result:
        """The output and the weights in the returned value."""
        at = self.sizes(inputs)
        path, weights = self.output_at, pick(raw, self.weights_at)
        output = pick(raw, path)
        if output is None or unlay(output, self.layout, at) is None:
            path, weights = self.find_output(raw, at), None
            output = pick(raw, path)
        laid = None if output is None else unlay(output, self.layout, at)
        if laid is None:
            raise OutputProblem(describe(raw))
        if weights is None:
            weights = pick(raw, self.find_weights(raw, at, path or ()))
        return Result(laid, weights, raw)

    def whole(self, raw: Any) -> bool:
        """Whether the output has as many dimensions as the inputs."""
        output = pick(raw, self.output_at)
        return output is not None and output.ndim == len(self.layout.partition(",")[0])

    def find_output(self, raw: Any, at: Sizes) -> tuple[Any, ...] | None:
        """The path to the output: the first tensor of the queries' shape that does not look like weights."""
        return next(iter(self.find_outputs(raw, at)), None)

    def find_outputs(self, raw: Any, at: Sizes) -> list[tuple[Any, ...]]:
        """The paths to all tensors that look most like the output, in order."""
        rated = []
        for order, (path, x) in enumerate(tensors_in(raw)):
            laid = unlay(x, self.layout, at)
            if laid is None:
                continue
            rows, width = laid.shape[1] == at.queries, laid.shape[-1] == at.width
            logits = at.queries == 1 and x.ndim == 2 and x.shape[-1] != at.keys  # beside the state of a decoder
            weights = (x.ndim >= 3 and x.shape[-2:] == (at.queries, at.keys) and not width) or _of_a_pool(x, at)
            odd = rows and not width and x.ndim != 3 and not logits
            rated.append(((x.ndim == 1, weights, not rows, odd), order, path))
        best = min((rate for rate, *_ in rated), default=None)
        return [path for rate, _, path in sorted(rated, key=lambda each: each[:2]) if rate == best]

    def find_weights(self, raw: Any, at: Sizes, output: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The path to the weights: a tensor [..., Q, K] for these examples, without negative numbers."""
        batch = {at.batch, self.heads, at.batch * self.heads}
        for path, x in tensors_in(raw):
            fits = x.ndim >= 2 and tuple(x.shape[-2:]) == (at.queries, at.keys)
            if path != output and fits and (x.ndim == 2 or x.shape[0] in batch) and bool((x >= 0).all() and x.any()):
                return path
        return None


def _of_a_pool(x: Tensor, at: Sizes) -> bool:
    """Whether it looks like the weights [B, K] beside what they pool."""
    fits = x.ndim == 2 and tuple(x.shape) == (at.batch, at.keys) and at.keys != at.width
    return fits and x.is_floating_point() and bool((x >= 0).all()) and bool(((x.sum(-1) - 1).abs() < 1e-3).all())


def lay(x: Tensor, layout: str, heads: int, *, query: bool = True) -> Tensor:
    """[B, N, M] in a module's layout, letter by letter: "B1NM" has one row of tokens, "NM" is of one example."""
    own, _, of_memory = layout.partition(",")
    letters = own if query or not of_memory else of_memory
    if letters == "BM" and not query:
        letters = "BNM"
    has = "BNM"
    if "D" in letters:
        x, has = x.unflatten(-1, (heads, -1)), "BNHD"
    elif "W" in letters:
        x, has = x.unflatten(1, sides(x.shape[1])), "BHWM"
    for letter in [letter for letter in has if letter not in letters]:
        x, has = x.select(has.index(letter), 0), has.replace(letter, "")
    order = [has.index(letter) for letter in letters if letter != "1"]
    if order != sorted(order):
        x = x.permute(order).contiguous()  # as the caller's tensor would be
    return x.unsqueeze(letters.index("1")) if "1" in letters else x


def unlay(x: Tensor, layout: str, at: Sizes) -> Tensor | None:
    """A returned tensor as [B, Q, M], or None if its shape is not that of an output."""
    layout = layout.partition(",")[0]
    batch, length = at.batch, at.queries
    if layout == "NM":
        if x.ndim == 2:
            return x[None]
        return x.flatten(1)[None] if x.ndim == 3 and x.shape[0] == length else None
    if layout == "NBM" and x.ndim == 3:
        if x.shape[1] == batch:
            return x.transpose(0, 1)
        return x if x.shape[:2] == (batch, 1) and length == 1 else None  # the query is a state [1, B, M]
    if x.ndim == 4 and x.shape[1] == batch != x.shape[0] and x.shape[3] == at.width:
        return x[-1]  # those of all layers: the last
    if x.ndim == 0 or x.shape[0] != batch:
        return None
    if x.ndim == 1:
        return x[:, None, None]
    if x.ndim == 2:  # a number a token; or one query, or pooled
        return x[..., None] if x.shape[1] == length != at.width and layout != "NBM" else x[:, None]
    if layout == "BMN" and x.ndim == 3:
        return x.transpose(1, 2)
    if layout == "BMHW" and x.ndim == 4:
        return x.flatten(2).transpose(1, 2)
    if layout == "BHWM" and x.ndim == 4:
        return x.flatten(1, 2) if x.shape[1] * x.shape[2] == length else None
    if layout == "B1NM" and x.ndim == 4:
        return x[:, 0] if x.shape[1] == 1 else None
    if x.ndim == 3 or x.shape[1] == length:
        return x.flatten(2) if x.ndim > 3 else x
    return x.transpose(1, 2).flatten(2) if x.ndim == 4 and x.shape[2] == length else None


def tensors_in(raw: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Every floating-point tensor in a returned value, with the path to it."""
    if isinstance(raw, Tensor):
        if raw.is_floating_point():
            yield path, raw
        return
    if len(path) > 4:
        return
    parts: Any = ()
    if isinstance(raw, Mapping):
        parts = raw.items()
    elif isinstance(raw, (tuple, list)):
        parts = enumerate(raw)
    elif dataclasses.is_dataclass(raw) and not isinstance(raw, type):
        parts = ((field.name, getattr(raw, field.name)) for field in dataclasses.fields(raw))
    for key, part in parts:
        yield from tensors_in(part, (*path, key))


def pick(raw: Any, path: tuple[Any, ...] | None) -> Tensor | None:
    if path is None:
        return None
    for key in path:
        if isinstance(raw, (Mapping, tuple, list)):
            try:
                raw = raw[key]
            except (KeyError, IndexError, TypeError):
                return None
        else:
            raw = getattr(raw, str(key), None)
    return raw if isinstance(raw, Tensor) else None


def describe(raw: Any) -> str:
    """A short description of a returned value."""
    if isinstance(raw, Tensor):
        return f"a tensor {list(raw.shape)} of {str(raw.dtype).removeprefix('torch.')}"
    if isinstance(raw, (tuple, list)):
        return f"a {type(raw).__name__} of ({', '.join(describe(x) for x in raw[:4])}{', …' if len(raw) > 4 else ''})"
    if isinstance(raw, Mapping):
        return f"a {type(raw).__name__} of {{{', '.join(f'{k}: {describe(v)}' for k, v in list(raw.items())[:4])}}}"
    return f"a {type(raw).__name__}" if raw is not None else "None"


_OWN_DTYPE = re.compile(r"_?(torch_|param(eter)?_|weight_|compute_|model_)?dtype")  # not softmax_dtype, for example


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module in another dtype, with the attributes that hold its own: those that it casts its inputs to."""
    own = {x.dtype for x in module.parameters() if x.is_floating_point()}
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.dtype) and value in own and _OWN_DTYPE.fullmatch(name):
                vars(part)[name] = dtype
    return module.to(dtype)


def home(module: nn.Module) -> tuple[torch.dtype, torch.device]:
    """The dtype and device of a module's first floating-point parameter or buffer; the default dtype and the CPU."""
    first = next((x for x in (*module.parameters(), *module.buffers()) if x.is_floating_point()), None)
    return (torch.get_default_dtype(), torch.device("cpu")) if first is None else (first.dtype, first.device)


def noise(*shape: int, seed: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """N(0, 1), the same on every device, without changing the global random state."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device, dtype)


def altered(x: Tensor, at: Any) -> Tensor:
    """A copy with other numbers in this place."""
    changed = x.clone()
    changed[at] = noise(*x[at].shape, seed=5, dtype=x.dtype, device=x.device)
    return changed
