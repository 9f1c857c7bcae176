"""From a target to its diagnosis: import, build and diagnose within a time limit. Code that hangs is a finding."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from headwise.doctor.calling.spec import Spec
from headwise.doctor.diagnosis import diagnose
from headwise.doctor.limits import alone, ended_by, time_limit, too_large
from headwise.doctor.lines import definition
from headwise.doctor.result import Diagnosis
from headwise.doctor.targets.arguments import by_owner, parse_setting
from headwise.doctor.targets.keras_backend import begin_backend
from headwise.doctor.targets.load import Target
from headwise.doctor.targets.places import OF_SPEC
from headwise.doctor.targets.size import LARGEST, TooLarge
from headwise.language import Sentence


def examine(
    target: Target,
    *,
    spec: Spec | None = None,
    timeout: float | None = None,
    memory: float | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> Diagnosis:
    """Import, build and diagnose, all within `timeout` seconds.

    `say` is called with the next step, in words that begin a sentence: "the import of my_model.py", "the constructor of
    MyAttention", "forward". `memory` is the memory limit of this process in bytes, if it has one, for the evidence.

    Raises DoctorError if the module cannot be loaded or understood.
    """
    begin_backend(target.file)  # before the clock starts: it may take long to import
    begun = time.monotonic()
    doing: str = Sentence("the import of {name}").format(name=target.place)
    try:
        with time_limit(timeout):
            say(doing)
            made = target.find()
            doing = Sentence("the constructor of {name}").format(name=target.name)
            say(doing)
            module = target.build(largest=LARGEST if memory is None else min(LARGEST, memory / 4))
        doing = "forward"
        say(doing)
        # diagnose() has a time limit of its own, so that its findings so far are not lost.
        found = diagnose(
            module, spec=spec, make=target.build, timeout=timeout and max(timeout - (time.monotonic() - begun), 0.1)
        )
    except (Exception, SystemExit) as error:
        finding = None if isinstance(error, TooLarge) else ended_by(error, doing, memory=memory)
        if finding is None:
            raise
        return alone(str(target), finding)
    # That memory ran out is told with its limit, which is known here.
    limited = memory is not None
    findings = tuple(too_large(memory, x.where) if limited and x.name == "too-large" else x for x in found.findings)
    subject = type(module) if module is made else made
    understood = (*target.remarks, *found.understood)
    where = found.where or definition(subject)
    return dataclasses.replace(found, findings=findings, understood=understood, where=where)


def parse_spec(stated: Sequence[str]) -> Spec | None:
    """A Spec from `heads=8`, `mask=forbidden`, `roles.x=query`, `parameters.q=to_q`; None if nothing is stated."""
    given = dict(parse_setting(each, *OF_SPEC) for each in stated)
    whole, parts = by_owner(given)
    return Spec.of({**whole, **parts}) if stated else None
