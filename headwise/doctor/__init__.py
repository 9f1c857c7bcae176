"""The doctor: whether a module computes attention rightly, and which mistake it is if not.

    diagnosis = headwise.diagnose(MyAttention(64, heads=8))    # names what is wrong, with numbers and the line
    headwise.doctor.compare(mine, theirs)                      # where two modules part
    headwise.doctor.gradcheck(mine)                            # numerical gradients in float64

What it does with a module: finds out how it is called (calling/), follows one forward, operation by operation
(reading/), fits known wrong variants to its output (fitting/), probes its behaviour (probing/), and lets every check
(checks/) say what it sees.
"""

from headwise.doctor.calling.spec import Spec
from headwise.doctor.comparing.compare import compare
from headwise.doctor.comparing.comparison import Comparison
from headwise.doctor.diagnosis import diagnose
from headwise.doctor.finding import Diagnosis, Finding, Where
from headwise.doctor.gradients.gradcheck import Gradients, gradcheck
from headwise.doctor.targets.layers import diagnose_model

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
