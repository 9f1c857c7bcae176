"""`diagnose`: run every check on one module and collect the findings.

diagnosis = headwise.diagnose(MyAttention(64, heads=8))
print(diagnosis)
diagnosis.bugs
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch import nn

from headwise.doctor import laws
from headwise.doctor.calling.example import Example, as_example
from headwise.doctor.calling.interface import other_memories
from headwise.doctor.calling.search import first_call
from headwise.doctor.calling.spec import Spec
from headwise.doctor.calling.way import Fails
from headwise.doctor.causes import settled
from headwise.doctor.finding import ORDER, Finding
from headwise.doctor.limits import LONG, TookTooLong, ended_by, out_of_memory, time_limit
from headwise.doctor.parts import attending, calls_in, takes_heads
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import Probe
from headwise.doctor.result import Diagnosis
from headwise.doctor.subject import as_module
from headwise.errors import DoctorError, DtypeError, shortened
from headwise.language import Sentence, join, sentence_of
from headwise.registry import find_framework


def diagnose(
    module: nn.Module,
    *,
    spec: Spec | None = None,
    example: object = None,
    timeout: float | None = 60.0,
    make: Callable[..., object] | None = None,
) -> Diagnosis:
    """Test whether a module computes attention correctly; if not, name the mistake.

    The module is copied, never changed. The copy is examined on the CPU, in float32 or float64. How to call it is
    found from the names of its arguments and by trial.

    Args:
        module: any module that computes attention: an attention layer, an encoder or decoder layer, a stack of them.
            Or a Keras layer. On TensorFlow and JAX it is examined by behaviour and gradients, since torch does not see
            its operations; the report says so. One that has no weights yet is built by trial, with new layers of
            `make` or of its own config.
        spec: facts about the module, stated by hand where the doctor cannot find them out.
        example: the arguments of a real call of `module`, where the doctor cannot invent them: (args, kwargs), a tuple
            of arguments, a dict, or one tensor.
        timeout: seconds after which a module that has not finished is reported as hanging (main thread only);
            None: no limit.
        make: builds the module again with some constructor arguments changed; some checks need it.

    Raises:
        DtypeError: `module` is not an nn.Module, or `example` has none of these forms.
    """
    if not isinstance(module, nn.Module) and find_framework(module) is None:
        raise DtypeError(
            f"diagnose: module must be an nn.Module. Received: module of type {type(module).__name__}. Pass an "
            "instance, as in diagnose(MyAttention(64, heads=8))"
        )
    call = as_example(example)
    begun = time.monotonic()
    causes: list[Finding] = []
    symptoms: list[Finding] = []
    unchecked: dict[str, str] = {}
    lines: tuple[str, ...] = ()
    not_examined = ""
    patient, clock = None, _Clock()
    try:
        with _quiet(), clock.running(), time_limit(timeout):
            looked_at = as_module(module, make=make, first=lambda x: first_call(x, spec=spec, example=call))
            assert looked_at is not None
            clock.kind = type(looked_at)
            patient = Patient(looked_at, spec=spec, example=call, make=make)
            for check in laws.SOURCE.values():
                causes += _made(check.check, patient)[0]
            for name, error in patient.interface.refused.items():
                unchecked[name] = Sentence("each mask that was tried raises: {error}").format(error=error)
            for name, check in (laws.READ | laws.PROBED).items():
                found, reason = _made(check.check, patient)
                if name in laws.READ:
                    causes += found
                else:
                    symptoms += found
                if reason:
                    unchecked[name] = reason
            if patient.anatomy is None and not patient.has_attention:
                fix = "pass the doctor a module that computes attention"
                causes.append(Finding("not-attention", "note", patient.anatomy_problem, fix, patient.where))
            symptoms += _called_otherwise(patient, {x.name for x in (*causes, *symptoms)})
            lines = _summed_up(patient)
    except TookTooLong as error:
        said = Sentence("the diagnosis took longer than {round:g} s").format(round=round(error.seconds, 1))
        if error.where is not None and clock.seconds() > error.seconds / 2:
            causes += filter(None, [ended_by(error)])
        elif patient is None or "interface" not in patient.__dict__:  # many calls, none of them long
            not_examined = Sentence(
                "{said}, and no way to call it was found; allow more time with timeout= (--timeout)"
            ).format(said=said)
        else:
            unchecked["the rest"] = said
            lines = lines or tuple(patient.interface.describe())
    except Fails as error:  # (it is a RuntimeError)
        no_output = error.finding == "output-shape"
        if no_output and patient is not None and not patient.reports("output-shape: no output"):
            not_examined = sentence_of(error)
        else:
            fix = "make sure that one forward runs, or state how the module is called (spec=)"
            if no_output and error.where is not None:  # where NaN begins
                fix = "look for 0 · inf, inf - inf and 0 / 0; a mask is filled: scores.masked_fill(hidden, -inf)"
            causes.append(Finding(error.finding, "bug", sentence_of(error), fix, error.where))
    except DoctorError as error:
        not_examined = sentence_of(error)
    except (RuntimeError, MemoryError, SystemExit) as error:
        finding = ended_by(error, where=patient.where if patient else None)
        if finding is None:
            raise
        known = None if patient is None else patient.__dict__.get("interface")
        if finding.name == "too-large" and known is not None and (known.length or 0) > LONG:
            unchecked["the rest"] = Sentence("memory ran out with {length} tokens; fewer were not seen to work").format(
                length=known.length
            )
        else:
            causes.append(finding)
    findings = list(settled(causes, symptoms))
    if isinstance(module, nn.Module) and (not_examined or _unread(patient)):
        parts = attending(module)
        alone, told = _on_their_own(parts, timeout and begun + timeout, _calls(patient, parts))
        known = {x.name for x in findings}
        findings = sorted((*findings, *(x for x in alone if x.name not in known)), key=lambda x: ORDER[x.severity])
        lines += told
    return Diagnosis(
        subject=type(module).__name__,
        findings=tuple(findings),
        understood=lines,
        unchecked=unchecked,
        seconds=time.monotonic() - begun,
        where=None if patient is None else patient.where,
        not_examined=not_examined,
        evidence="" if patient is None or not_examined else patient.evidence(),
    )


def _unread(patient: Patient | None) -> bool:
    """Whether it has attentions, and in one of them queries and keys are not known: a model of patches, or of sentences
    of words.
    """
    anatomy = None if patient is None else patient.__dict__.get("anatomy")
    try:
        return anatomy is not None and bool(anatomy.sites) and any(site.grid is None for site in anatomy.sites)
    except Exception:  # of a trace that cannot be read, as in the checks
        return True


def _calls(patient: Patient | None, parts: Mapping[str, nn.Module]) -> dict[str, Example]:
    """How parts are called in a call of the whole, if it can be called."""
    if patient is None or "interface" not in patient.__dict__:
        return {}
    probe = Probe(patient)
    inside = {path: probe.module.get_submodule(path) for path in parts}
    calls = calls_in(inside, lambda: probe.attempt(probe.inputs()))
    return {path: call for path, call in calls.items() if takes_heads(call)}


def _on_their_own(
    parts: Mapping[str, nn.Module], until: float | None, examples: Mapping[str, Example]
) -> tuple[list[Finding], tuple[str, ...]]:
    """The findings about parts of a module, and a line about each part that could be examined in time."""
    found, lines = [], []
    for path, part in parts.items():
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            break
        diagnosis = diagnose(part, example=examples.get(path), timeout=left)
        # What the whole makes of its mask is its own affair: -1 and 1, for example. It may use a projection itself.
        # And NaN in a call that was invented says little: the whole may never call it so.
        of_whole = ("mask-", "unused-parameter") if path in examples else ("output-shape",)
        of_part = [x for x in diagnosis.findings if not x.name.startswith(of_whole)]
        found += [
            dataclasses.replace(
                x, evidence=Sentence("in its part {path}: {evidence}").format(path=path, evidence=x.evidence)
            )
            for x in of_part
        ]
        if not diagnosis.not_examined:
            lines.append(
                Sentence("its part {path} ({subject}) was examined on its own").format(
                    path=path, subject=diagnosis.subject
                )
            )
    return found, tuple(lines)


def _summed_up(patient: Patient) -> tuple[str, ...]:
    try:
        return patient.understood()
    except TookTooLong:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        return (
            *patient.interface.describe(),
            Sentence("the summary of its attention failed: {name}: {said}").format(
                name=type(error).__name__, said=said
            ),
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the module's warnings during the trials, leave the caller's random state unchanged, and run compiled code as
    it is written: else its operations are hidden.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        else:  # to ask the compiler would import it, which takes seconds
            stack.enter_context(mock.patch.object(torch, "compile", _as_written))
        warnings.simplefilter("ignore")
        yield


def _as_written(model: Any = None, **_: object) -> Any:
    """In the place of torch.compile, which is also called with options alone, as a decorator."""
    return _as_written if model is None else model


class _Clock:
    """When the last forward of a module of this kind began."""

    begun = 0.0
    kind: type[nn.Module] = nn.Module

    def seconds(self) -> float:
        return time.monotonic() - self.begun

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        def note(called: nn.Module, _: object) -> None:
            if isinstance(called, self.kind):
                self.begun = time.monotonic()

        hook = nn.modules.module.register_module_forward_pre_hook(note)
        try:
            yield
        finally:
            hook.remove()


def _made(check: Callable[[Patient], Iterable[Finding]], patient: Patient) -> tuple[list[Finding], str]:
    """What a check found, and the reason if it could not be made."""
    found: list[Finding] = []
    try:
        for finding in check(patient):
            found.append(finding)  # noqa: PERF402 (findings before an error are kept)
    except NotApplicable:
        return found, ""
    except NotChecked as reason:
        return found, sentence_of(reason)
    except TookTooLong:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        return found, f"{type(error).__name__}: {shortened(' '.join(str(error).split()), 200)}"
    return found, ""


def _called_otherwise(patient: Patient, named: set[str]) -> list[Finding]:
    """Bugs that appear only in the module's other ways of being called: with a memory, or without one, or with another
    sequence.
    """
    found: list[Finding] = []
    ways: list[tuple[str, Spec]] = []
    for takes in patient.interface.also:
        called = "called with a memory" if takes != "self" else "called with one input"
        ways.append((called, dataclasses.replace(patient.spec, takes=takes)))  # type: ignore[arg-type]
    for name, spec in other_memories(patient.interface, patient.spec):
        ways.append((Sentence("called with {name}").format(name=name), spec))
    for called, spec in ways:
        other = Patient(patient.original, spec=spec, example=patient.example)
        named = named | {x.name for x in found}
        for check in (*laws.READ.values(), *(laws.PROBED[name] for name in ("masking", "removing"))):
            found += [
                dataclasses.replace(x, evidence=join((called, x.evidence), ": "))
                for x in _made(check.check, other)[0]
                if x.severity == "bug" and x.name not in named
            ]
    return found
