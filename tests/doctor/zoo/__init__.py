"""Attention modules as people write them, healthy and broken, each with its label: what the doctor is tried on.

The label stands apart from the code (`healthy.py`, `broken.py`): nothing in a specimen's file says whether it is right.
"""

from __future__ import annotations

from tests.doctor.zoo.broken import BROKEN
from tests.doctor.zoo.healthy import HEALTHY
from tests.doctor.zoo.specimen import Specimen

SPECIMENS: tuple[Specimen, ...] = (*HEALTHY, *BROKEN)

__all__ = ["BROKEN", "HEALTHY", "SPECIMENS", "Specimen"]
