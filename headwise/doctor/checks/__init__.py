"""Every check of the doctor, one per file: what it looks for, how, and the findings that it can report.

A check is a module with `FINDINGS`, the names of its findings, and `check(patient)`, which yields findings, or raises
NotChecked if the check cannot be made.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Protocol, cast

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient


class Check(Protocol):
    """A module of this package."""

    FINDINGS: tuple[str, ...]

    def check(self, patient: Patient) -> Iterator[Finding]: ...


def _load(names: str) -> dict[str, Check]:
    """The checks of these names, in this order; `laws.cache` is in the folder of laws."""
    paths = {x.rpartition(".")[2]: x if "." in x else f"checks.{x}" for x in names.split()}
    return {name: cast(Check, importlib.import_module(f"headwise.doctor.{path}")) for name, path in paths.items()}


# SOURCE checks read the code alone, also where no call is found.
SOURCE = _load("laws.written")
# READ checks examine the traced operations and find causes; PROBED checks examine behaviour and may find symptoms only.
READ = _load("""
laws.layout laws.outputs laws.projections laws.scale laws.added_terms laws.rotary laws.rotary_precision
laws.distances laws.grid laws.visibility laws.windows laws.norms laws.masked_scores laws.inner_padding laws.split
laws.weights laws.dropout_misplaced
""")
PROBED = _load("""
laws.normaliser laws.sizes laws.repetition laws.modes laws.examples laws.reshapes laws.positions laws.edges
laws.unread laws.reach laws.documents laws.masking laws.removing laws.padded_ids laws.fills laws.empty_rows
laws.gradients laws.derivatives laws.increments laws.left_padding laws.precision laws.composition laws.recomputed
""")
