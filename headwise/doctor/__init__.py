"""The doctor: it tests whether a module computes attention correctly, and names the mistake if it does not.

    diagnosis = headwise.diagnose(MyAttention(64, heads=8))    # the mistakes, with numbers and the line of code
    headwise.doctor.compare(mine, theirs)                      # the first difference between two modules
    headwise.doctor.gradcheck(mine)                            # gradients against finite differences in float64

The steps: find out how to call the module (calling/); trace one forward, operation by operation (reading/); fit known
wrong variants of attention to its output (fitting/); probe its behaviour (probing/); and run every check on the results
(checks/).
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
