"""For test suites: attention that the doctor finds healthy.

from headwise.testing import assert_healthy
def test_my_attention():
    assert_healthy(MyAttention(64, heads=8))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from headwise.doctor.calling.spec import Spec
    from headwise.doctor.finding import Diagnosis

__all__ = ["assert_healthy"]


def assert_healthy(
    module: nn.Module,
    *,
    ignore: Iterable[str] = (),
    risks: bool = False,
    spec: Spec | None = None,
    example: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
    timeout: float | None = 60.0,
) -> Diagnosis:
    """Diagnose a module, and fail with the doctor's report if it has a bug. Returns the diagnosis.

    Args:
        module: any module with attention in it. It is copied, never changed.
        ignore: names of findings that are meant, such as "weights-averaged"; docs/doctor.md lists them.
        risks: fail for a risk too.
        spec: what is stated by hand, where the doctor cannot find it out.
        example: (args, kwargs) of a real call of `module`, for arguments that cannot be made up.
        timeout: seconds after which a module is said to hang; None: never.

    Raises:
        AssertionError: a bug, or a risk if `risks`, was found.
        ArgumentError: `ignore` names something that is no finding.
    """
    __tracebackhide__ = True  # pytest shows the test's own line
    from headwise.doctor.catalogue import check_names
    from headwise.doctor.diagnosis import diagnose

    ignored = check_names(ignore, "ignore")
    diagnosis = diagnose(module, spec=spec, example=example, timeout=timeout)
    check(diagnosis, ignored, risks=risks)
    return diagnosis


def check(diagnosis: Diagnosis, ignored: frozenset[str] = frozenset(), *, risks: bool = False) -> None:
    """AssertionError, with the report, for what of a diagnosis is neither ignored nor harmless."""
    import dataclasses

    __tracebackhide__ = True
    bad = ("bug", "risk") if risks else ("bug",)
    failed = tuple(x for x in diagnosis.findings if x.severity in bad and x.name not in ignored)
    if failed:
        names = ", ".join(dict.fromkeys(x.name for x in failed))
        raise AssertionError(f"not healthy: {names}\n\n{dataclasses.replace(diagnosis, findings=failed)}")
