"""`python -m tests.doctor.families`: what the doctor says of the layers of every family of the installed transformers.

A tiny model of each family, with random weights, runs on two examples of which one is padded, and each kind of layer is
diagnosed, as by `headwise doctor --model`. Every bug that is named here is either a false one or belongs in
docs/found.md.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import pkgutil
import sys
import time
from typing import Any

import torch

import headwise.doctor
from headwise.doctor.result import Diagnosis
from headwise.doctor.targets.layers import diagnose_model
from headwise.errors import DoctorError
from tests.capture.families.making import fresh
from tests.capture.families.models import build, families, seed
from tests.capture.families.run import PRELOADED, apart, made, padded

SECONDS, PER_KIND = 120, 30.0


@dataclasses.dataclass
class Report:
    """One family: its diagnoses, or why there are none."""

    family: str
    diagnoses: tuple[Diagnosis, ...] = ()
    error: str = ""  # no model could be made, or it was not done in time
    seconds: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.doctor.families", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME,…", help="these families, not all")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many at a time (default: 1)")
    parser.add_argument("--seconds", type=int, default=SECONDS, metavar="N", help="how long one may take")
    parser.add_argument("--verbose", action="store_true", help="the reports, risks and notes included")
    asked = parser.parse_args()
    chosen = [name for name in asked.only.split(",") if name] or families()
    bugs, unknown = collections.Counter[str](), 0
    for report in apart(chosen, examine, lambda *x: Report(x[0], error=x[1]), asked.jobs, asked.seconds, _modules()):
        said = " ".join(report.error.split())[:150] or f"{len(report.diagnoses)} kinds, {report.seconds:.1f} s"
        print(f"{report.family:28} {said}", flush=True)
        for each in report.diagnoses:
            bugs.update(x.name for x in each.bugs)
            unknown += bool(each.not_examined)
            if asked.verbose or each.bugs or each.not_examined:
                print(each, flush=True)
    print(f"\nbugs: {dict(bugs)}; kinds of layers that were not examined: {unknown}")
    return int(bool(bugs))


def examine(family: str) -> Report:
    """A model of the family, as it is given two examples, and every kind of its layers."""
    begun = time.monotonic()
    try:
        size, inputs = made(family)
    except RuntimeError as error:
        return Report(family, error=f"could not be made: {error}")
    model: Any = None
    for how in ("sdpa", "eager"):
        try:
            model = build(family, how, size)
            break
        except Exception as error:
            if how == "eager":
                return Report(family, error=f"could not be made: {error}")
    given = _runs(model, inputs)

    def run() -> None:
        seed()
        model(**fresh(given))

    try:
        found = diagnose_model(model, run, timeout=PER_KIND)
    except DoctorError as error:
        return Report(family, error=f"no attention: {error}")
    return Report(family, found, seconds=time.monotonic() - begun)


def _runs(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs, the second example padded where the model takes that."""
    for padding in ("right", "left"):
        given = padded(inputs, padding, model)  # type: ignore[arg-type]
        if given is None:
            continue
        try:
            seed()
            with torch.no_grad():
                model(**fresh(given))
        except Exception:
            continue
        return given
    return inputs


def _modules() -> tuple[str, ...]:
    found = pkgutil.walk_packages(headwise.doctor.__path__, "headwise.doctor.")
    return (*PRELOADED, *(x.name for x in found if "isolated" not in x.name))


if __name__ == "__main__":
    sys.exit(main())
