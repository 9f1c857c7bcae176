"""Laws: what a module of attention does, whatever it is made of. How it differs from a law names the mistake.

A law is a file with `FINDINGS`, the names of its findings, and `check(patient)`, which yields findings, or raises
NotChecked if it cannot be tested.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Protocol, cast

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient


class Law(Protocol):
    """A module of this package."""

    FINDINGS: tuple[str, ...]

    def check(self, patient: Patient) -> Iterator[Finding]: ...


def _load(names: str) -> dict[str, Law]:
    """The laws of these names, in this order."""
    return {x: cast(Law, importlib.import_module(f"{__name__}.{x}")) for x in names.split()}


# SOURCE laws read the code alone, also where no call is found.
SOURCE = _load("written")
# READ laws are about the traced operations and find causes; PROBED laws are about behaviour and may find symptoms only.
READ = _load("""
layout outputs projections scale added_terms rotary
distances visibility windows norms masked_scores inner_padding split
weights dropout_misplaced
""")
PROBED = _load("""
normaliser sizes repetition modes examples reshapes positions edges
reach documents masking removing padded_ids fills empty_rows
gradients derivatives increments left_padding precision composition recomputed
""")
