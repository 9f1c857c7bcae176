"""Every edit on many families of models, against the same change in eager code by hand.

    python -m tests.edits.parity                      # all; a table, and what is not equal; minutes
    python -m tests.edits.parity --families gpt2 t5 --kinds block

Outputs in inference, with padding on the left too, and gradients of the parameters; fused (sdpa) and eager. A part is a
test (test_families.py).
"""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor

import headwise
from headwise import edits
from headwise.edits import Edit
from headwise.errors import HeadwiseError
from tests.capture.families.inputs import Padding, padded
from tests.capture.families.making import fresh
from tests.capture.families.models import build, seed
from tests.capture.families.run import examine, fitting
from tests.capture.parity import tensors
from tests.edits import oracle

FAMILIES = """
albert bart bert biogpt blip bloom camembert clip codegen cohere2 deberta-v2 deepseek_v3 detr distilbert
electra esm falcon flaubert gemma2 gpt2 gpt_neo gpt_neox gpt_oss gptj granite imagegpt llama m2m_100 marian
mistral mpt mt5 olmo2 openai-gpt opt pegasus persimmon phi3 qwen3_moe roberta roformer stablelm swin t5 vit
wav2vec2 whisper xlnet
"""
SMALLEST = 1e-3  # an edit has to change the output by more


@dataclasses.dataclass(frozen=True)
class Kind:
    """An edit, and the same by hand: scores or weights as functions, given the padding of each example."""

    edit: Edit
    by_hand: Callable[[Sequence[int]], dict[str, oracle.Change]]


def _anywhere(change: Callable[[], dict[str, oracle.Change]]) -> Callable[[Sequence[int]], dict[str, oracle.Change]]:
    return lambda padding: change()


LATER = slice(1, None)
KINDS: dict[str, Kind] = {
    "ablate": Kind(edits.ablate("*", heads=1), _anywhere(lambda: oracle.ablated(1))),
    "head_mask": Kind(edits.head_mask("*", 0.25, heads=[0]), _anywhere(lambda: oracle.scaled(0, 0.25))),
    "block": Kind(edits.block("*", queries=LATER, keys=0), lambda padding: oracle.blocked(1, 0, padding)),
    "only": Kind(edits.only("*", queries=LATER, keys=slice(1, None)), lambda padding: oracle.blocked(1, 0, padding)),
    "steer": Kind(edits.steer("*", keys=1, by=5.0), lambda padding: oracle.steered(1, 5.0, padding)),
    "share": Kind(edits.steer("*", keys=1, to=0.6), lambda padding: oracle.shared(1, 0.6, padding)),
    "temperature": Kind(edits.temperature("*", 2.0), _anywhere(lambda: oracle.temperature(2.0))),
    "topk": Kind(edits.topk("*", 2), _anywhere(lambda: oracle.largest(2))),
    "window": Kind(edits.window("*", 1, first=1), lambda padding: oracle.windowed(1, 1, padding)),
    "weights": Kind(edits.weights("*", lambda w, at, rows: w.square()), _anywhere(lambda: {"weights": Tensor.square})),
    "call": Kind(
        edits.call("*", lambda call, at: dataclasses.replace(call, v=-call.v)),
        _anywhere(lambda: {"weights": Tensor.neg}),
    ),
    "output": Kind(
        edits.output("*", lambda out, at: 2 * out, heads=1),
        _anywhere(lambda: oracle.scaled(1, 2.0)),
    ),
}
PATCHES = ("weights", "output", "q", "k", "v")
ROW = 1  # where patches are made


@functools.cache
def made(family: str, how: str) -> tuple[Any, dict[str, Any]]:
    """A model and what it takes."""
    report = examine(family, [])
    assert report.size is not None, report.error
    eager = build(family, "eager", report.size)
    return (eager if how == "eager" else build(family, how, report.size)), fitting(eager, family)


@functools.cache
def in_double(family: str, how: str) -> tuple[Any, dict[str, Any]]:
    """The same in float64, in which gradients do not depend on the order of sums."""
    model, inputs = made(family, how)
    wide = {name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in inputs.items()}
    model = copy.deepcopy(model).double()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # torch's grouped product knows no float64
    return model, wide


@dataclasses.dataclass(frozen=True)
class Case:
    """One family's model and what it is given."""

    model: Any
    inputs: dict[str, Any]
    padding: Sequence[int] = (0, 0)

    def run(self) -> list[Tensor]:
        """The outputs, without those of padding."""
        seed()
        with torch.no_grad():
            found = [
                x.float() for x in tensors(self.model(**fresh(self.inputs))) if x.is_floating_point() and x.numel()
            ]
        if not any(self.padding):
            return found
        length = self.inputs["attention_mask"].shape[1]
        whole = [x for x in found if x.ndim == 3 and x.shape[:2] == (len(self.padding), length)]
        return [x[b, start:] for x in whole for b, start in enumerate(self.padding)]

    def gradients(self) -> list[Tensor]:
        """The gradient of each parameter, of a sum of the outputs times fixed numbers, in float64."""
        seed()
        self.model.zero_grad()
        outputs = [x for x in tensors(self.model(**fresh(self.inputs))) if x.requires_grad and x.is_floating_point()]
        generator = torch.Generator().manual_seed(1)
        torch.stack([(x * torch.randn(x.shape, generator=generator)).sum() for x in outputs]).sum().backward()
        found = [p.grad.clone() if p.grad is not None else torch.zeros(()) for p in self.model.parameters()]
        self.model.zero_grad()
        return found

    def with_others(self) -> Case:
        """The same model with the examples in the other order."""
        turned = {
            name: x.flip(0) if isinstance(x, Tensor) and x.ndim and x.shape[0] == 2 else x
            for name, x in self.inputs.items()
        }
        return Case(self.model, turned, self.padding)


