"""The doctor: it tests whether a module computes attention correctly, and names the mistake if it does not.

    diagnosis = headwise.diagnose(MyAttention(64, heads=8))    # the mistakes, with numbers and the line of code
    headwise.doctor.compare(mine, theirs)                      # the first difference between two modules
    headwise.doctor.gradcheck(mine)                            # gradients against finite differences in float64

The steps: find out how to call the module (calling/), and what it says of itself (contract.py); trace one forward,
operation by operation (reading/); probe its behaviour (probing/); and compare both with the laws (laws/).

Names are imported on first use: `headwise doctor --changed` reads which classes changed before it needs torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.doctor.calling.spec import Spec
    from headwise.doctor.comparing.compare import Comparison, compare
    from headwise.doctor.diagnosis import diagnose
    from headwise.doctor.finding import Finding, Where
    from headwise.doctor.gradients.gradcheck import Gradients, gradcheck
    from headwise.doctor.result import Diagnosis
    from headwise.doctor.targets.layers import diagnose_model

# Public name -> the module that holds it.
_WHERE = {
    "Comparison": "headwise.doctor.comparing.compare",
    "Diagnosis": "headwise.doctor.result",
    "Finding": "headwise.doctor.finding",
    "Gradients": "headwise.doctor.gradients.gradcheck",
    "Spec": "headwise.doctor.calling.spec",
    "Where": "headwise.doctor.finding",
    "compare": "headwise.doctor.comparing.compare",
    "diagnose": "headwise.doctor.diagnosis",
    "diagnose_model": "headwise.doctor.targets.layers",
    "gradcheck": "headwise.doctor.gradients.gradcheck",
}

__all__ = [
    "Comparison",
    "Diagnosis",
    "Finding",
    "Gradients",
    "Spec",
    "Where",
    "compare",
    "diagnose",
    "diagnose_model",
    "gradcheck",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'headwise.doctor' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
