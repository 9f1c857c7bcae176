"""`scripts/families --implementation headwise`: every family of the installed transformers on headwise's kernels.

Each family runs once with eager attention and once with "headwise": the same weights, inputs and padding. What both
give is compared at real positions, and so are the gradients of the parameters. A call counts as reached if it went
through the registry to headwise; a family of which no call did is "not reached", never "equal".
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AttentionInterface

import headwise.transformers
from headwise.errors import HeadwiseError
from tests.capture.families import models
from tests.capture.families.inputs import Inputs, Padding, padded
from tests.capture.families.making import fresh
from tests.capture.families.models import build, seed
from tests.capture.families.run import PADDINGS, PRELOADED, SECONDS, apart, made
from tests.capture.families.truth import Truth

EQUAL = 2e-5  # largest difference, relative to the largest number
HALF = 1.5  # in bfloat16, how many times as far from float32 as eager attention in bfloat16
DRAWS = 9  # of weights that decide about a family in bfloat16
VERDICTS = ("equal", "wrong", "refused", "not reached", "no attention", "not run")
IGNORED = "its code asks no registry"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "transformers.md"
BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"


@dataclasses.dataclass
class Report:
    """One family: a verdict for each padding, with what there is to say of it."""

    family: str
    verdicts: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)  # padding -> (verdict, why)
    calls: int = 0  # that reached headwise, without padding
    softmaxes: int = 0  # of attention, in eager attention without padding
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """The worst of them."""
        said = {verdict for verdict, _ in self.verdicts.values()}
        return next((x for x in ("wrong", "refused", "equal", "not reached", "no attention") if x in said), "not run")

    @property
    def why(self) -> str:
        return next((why for verdict, why in self.verdicts.values() if verdict == self.verdict), "")


def examine(family: str, half: bool = False) -> Report:
    """Compare every padding of a family, here and now; with `half`, also its outputs in bfloat16."""
    start, report = time.monotonic(), Report(family)
    try:
        size, inputs = made(family)
        model = build(family, "eager", size)
    except Exception as error:
        return _end(report, start, "not run", _short(error))
    exact, theirs = copy.deepcopy(model).double(), {}
    for padding in PADDINGS:
        try:
            theirs[padding] = run(model, inputs, padding)
        except Exception as error:  # noqa: PERF203
            report.verdicts[padding] = "not run", f"eager: {_short(error)}"
    if "none" not in theirs:
        return _end(report, start, *report.verdicts["none"])
    again = run(model, inputs, "none")
    assert again is not None
    assert theirs["none"] is not None
    if differ(theirs["none"], again):
        return _end(report, start, "not run", "eager gives another result each time")
    truth = Truth(model)
    seed()
    with truth.watching():
        model(**fresh(inputs))
    report.softmaxes = len(truth.attention)
    if not report.softmaxes:
        return _end(report, start, "no attention", "")
    try:
        model.set_attn_implementation("headwise")
    except ValueError as error:
        return _end(report, start, "not reached", _short(error))
    for padding, expected in theirs.items():
        if expected is None:
            continue
        with counted(report):
            before, report.calls = report.calls, 0
            try:
                ours = run(model, inputs, padding)
            except HeadwiseError as error:
                report.verdicts[padding] = "refused", _short(error)
                continue
            except Exception as error:
                report.verdicts[padding] = "wrong", _short(error)
                continue
        assert ours is not None
        wrong = differ(expected, ours)
        if wrong and not exceeds(exact, expected, ours, inputs, padding):
            wrong = ""
        if wrong:
            report.verdicts[padding] = "wrong", wrong
        elif not report.calls:
            report.verdicts[padding] = "not reached", IGNORED
        else:
            report.verdicts[padding] = "equal", ""
        report.calls = report.calls if padding == "none" else before
    if half and report.verdict == "equal":
        report.verdicts["bfloat16"] = compare_half(model, inputs)
    report.seconds = time.monotonic() - start
    return report


def _end(report: Report, start: float, verdict: str, why: str) -> Report:
    report.verdicts["all"] = verdict, why
    report.seconds = time.monotonic() - start
    return report


@contextlib.contextmanager
def counted(report: Report) -> Iterator[None]:
    """Count the calls that reach headwise through the registry."""

    def attend(*args: Any, **kwargs: Any) -> Any:
        report.calls += 1
        return headwise.transformers.attend(*args, **kwargs)

    AttentionInterface._global_mapping["headwise"] = attend
    try:
        yield
    finally:
        AttentionInterface._global_mapping["headwise"] = headwise.transformers.attend


def compare_half(model: Any, inputs: Inputs) -> tuple[str, str]:
    """A verdict on the outputs in bfloat16: how far they are from eager attention's in float32, as root mean square.

    Where eager attention adds a bool mask to its scores, which sdpa and headwise read as True = may attend, sdpa takes
    its place. Small outputs, and those of models that choose the largest numbers, are further by chance. So where the
    first draw of the weights exceeds the limit, others decide together with it.
    """
    given = {name: x.bfloat16() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in inputs.items()}
    squares: dict[str, Tensor] = {}
    worst, own = 1.0, "eager"
    with contextlib.suppress(Exception):  # not every model has sdpa
        runs = []
        for name in ("eager", "sdpa"):
            model.set_attn_implementation(name)
            runs.append(run(model, inputs, "none"))
        own = "sdpa" if differ(*runs) else own
    for draw in range(DRAWS):
        one = copy.deepcopy(model)
        with torch.no_grad():
            for x in one.parameters() if draw else ():
                x.mul_(1 + 0.01 * torch.randn_like(x))
        found: dict[str, Run | None] = {}
        for name, dtype in (("truth", torch.float32), (own, torch.bfloat16), ("headwise", torch.bfloat16)):
            one = one.to(dtype)
            one.set_attn_implementation("headwise" if name == "headwise" else own)
            try:
                found[name] = run(one, inputs if name == "truth" else given, "none")
            except Exception as error:
                return ("wrong" if name == "headwise" else "not run"), f"bfloat16: {_short(error)}"
        truth, theirs, ours = found["truth"], found[own], found["headwise"]
        assert truth is not None
        assert theirs is not None
        assert ours is not None
        pairs = {
            name: [(x - y.outputs[name].float()).square().mean() for y in (theirs, ours)]
            for name, x in truth.outputs.items()
            if x.numel() and all(name in y.outputs and y.outputs[name].shape == x.shape for y in (theirs, ours))
        }
        for name, pair in pairs.items():
            squares[name] = squares.get(name, torch.zeros(2)) + torch.stack(pair)
        ratios = [float((b / a).sqrt()) for a, b in squares.values() if a > 0]
        worst = max(ratios, default=1.0)
        if worst <= HALF and not draw:
            break
    return ("equal" if worst <= HALF else "wrong"), f"bfloat16: {worst:.2f} × as far from float32 as {own} attention"


@dataclasses.dataclass
class Run:
    outputs: dict[str, Tensor]
    real: dict[str, Tensor | None]  # bool [B, L] of each output that has positions
    gradients: dict[str, Tensor]


def named(name: str, out: Any) -> Iterator[tuple[str, Tensor]]:
    """The float tensors in what a model returns; not the weights of attention, which only eager attention returns."""
    if isinstance(out, Tensor):
        if out.is_floating_point():
            yield name, out
    elif isinstance(out, dict):
        for key, x in out.items():
            if not key.endswith("attentions"):
                yield from named(f"{name} {key}", x)
    elif isinstance(out, (tuple, list)):
        for i, x in enumerate(out):
            yield from named(f"{name} {i}", x)


def run(model: Any, inputs: Inputs, padding: Padding) -> Run | None:
    """Outputs and gradients of the parameters; None where the model takes no padding."""
    given = padded(inputs, padding, model)
    if given is None:
        return None
    seed()
    model.zero_grad(set_to_none=True)
    found = dict(named("", model(**fresh(given))))
    mask = given.get("attention_mask")
    mask = mask.bool() if isinstance(mask, Tensor) and padding != "none" else None
    real = {name: mask if mask is not None and x.shape[:2] == mask.shape else None for name, x in found.items()}
    loss = torch.zeros(())
    for name, x in found.items():
        rows = real[name]
        if x.requires_grad and (mask is None or rows is not None):
            x = x if rows is None else x[rows]
            loss = loss + (x.float() * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() / max(1, x.numel())
    if loss.requires_grad:
        with contextlib.suppress(RuntimeError, AssertionError):  # some models cannot train, or not with these inputs
            loss.backward()
    gradients = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    return Run({name: x.detach() for name, x in found.items()}, real, gradients)


def exceeds(exact: Any, expected: Run, ours: Run, inputs: Inputs, padding: Padding) -> bool:
    """Whether ours is further from eager attention in float64 than twice as far as transformers' own in float32 are.

    Gradients may be further: a maximum in the model jumps with the last digit. Then both must agree in float64.
    """
    given = {name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in inputs.items()}
    try:
        truth = run(exact, given, padding)
    except Exception:
        return True
    assert truth is not None
    error = list_errors(truth, ours)[0]
    if error <= 2 * list_errors(truth, expected)[0]:
        return False
    model = copy.deepcopy(exact).float()
    try:
        model.set_attn_implementation("sdpa")
        theirs = run(model, inputs, padding)
    except Exception:
        return True
    assert theirs is not None
    # Eager attention adds a bool mask of the model to its scores; sdpa and headwise read True = may attend.
    if not differ(theirs, ours) or error <= 2 * list_errors(truth, theirs)[0]:
        return False
    outputs = [dataclasses.replace(x, gradients={}) for x in (expected, ours)]
    exact.set_attn_implementation("headwise")
    again = run(exact, given, padding)
    exact.set_attn_implementation("eager")
    assert again is not None
    # Eager softmax is float32 even here.
    return bool(differ(*outputs)) or list_errors(truth, again)[0] > 1e-6


def list_errors(truth: Run, found: Run) -> tuple[float, str]:
    """The largest difference of outputs and gradients, relative to the largest number of each, and where it is."""
    errors = [(0.0, "")]
    padded_run = any(rows is not None for rows in truth.real.values())
    for name, x in truth.outputs.items():
        rows, y = truth.real[name], found.outputs[name]
        if x.numel() and not (padded_run and rows is None):
            errors.append((_relative(*((x, y) if rows is None else (x[rows], y[rows]))), f"output{name}"))
    largest = max((float(x.nan_to_num().abs().max()) for x in truth.gradients.values() if x.numel()), default=0.0)
    errors += [
        (_relative(x, found.gradients[name], largest), f"gradient of {name}") for name, x in truth.gradients.items()
    ]
    return max(errors)


def _relative(x: Tensor, y: Tensor, largest: float | None = None) -> float:
    if not x.numel():
        return 0.0
    largest = float(x.nan_to_num().abs().max()) if largest is None else largest
    if bool((y.isnan() & ~x.isnan()).any()):  # eager attention has NaN where a query may attend to nothing
        return math.inf
    return float((x - y).nan_to_num(nan=0.0).abs().max()) / max(largest, 1e-30)


def differ(a: Run | None, b: Run | None) -> str:
    """What differs, in words; nothing if nothing does."""
    assert a is not None
    assert b is not None
    if {name: x.shape for name, x in a.outputs.items()} != {name: x.shape for name, x in b.outputs.items()}:
        return f"outputs of other sizes: {', '.join(a.outputs)} and {', '.join(b.outputs)}"
    if missing := sorted(set(a.gradients) - set(b.gradients)):
        return f"no gradient of {', '.join(missing)}"
    error, place = list_errors(a, b)
    return f"{place}: off by {error:.1e}" if error > EQUAL else ""


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/families --implementation headwise", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME,…", help="these families, not all")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many at a time (default: 2)")
    parser.add_argument("--seconds", type=int, default=SECONDS, metavar="N", help="how long one may take")
    parser.add_argument("--half", action="store_true", help="also in bfloat16")
    parser.add_argument("--write", action="store_true", help="the table into docs/transformers.md; needs all families")
    asked = parser.parse_args(arguments)
    if asked.write and asked.only:
        parser.error("--write needs all families. Received: --only. Leave one of them out")
    families = [name for name in asked.only.split(",") if name] or models.families()

    def failed(family: str, error: str) -> Report:
        return Report(family, {"all": ("not run", error)})

    reports = []
    for report in apart(
        families,
        functools.partial(examine, half=asked.half),
        failed,
        asked.jobs,
        asked.seconds,
        (*PRELOADED, "headwise.transformers"),
    ):
        reports.append(report)
        print(
            f"{report.family:32} {report.verdict:12} {report.calls:4} of {report.softmaxes:4} "
            f"{report.seconds:5.1f} s  {report.why}",
            flush=True,
        )
    total = Counter(report.verdict for report in reports)
    print(f"\ntransformers {transformers.__version__}, torch {torch.__version__}: {len(reports)} families")
    print(", ".join(f"{total[verdict]} {verdict}" for verdict in VERDICTS))
    if asked.write:
        write(reports)
    return int(bool(total["wrong"]))


def write(reports: list[Report]) -> None:
    """Put the table between its markers. ValueError if they are not there."""
    reports = sorted(reports, key=lambda report: report.family)
    total, at = Counter(report.verdict for report in reports), {}
    for verdict in VERDICTS[1:-2]:
        at[verdict] = [report for report in reports if report.verdict == verdict]
    partly = [x for x in reports if x.verdict == "equal" and x.calls < x.softmaxes]
    lines = [
        BEGIN,
        f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}: "
        f"{len(reports)} families, "
        "each with random weights, forward and backward, without padding and with padding on either side.",
        "",
        "| " + " | ".join(VERDICTS) + " |",
        "|" + "---|" * len(VERDICTS),
        "| " + " | ".join(str(total[verdict]) for verdict in VERDICTS) + " |",
        "",
        f"*Equal*: as eager attention to {EQUAL:g} of the largest number, at real positions, or no further from it in "
        "float64 than twice as far as transformers' own attention is; where gradients jump "
        "with a maximum in the model, they are compared in float64. *Not reached*: the model's code asks no registry, "
        "so that no name changes its attention: " + ", ".join(report.family for report in at["not reached"]) + ".",
        "",
        "In "
        + ", ".join(f"{x.family} ({x.calls} of {x.softmaxes})" for x in partly)
        + " some attention does not ask the registry.",
        "",
        *(f"- {verdict}: {x.family}: {_cell(x.why)}" for verdict in ("wrong", "refused") for x in at[verdict]),
    ]
    text = DOCUMENT.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{DOCUMENT}: expected {BEGIN} and {END} once each. Put them where the table belongs")
    before, rest = text.split(BEGIN)
    DOCUMENT.write_text(before + "\n".join(lines) + "\n" + END + rest.partition(END)[2], encoding="utf-8")


def _cell(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 240 else text[:239] + "…"


if __name__ == "__main__":
    sys.exit(main())
