"""Values for the arguments of forward that are no inputs: masks, rotations, positions, lengths, caches, flags.

Each argument has a list of makers, the most likely first. A maker returns a value for a call of any size. Shapes are
written in letters: B examples, Q queries, K keys, H heads, M the width, R all distances, r and c the sides of a map.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling import names, sizes

_COORDINATES = ("xyz", "xy", "coord", "coords", "coordinates", "points", "centers", "centroids", "locations")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes that a call's values must fit."""

    batch: int
    queries: int
    keys: int
    width: int
    dtype: torch.dtype
    device: torch.device
    batch_first: bool = True

    def of(self, shape: str, heads: int = 1) -> list[int]:
        """The sizes of a shape in letters; a digit is itself."""
        rows, columns = sides(self.queries)
        known = {"B": self.batch, "Q": self.queries, "K": self.keys, "H": heads, "M": self.width}
        known |= {"R": 2 * self.queries - 1, "r": rows, "c": columns}
        return [known[x] if x in known else int(x) for x in shape]


Maker = Callable[[Sizes], Any]


def constant(value: Any) -> Maker:
    """The same value for every call."""
    return lambda at: value


def filled(shape: str, value: int, dtype: torch.dtype | None, heads: int = 1) -> Maker:
    """One number everywhere; dtype None = that of the call."""
    return lambda at: torch.full(at.of(shape, heads), value, dtype=dtype or at.dtype, device=at.device)


def of_tokens(value: int, dtype: torch.dtype | None) -> Maker:
    """One number for every token, in the order of the inputs: [B, Q] or [Q, B]."""
    return lambda at: filled("BQ" if at.batch_first else "QB", value, dtype)(at)


def noise(shape: str, heads: int = 1, width: int | None = None) -> Maker:
    """N(0, 1), the same for every call and for every example, so that none differs from the others by it.

    A table of tokens, [B, Q, M] or [1, Q, M], has the order of the inputs.
    """

    def make(at: Sizes) -> Tensor:
        at = at if width is None else dataclasses.replace(at, width=width)
        numbers = torch.randn(at.of(shape.replace("B", "1"), heads), generator=torch.Generator().manual_seed(7))
        x = numbers.to(at.device, at.dtype).expand(at.of(shape, heads))
        of_tokens = shape[0] in "B1" and shape[1:] in ("QM", "RM", "KM")
        return (x.transpose(0, 1) if of_tokens and not at.batch_first else x).contiguous()

    return make


def makers(
    name: str, role: str, annotation: str, module: nn.Module, *, own: bool = False, neighbours: bool = False
) -> list[Maker]:
    """Makers of values that an argument of this name, role and annotation may take, the most likely first.

    Args:
        own: a mask of the queries' own tokens, in a module that also takes a memory.
        neighbours: tables of cos and sin hold every angle twice in turn, not in two halves.
    """
    name = names.simple(name)
    if role in ("flag", "weights-flag", "causal"):
        return [constant(False)]
    if role in ("mask", "padding"):
        return [constant(None), *permissive(name, role, sizes.heads(module) or 1, own=own)]
    if role in ("lengths", "other", "unknown") and names.STARTS.match(name):  # one document of all tokens
        starts = [_starts(dtype) for dtype in (torch.int32, torch.int64)]
        return [*starts, constant(None)] if role != "lengths" else [constant(None), *starts]
    if role == "lengths":
        return [constant(None), *(_lengths(share) for share in (1.0, 0.5))]  # an inverted mask hides all real tokens
    if role == "cache":
        return [constant(None), lambda at: {}, lambda at: [], lambda at: ()]
    if role == "positions":
        return positions(name, module, neighbours=neighbours)
    found = _by_word(name, module)
    if "Tensor" not in annotation:
        found += [constant(0.0 if "drop" in name else 1.0)] if "float" in annotation else []
        found += [lambda at: at.queries, constant(1), constant(0)] if "int" in annotation else []
        found += [constant("test")] if annotation.startswith("str") else []
        found.append(constant(None))
    found += [noise("BQM"), constant(None), constant(0), constant(1)]
    return [*found, of_tokens(1, None), noise("BM")]


def _starts(dtype: torch.dtype) -> Maker:
    return lambda at: torch.tensor([0, at.queries], dtype=dtype, device=at.device)


