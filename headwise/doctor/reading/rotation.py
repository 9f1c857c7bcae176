"""The rotation of queries and keys by their position, measured: for every position and pair of features, the 2 x 2 map
from the projection's output to the input of the product.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from headwise.doctor.reading.site import Site

_ROUNDING = 1e-4


@dataclasses.dataclass(frozen=True)
class Rotation:
    """What happens to queries, keys or values between projection and product."""

    pairing: str  # "halves", "neighbours", or "" if nothing depends on the position
    maps: Tensor | None = None  # [L, pairs, 2, 2]
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def stretch(self) -> Tensor:
        """[L, pairs]: how far each map is from a rotation (up to a common factor)."""
        assert self.maps is not None
        a, b, c, d = self.maps[..., 0, 0], self.maps[..., 0, 1], self.maps[..., 1, 0], self.maps[..., 1, 1]
        size = self.maps.flatten(-2).norm(dim=-1) / 2**0.5
        return torch.maximum((a - d).abs(), (b + c).abs()) / size

    @property
    def mirrors(self) -> bool:
        """Whether each map is [[c, s], [s, c]]: the sign of the rotation is missing."""
        assert self.maps is not None
        a, b, c, d = self.maps[..., 0, 0], self.maps[..., 0, 1], self.maps[..., 1, 0], self.maps[..., 1, 1]
        return float(torch.maximum((a - d).abs(), (b - c).abs()).max()) < 1e-2 * self.size

    @property
    def size(self) -> float:
        """The factor by which rotated pairs are multiplied."""
        assert self.maps is not None
        return float(self.maps.flatten(-2).norm(dim=-1).mean()) / 2**0.5

    @property
    def angles(self) -> Tensor:
        """[L, pairs]"""
        assert self.maps is not None
        return torch.atan2(self.maps[..., 1, 0] - self.maps[..., 0, 1], self.maps[..., 0, 0] + self.maps[..., 1, 1])


def rotation(site: Site, name: str, dim: int = 2) -> Rotation | None:
    """The maps of the pairing that explains the measured change of queries "q", keys "k" or values "v", one for each
    index of `dim` of [B, H, L, D]; None if no pairing does.
    """
    raw = site.raw(name)
    if raw is None:
        return None
    entered = {"q": site.q, "k": site.k, "v": site.v}[name].double()
    entered, raw = entered.transpose(dim, 2), raw.transpose(dim, 2)
    factor = (entered * raw).sum() / (raw * raw).sum()
    if float((entered - factor * raw).abs().max()) < _ROUNDING * float(entered.abs().max()):
        return Rotation("")
    width = raw.shape[-1]
    for size in (width, *range(width - 2, 1, -2)):  # partly rotated heads: only the first or last features
        for start in {0, width - size}:
            rest = [i for i in range(width) if not start <= i < start + size]
            if rest:
                own = (entered[..., rest] * raw[..., rest]).sum() / (raw[..., rest] ** 2).sum()
                still = entered[..., rest] - own * raw[..., rest]
                if float(still.abs().max()) > _ROUNDING * float(entered.abs().max()):
                    continue
            for pairing, pairs in (
                ("halves", [(start + i, start + i + size // 2) for i in range(size // 2)]),
                ("neighbours", [(start + 2 * i, start + 2 * i + 1) for i in range(size // 2)]),
            ):
                maps = _maps(raw, entered, pairs)
                if maps is not None:
                    return Rotation("") if _scales(maps) else Rotation(pairing, maps, tuple(pairs))
    return None


def _scales(maps: Tensor) -> bool:
    """Whether they only multiply each feature by a number, such as a temperature. A number for each feature that
    changes with the position is none: a rotation with its sine at the wrong feature.
    """
    size = float(maps.abs().max())
    across = torch.stack([maps[..., 0, 1], maps[..., 1, 0]])
    apart = maps[..., 0, 0] - maps[..., 1, 1]
    by_position = float((apart - apart[:1]).abs().max()) > 1e-2 * size
    return float(across.abs().max()) < _ROUNDING * size and not by_position


def _maps(raw: Tensor, entered: Tensor, pairs: list[tuple[int, int]]) -> Tensor | None:
    """[L, pairs, 2, 2]: entered = map · raw for every position, the same for all examples and heads; None if there is
    no such map.
    """
    b, h, length, _ = raw.shape
    found = torch.empty(length, len(pairs), 2, 2, dtype=torch.float64)
    size = float(entered.abs().max())
    for i, (x, y) in enumerate(pairs):
        given = raw[..., [x, y]].permute(2, 0, 1, 3).reshape(length, b * h, 2)
        got = entered[..., [x, y]].permute(2, 0, 1, 3).reshape(length, b * h, 2)
        if float(given.abs().amin(1).max()) == 0 or _along_a_line(given):
            return None
        solved = torch.linalg.lstsq(given, got).solution  # [L, 2, 2]: given @ solved = got
        if float((given @ solved - got).abs().max()) > _ROUNDING * size:
            return None
        found[:, i] = solved.transpose(-1, -2)
    return found


def _along_a_line(given: Tensor) -> bool:
    """Whether the pairs [L, N, 2] of a position are all multiples of one, as those of a learned query: then every
    output is a rotation of them.
    """
    sizes = torch.linalg.svdvals(given)
    return bool((sizes[:, -1] <= _ROUNDING * sizes[:, 0]).any())


def turned(x: Tensor) -> Tensor:
    """Angles between -pi and pi."""
    return torch.atan2(x.sin(), x.cos())
