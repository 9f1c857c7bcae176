"""Where a module stores its projections of queries, keys, values and output, converted to one shape.

Names decide if they say something; otherwise shapes and the order of registration. What remains open (which axis of a
square matrix is the input, how a fused matrix is split) becomes several candidates, the usual one first; `fit` tries
them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from headwise.doctor.fitting.linear_maps import LinearMap, linear_maps
from headwise.doctor.fitting.projection_readings import Reading, Source, arranged

if TYPE_CHECKING:
    from headwise.doctor.calling.interface import Interface

MOST_CANDIDATES = 64  # a module with more possible readings cannot be understood by trying more


@dataclasses.dataclass(frozen=True, eq=False)
class Projections:
    """The weights of one attention layer in float64, one head at a time, in one form for every module.

    H heads of D (queries, keys) and E (values) columns; G key heads. A missing bias is None.
    """

    q: Tensor  # [H, M, D]
    k: Tensor  # [G, Mk, D]
    v: Tensor  # [G, Mv, E]
    o: Tensor | None  # [H, E, Mo]
    q_bias: Tensor | None = None  # [H, D]
    k_bias: Tensor | None = None  # [G, D]
    v_bias: Tensor | None = None  # [G, E]
    o_bias: Tensor | None = None  # [Mo]
    # "q" -> "attn.q_proj"; roles without one are left out.
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    kind: str = "separate"  # separate, fused, fused-kv, listed (a module per head), shared (one for all heads), none
    layout: str = ""  # how the columns were read, if not as the usual [heads, head width]
    certain: bool = True  # whether names say which projection is which; else the order of registration did
    oriented: bool = True  # whether input and output axes are certain, as in nn.Linear

    @property
    def heads(self) -> int:
        return self.q.shape[0]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[0]

    @property
    def head_width(self) -> int:
        return self.q.shape[-1]

    def describe(self) -> str:
        """ "q_proj, k_proj, v_proj -> out_proj: 4 heads of 16"."""
        read = ", ".join(dict.fromkeys(self.names[role] for role in "qkv" if role in self.names)) or "no projections"
        heads = f"{self.heads} head{'s' if self.heads > 1 else ''} of {self.head_width}"
        groups = "" if self.kv_heads == self.heads else f", {self.kv_heads} for keys and values"
        layout = f", columns as {self.layout}" if self.layout else ""
        return f"{read} -> {self.names.get('o', 'no output projection')}: {heads}{groups}{layout}"


def find_projections(
    module: nn.Module, interface: Interface, *, parameters: Mapping[str, str] | None = None
) -> list[Projections]:
    """The ways in which the module's weights can be read as projections, best first; empty if none fits.

    Args:
        module: the attention layer.
        interface: its widths and, if known, its heads. If not, each divisor of the width is tried.
        parameters: role ("q", "k", "v", "o", "qkv", "kv") -> path of a module or parameter, if stated by hand.
    """
    maps = linear_maps(module, parameters or {})
    widths = {"q": interface.width, "k": interface.key_width, "v": interface.value_width}
    found = [
        whole
        for source in _sources(maps)
        for heads in _heads(source, interface)
        for reading in source.read(heads, interface.kv_heads, widths)
        for whole in _with_output(reading, maps, source.used)
    ]
    return sorted(found, key=lambda p: 0 if not p.layout else 1 if p.layout == "h 3 d" else 2)[:MOST_CANDIDATES]


def _heads(source: Source, interface: Interface) -> list[int]:
    """Numbers of heads to try: the known one, else those that divide the projection's columns."""
    if source.heads is not None:
        return [source.heads]
    if interface.heads is not None:
        return [interface.heads]
    columns = source.columns
    divisors = [n for n in range(1, columns + 1) if columns % n == 0]
    likely = [n for n in (8, 4, 2, 1, 16, 12, 6, 3, 32) if n in divisors]
    return likely + [n for n in divisors if n not in likely and n <= 64]