def _by_word(name: str, module: nn.Module) -> list[Maker]:
    heads = sizes.heads(module) or 4
    by_words: dict[str, Maker] = {
        "batch_size bsz b bs batch": lambda at: at.batch,
        "seq_len n t length seqlen q_len tgt_len": lambda at: at.queries,
        "k_len src_len kv_len memory_len": lambda at: at.keys,
        "num_heads heads n_heads": constant(heads),
        "layer_idx layer layer_id idx index dropout dropout_p p_dropout": constant(0),
        "scale": constant(1.0),
        "mode": constant("test"),
        "edge_index edges edge_list": _edges,
    }
    for words, make in by_words.items():
        if name in words.split():
            return [make]
    if name in names.SIDES:  # of a map, or of a row of tokens
        return [lambda at: sides(at.queries)["hw".index(names.SIDES[name])]]
    if names.GRID.search(name):  # (rows, columns)
        return [lambda at: sides(at.queries), lambda at: sides(at.keys)]  # the map may be the memory
    if names.PAGES.search(name):
        return [lambda at: torch.arange(4 * at.batch, device=at.device).view(at.batch, 4)]
    if name.rsplit("_", 1)[-1] in _COORDINATES:  # of points in space, or in a plane
        return [noise("BQ3"), noise("BQ2")]
    if names.is_types(name) or names.DOCUMENTS.search(name):  # one sentence, and one document
        return [of_tokens(0 if names.is_types(name) else 1, torch.int64)]
    if name.startswith(("num_", "n_")):
        return [_lengths(1.0)]  # how many of the tokens are real
    return [constant(None)] if name.endswith("mask") else []


def _lengths(share: float) -> Maker:
    """[B]: this share of the keys is real in every example."""
    return lambda at: torch.full((at.batch,), max(1, int(share * at.keys)), device=at.device)


def _edges(at: Sizes) -> Tensor:
    """[2, E]: a ring and three more edges. Most nodes send more edges than they receive, or fewer."""
    start, end = torch.arange(at.queries), torch.arange(1, at.queries + 1)
    more = torch.tensor([[0, 0, 1], [2, 3, 4]])
    return (torch.cat([torch.stack([start, end]), more], dim=1) % at.queries).to(at.device)


def sides(count: int) -> tuple[int, int]:
    """Rows and columns of a map of so many tokens: as near to a square as can be, and never more rows than columns."""
    rows = next(n for n in range(math.isqrt(count), 0, -1) if count % n == 0)
    return rows, count // rows


def read_by(layer: nn.Module) -> list[Maker]:
    """Makers of what a layer takes: ids of a table, for each token, for its characters or for each pair of tokens, or
    numbers of its width.
    """
    if isinstance(layer, nn.Embedding):
        return [_ids(layer.num_embeddings, shape) for shape in ("B6", "BQ", "BQ4", "BQK", "B")]  # 6: a text of its own
    width = sizes.in_features(layer) or 1

    def pairs(at: Sizes) -> Tensor:  # a pair of tokens keeps its numbers where there are fewer tokens
        most = max(64, at.queries, at.keys)
        rows, columns = noise("2QM", width=width)(dataclasses.replace(at, queries=most))
        return (rows[: at.queries, None] * columns[: at.keys]).expand(at.batch, -1, -1, -1)

    return [noise("BQM", width=width), pairs, noise("BKM", width=width), noise("BM", width=width)]


def _ids(rows: int, shape: str) -> Maker:
    """Ids of a table, the same in every example; 0 often stands for padding."""

    def make(at: Sizes) -> Tensor:
        every = torch.zeros((), dtype=torch.int64)
        for size in at.of(shape[1:]):
            every = every[..., None] + torch.arange(size)
        every = (1 + every % max(rows - 1, 1)).clamp(max=rows - 1)
        return every.expand(at.batch, *every.shape).to(at.device)

    return make


def tensors(value: Any) -> list[Tensor]:
    """The tensors of nested tuples and lists."""
    if isinstance(value, Tensor):
        return [value]
    return [x for part in value for x in tensors(part)] if isinstance(value, (tuple, list)) else []


def in_neighbours(value: Any) -> bool:
    """Whether tables of cos and sin hold every angle twice in turn: those that a model passes tell how it pairs."""
    tables = [x for x in tensors(value) if x.is_floating_point() and x.ndim >= 2 and x.shape[-1] % 2 == 0]
    in_turn = [torch.equal(x[..., 0::2], x[..., 1::2]) for x in tables]
    in_halves = [torch.equal(*x.chunk(2, -1)) for x in tables]
    return bool(tables) and all(in_turn) and not all(in_halves)


# The shapes of rotations, "d" being half the width: each angle stands once.
_ROTATIONS = {"pair": "BND ND Nd 11ND", "complex": "Nd BNd", "angles": "ND Nd"}
_ONE_TABLE = "ND BND Nd 11ND 1N1D 11Nd 1N1d 1ND"  # of cos alone, or of sin


