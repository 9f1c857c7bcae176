"""For test suites: assert that the doctor finds no bug in an attention module.

from headwise.testing import assert_healthy
def test_my_attention():
    assert_healthy(MyAttention(64, heads=8))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from headwise.doctor.calling.spec import Spec
    from headwise.doctor.result import Diagnosis

__all__ = ["assert_healthy"]

# Functions that get every diagnosis that is checked, and the names of the findings that are ignored: the pytest plugin
# prints a line for each diagnosis.
listeners: list[Callable[[Diagnosis, frozenset[str]], object]] = []


def assert_healthy(
    module: nn.Module,
    *,
    ignore: Iterable[str] = (),
    risks: bool = False,
    spec: Spec | None = None,
    example: object = None,
    timeout: float | None = 60.0,
) -> Diagnosis:
    """Diagnose a module and fail with the doctor's report if it has a bug. Returns the diagnosis.

    Args:
        module: any module that computes attention. It is copied, never changed.
        ignore: names of findings that are intended, such as "weights-averaged"; docs/doctor.md lists them.
        risks: also fail for a risk.
        spec: facts about the module, stated by hand where the doctor cannot find them out.
        example: the arguments of a real call of `module`, where the doctor cannot invent them: (args, kwargs), a tuple
            of arguments, a dict, or one tensor.
        timeout: seconds after which a module is reported as hanging; None: no limit.

    Raises:
        AssertionError: a bug was found, or a risk if `risks` is set; or no way to call the module was found.
        ArgumentError: `ignore` holds a name that is not a finding.
    """
    __tracebackhide__ = True  # pytest shows the line of the test itself
    from headwise.doctor.catalogue import check_names
    from headwise.doctor.diagnosis import diagnose

    ignored = check_names(ignore, "ignore")
    diagnosis = diagnose(module, spec=spec, example=example, timeout=timeout)
    check(diagnosis, ignored, risks=risks)
    return diagnosis


def tell(diagnosis: Diagnosis, ignored: frozenset[str]) -> None:
    """Pass a diagnosis, and the names of the ignored findings, on to the `listeners`."""
    for listener in listeners:
        listener(diagnosis, ignored)


def check(diagnosis: Diagnosis, ignored: frozenset[str] = frozenset(), *, risks: bool = False) -> None:
    """Tell the `listeners`; raise AssertionError for bugs (and risks, if `risks`) not ignored, or if not examined."""
    import dataclasses

    __tracebackhide__ = True
    tell(diagnosis, ignored)
    if diagnosis.not_examined:
        raise AssertionError(f"not examined: {diagnosis.not_examined}")
    bad = ("bug", "risk") if risks else ("bug",)
    failed = tuple(x for x in diagnosis.findings if x.severity in bad and x.name not in ignored)
    if failed:
        names = ", ".join(dict.fromkeys(x.name for x in failed))
        raise AssertionError(f"not healthy: {names}\n\n{dataclasses.replace(diagnosis, findings=failed)}")


def __dir__() -> list[str]:
    return __all__