def _sources(maps: Sequence[LinearMap]) -> list[Source]:
    """Maps that may compute queries, keys and values, by their names, then by their order."""
    named = [m for m in maps if m.name.letters]
    found = []
    for parent in dict.fromkeys(m.name.parent for m in named):  # submodules may have projections of their own
        group: dict[str, list[LinearMap]] = {}
        for m in named:
            if m.name.parent == parent:
                group.setdefault(m.name.letters, []).append(m)
        chosen = _choose(group)
        if chosen is not None:
            found.append(Source(chosen, True))
    plain = [m for m in maps if not m.name.is_output] or list(maps)
    wide = [m for m in plain if m.oriented and m.tensor.shape[1] == 3 * m.tensor.shape[0]]
    found = found or [Source({"qkv": [m]}, True) for m in maps if m.name.is_fused]
    found = found or [Source({"qkv": [m]}, False) for m in wide]
    if found:
        return found
    given = dict(_partly(named))
    free = [m for m in plain if m not in named]
    open_roles = [role for role in "qkv" if not any(role in letters for letters in given)]
    if len(free) >= len(open_roles) > 0:
        for order in itertools.permutations(open_roles):
            found.append(Source(given | {role: [m] for role, m in zip(order, free, strict=False)}, False))
    if given and not free:
        found.append(Source(given, True))
    if not maps or all(m.name.is_output for m in maps):
        found.append(Source({}, True))
    return found


def _partly(named: Sequence[LinearMap]) -> Iterator[tuple[str, list[LinearMap]]]:
    taken: set[str] = set()
    for m in named:
        if not taken & set(m.name.letters):
            taken |= set(m.name.letters)
            yield m.name.letters, [m]


def _choose(group: Mapping[str, list[LinearMap]]) -> dict[str, list[LinearMap]] | None:
    """Of the maps of one parent, those that make up q, k and v, each once."""
    for letters, maps in group.items():
        if len(letters) == 3:
            return {letters: maps[:1]}
    for letters, maps in group.items():
        if set(letters) == {"k", "v"} and "q" in group:
            return {"q": group["q"][:1], letters: maps[:1]}
    if not all(role in group for role in "qkv"):
        return None
    as_many = len({len(group[role]) for role in "qkv"}) == 1
    listed = as_many and all(m.name.index is not None for m in group["q"])
    return {role: group[role] if listed else group[role][:1] for role in "qkv"}


def _with_output(reading: Reading, maps: Sequence[LinearMap], used: set[str]) -> Iterator[Projections]:
    """The reading with each output projection that fits, or with none if the module has none."""
    heads = reading.weights["q"].shape[0]
    e = reading.weights["v"].shape[-1]
    free = [m for m in maps if m.path not in used and not m.name.letters]
    candidates = [m for m in free if m.name.is_output] or free
    q, k, v = (reading.weights[role] for role in "qkv")
    q_bias, k_bias, v_bias = (reading.biases[role] for role in "qkv")
    bare = Projections(
        q,
        k,
        v,
        None,
        q_bias=q_bias,
        k_bias=k_bias,
        v_bias=v_bias,
        names=reading.names,
        kind=reading.kind,
        layout=reading.layout,
        certain=reading.certain,
        oriented=reading.oriented,
    )
    found = False
    for m in candidates:
        for tensor in m.left_by(heads * e):
            sizes = {"h": heads, "d": e}
            for order, cut in arranged(tensor.movedim(-1, 0), sizes):
                found = True
                yield dataclasses.replace(
                    bare,
                    o=cut,
                    o_bias=m.bias,
                    names=reading.names | {"o": m.path},
                    layout="; ".join(x for x in (reading.layout, order and f"merged as {order}") if x),
                    oriented=reading.oriented and m.oriented,
                )
    if not found and not any(m.name.is_output for m in candidates):
        yield bare