def positions(name: str, module: nn.Module, *, neighbours: bool = False) -> list[Maker]:
    """Makers of rotations and positions, by the name of their argument."""
    words = {*name.split("_")}
    if words & {"start", "offset", "step"}:
        return [constant(0), lambda at: torch.zeros((), dtype=torch.int64, device=at.device)]
    count: Maker = lambda at: torch.arange(at.queries, device=at.device)  # noqa: E731
    if "cache" in words:
        return [count]
    tables = name in ("pos", "position", "positions")
    if tables or words & {"ids", "indices", "index", "timestep"} or name == "input_pos":
        begin = [constant(0), noise("1QM")]
        each = lambda at: count(at).expand(at.batch, -1)  # noqa: E731
        return [each, count, *(begin[::-1] if tables else begin), noise("1RM")]
    if len(words & {"cos", "sin"}) == 1:
        forms = [("cos" if "cos" in words else "sin", shape) for shape in _ONE_TABLE.split()]
    else:
        known = words & {"rope", "rotary", "pe", "cos"} or "embedding" in name or "pos_emb" in name
        order = ("pair", "complex", "angles") if known else ("angles", "complex", "pair")
        order = ("complex", "pair", "angles") if "cis" in words else order
        forms = [(part, shape) for part in order for shape in _ROTATIONS[part].split()]
    dims: list[int | None] = [*sizes.rope_dims(module)[:4]] or [None]
    heads = sizes.heads(module) or 1
    return [
        *(_rotation(dim, *how, neighbours=neighbours) for dim in dims for how in forms),
        *(noise(shape, heads) for shape in ("1QM", "BQM", "1RM", "BRM", "QM", "Q1M", "BHQK", "HQK")),
        constant(None),
    ]


def _rotation(dim: int | None, part: str, shape: str, *, neighbours: bool) -> Maker:
    """The angles of rotary position embedding, base 10000: complex, as cos and sin, or as they are."""

    def make(at: Sizes) -> Any:
        width = dim or at.width
        rates = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
        angles = (torch.arange(at.queries, dtype=torch.float32)[:, None] * rates).to(at.device)
        if "D" in shape:
            angles = angles.repeat_interleave(2, dim=-1) if neighbours else torch.cat([angles, angles], dim=-1)
        if shape.startswith("B"):
            angles = angles.expand(at.batch, -1, -1)
        for i, letter in enumerate(shape):
            angles = angles.unsqueeze(i) if letter == "1" else angles
        if part == "complex":
            return torch.polar(torch.ones_like(angles), angles)
        cos, sin = angles.cos().to(at.dtype), angles.sin().to(at.dtype)
        return {"cos": cos, "sin": sin, "pair": (cos, sin), "angles": angles.to(at.dtype)}[part]

    return make


def permissive(name: str, role: str, heads: int, *, own: bool = False) -> list[Maker]:
    """Masks that allow everything, in each possible meaning, for a module that requires a mask before its meaning is
    known."""
    cells, keys = ("B1QK", "BQK", "QK"), ("B11K", "B1K", "BK")
    own = own or names.about_memory(name) is False
    if own:
        cells, keys = ("B1QQ", "QQ", "BQQ"), ("B11Q", "B1Q", "BQ")
    if role == "padding":
        keys = (keys[-1], *keys[:-1])
    shapes = (*cells, *keys) if own and role == "mask" else (*keys, *cells)
    others = [x for x in ("QQ", "B1QQ", "BQ", "B11Q", "HQK", "BHQK", "Brc") if x not in shapes]
    return [
        *(filled(shape, value, torch.bool, heads) for shape in shapes for value in (1, 0)),
        *(filled(shape, 1, torch.int64, heads) for shape in shapes),
        *(filled(shape, 0, None, heads) for shape in shapes),
        *(filled(shape, 1, torch.bool, heads) for shape in others),
        filled("Brc", 1, None, heads),
    ]


def from_example(value: Any, x: Tensor, memory: Tensor, heads: int, *, table: bool = False) -> Maker:
    """A captured value as a template: sizes equal to the batch or a length are replaced by those of the call.

    The first dimension may also be that of all heads of all examples.

    Args:
        x, memory: the queries and the keys of the captured call, [B, N, M] or [N, B, M]; one tensor if it has no other.
        table: the last dimension is that of features, as in a table of cos and sin.
    """

    def wanted(shape: torch.Size, dim: int, at: Sizes) -> int:
        size = shape[dim]
        batch, queries, keys = x.shape[0], x.shape[1], memory.shape[1]
        # Where another dimension than the first is that of the batch, it is one inside.
        of_batch = dim == 0 or (shape[0] != batch and 2 <= dim < len(shape) - 1)
        if not at.batch_first:
            batch, queries, keys, of_batch = x.shape[1], x.shape[0], memory.shape[0], dim < 2
        if table and dim == len(shape) - 1 > 0:
            return size
        if of_batch and size == batch:
            return at.batch
        if at.batch_first and dim == 0 and len(shape) > 2 and heads > 1 and size == batch * heads:
            return at.batch * heads
        return at.queries if size == queries else at.keys if size == keys else size

    def fit(y: Any, at: Sizes) -> Any:
        if isinstance(y, Tensor):
            for dim, size in enumerate(y.shape):
                rows = wanted(y.shape, dim, at)
                if rows != size:
                    y = y.index_select(dim, torch.arange(rows, device=y.device).clamp(max=size - 1))
            return y.to(at.device, at.dtype if y.is_floating_point() else y.dtype)
        if type(y) in (tuple, list):
            return type(y)(fit(each, at) for each in y)
        return _own(y)  # a cache, which a call fills

    kept = _own(value)
    return lambda at: fit(kept, at)


def _own(value: Any) -> Any:
    """A copy of a captured value, which calls may change; the value itself if it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value
