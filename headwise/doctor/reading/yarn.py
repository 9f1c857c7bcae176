"""What a module's configuration says about YaRN: the factor of its context, and the temperatures (mscale).

Multi-head latent attention (DeepSeek-V2 and V3) multiplies its scores by the square of 0.1 · mscale_all_dim ·
ln(factor) + 1, and cos and sin by the ratio of that number for mscale to that for mscale_all_dim.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.doctor.patient import Patient

_FACTORS = ("factor", "rotary_scaling_factor", "rope_scaling_factor", "rope_factor", "yarn_factor", "scaling_factor")


@dataclasses.dataclass(frozen=True)
class Temperatures:
    """The two temperatures of a configuration."""

    all_dim: float  # of all features
    rotated: float  # of mscale alone
    kept: bool  # whether the module keeps this configuration; else it is a default written in its code


def temperatures(patient: Patient) -> Temperatures | None:
    """None if nothing states mscale_all_dim, which only latent attention has."""
    kept = [(entry, True) for entry in _kept(patient)]
    for entry, certain in (*kept, *((entry, False) for entry in _written(patient.source))):
        factor = next((x for name in _FACTORS if (x := _number(entry.get(name))) > 1), 0.0)
        all_dim = _number(entry.get("mscale_all_dim"))
        if factor and all_dim:
            mscale = _number(entry.get("mscale")) or 1.0
            both, rotated = (0.1 * x * math.log(factor) + 1 for x in (all_dim, mscale))
            return Temperatures(both, rotated, certain)
    return None


def _number(x: Any) -> float:
    return float(x) if isinstance(x, (int, float)) and not isinstance(x, bool) else 0.0


def _kept(patient: Patient) -> Iterator[Mapping[str, Any]]:
    """The configurations that the module and its parts hold: a dict of RoPE's, or attributes."""
    names = (*_FACTORS, "mscale", "mscale_all_dim")
    for part in patient.module.modules():
        for holder in (part, getattr(part, "config", None)):
            for name in ("rope_scaling", "rope_parameters"):
                entry = getattr(holder, name, None)
                if isinstance(entry, Mapping):
                    yield entry
            yield {name: getattr(holder, name, None) for name in names}


def _written(source: str) -> Iterator[Mapping[str, Any]]:
    """Dicts of constants in the code."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            try:
                found = ast.literal_eval(node)
            except ValueError:
                continue
            yield {key: value for key, value in found.items() if isinstance(key, str)}