def case_of(family: str, how: str, padding: Padding = "none", double: bool = False) -> Case | None:
    """None where the model takes no mask of padding, or has two sequences."""
    model, inputs = in_double(family, how) if double else made(family, how)
    if padding == "none":
        return Case(model, inputs)
    given = padded(inputs, padding, model)
    if given is None or getattr(model.config, "is_encoder_decoder", False) or "input_ids" not in given:
        return None
    starts = given["attention_mask"].argmax(-1).tolist()
    return Case(model, given, starts) if given["input_ids"].shape == given["attention_mask"].shape else None


def by_hand(kind: str, case: Case, found: Callable[[], list[Tensor]]) -> list[Tensor]:
    """What an eager model gives with the change that is made by hand; AssertionError if nothing was changed."""
    if kind in KINDS:
        with oracle.changed(**KINDS[kind].by_hand(case.padding)) as calls:
            expected = found()
        assert calls, "no softmax was seen by hand"
        return expected
    what: Any = kind.removeprefix("patch ")
    if what == "weights":
        source: list[Tensor] = []

        def keep(w: Tensor) -> Tensor:
            source.append(w)
            return w

        with oracle.changed(weights=keep):
            case.with_others().run()
        with oracle.changed(**oracle.rows_of(ROW, source)):
            return found()
    runs = []
    for each in (case, case.with_others()):
        with oracle.Products() as products:
            each.run()
        runs.append(products.attentions)
    assert runs[0], "no softmax was seen by hand"
    assert all("v" in each.numbers for run in runs for each in run), "no product with values was seen by hand"
    with oracle.Products(oracle.taken(what, ROW, *runs)):
        return found()


def edit_of(kind: str, case: Case) -> Edit:
    """The edit of a kind."""
    if kind in KINDS:
        return KINDS[kind].edit
    other = case.with_others()
    with headwise.watch(case.model, values=True) as seen:
        other.run()
    what: Any = kind.removeprefix("patch ")
    return edits.patch("*", seen, what, positions=ROW)


def compare(family: str, kind: str, padding: Padding = "none", gradients: bool = False) -> dict[str, str]:
    """By implementation what came of it: "equal", or what is not."""
    eager = case_of(family, "eager", padding, gradients)
    if eager is None:
        return {}
    if gradients:
        plain, expected = eager.gradients(), by_hand(kind, eager, eager.gradients)
    else:
        plain, expected = eager.run(), by_hand(kind, eager, eager.run)
    if max(_distance(a, b) for a, b in zip(plain, expected, strict=True)) <= SMALLEST:
        return {"eager": "not compared: by hand nothing changes"}
    outcome = {}
    for how in ("eager", "sdpa"):
        try:
            case = case_of(family, how, padding, gradients)
        except ValueError:  # it has no fused attention
            continue
        run = case.gradients if gradients else case.run
        before = run()
        try:
            with headwise.edit(case.model, edit_of(kind, case)):
                found = run()
        except HeadwiseError as error:
            outcome[how] = f"refused: {' '.join(str(error).split())[:120]}"
            continue
        wrong = max(_distance(a, b) / max(1.0, float(b.abs().max())) for a, b in zip(found, expected, strict=True))
        left = all(map(torch.equal, run(), before))
        outcome[how] = f"wrong by {wrong:.1e}" if wrong > 1e-5 else "equal" if left else "something is left behind"
    return outcome


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max()) if a.numel() else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="*", default=FAMILIES.split())
    parser.add_argument("--kinds", nargs="*", default=[*KINDS, *(f"patch {what}" for what in PATCHES)])
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    ways: list[tuple[str, Padding, bool]] = [("output", "none", False), ("left padding", "left", False)]
    ways.append(("gradients", "none", True))
    counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    compared: set[str] = set()
    for family in asked.families:
        for kind in asked.kinds:
            for name, padding, gradients in ways:
                if kind.startswith("patch") and padding != "none":
                    continue  # the source would have padding at other places
                try:
                    outcome = compare(family, kind, padding, gradients)
                except AssertionError as error:
                    outcome = {"eager": f"not compared: {error}"}
                for how, what in outcome.items():
                    counts[kind, name][what.partition(":")[0].partition(" by ")[0]] += 1
                    if what == "equal":
                        compared.add(family)
                    else:
                        print(f"{family}, {kind}, {name}, {how}: {what}", flush=True)
    print(f"{len(compared)} families")
    for (kind, name), found in sorted(counts.items()):
        print(f"{kind:15} {name:13}", ", ".join(f"{count} {what}" for what, count in found.most_common()))


if __name__ == "__main__":
    main()
