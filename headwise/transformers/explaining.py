"""Which kernel each attention call of a model takes, and why."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from headwise.call import AttentionCall
from headwise.capture import watch
from headwise.errors import ArgumentError
from headwise.functional import listening
from headwise.kernels import Plan, make_plan
from headwise.language import said
from headwise.tables import Heading, Printed, Table

_HEADINGS = (
    Heading("layers", "left"),
    Heading("kernel", "left"),
    Heading("queries × keys"),
    Heading("mask", "left"),
    Heading("of dense"),
    Heading("others, × the time", "left"),
)


@dataclasses.dataclass(frozen=True, repr=False)
class Kernels(Printed):
    """The plans of a forward: `print` them, or read `plans`. Each plan explains itself, with what refuses and why."""

    plans: Mapping[str, tuple[Plan, ...]]  # by the layer's name; one for each call of the layer
    others: Mapping[str, str]  # layers whose attention asks no registry, and how they compute it

    def __str__(self) -> str:
        alike: dict[tuple[str, ...], list[str]] = {}
        for name, plans in self.plans.items():
            for plan in plans:
                alike.setdefault(_describe(plan), []).append(name)
        rows = [(_shorten(names), *cells) for cells, names in alike.items()]
        notes = [said("{name}: not headwise's ({how})", name=name, how=how) for name, how in self.others.items()]
        return str(Table(_HEADINGS, [rows], notes=notes))


def explain(model: nn.Module, *inputs: Any, **arguments: Any) -> Kernels:
    """Call a model once, without gradients, and return the plans of all attention calls that reach headwise.

    The times in a plan are estimates. Raises ArgumentError if no call reaches headwise.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile, whose code has one plan for all calls
    found: dict[str, list[Plan]] = {}
    running = [""]  # names of the modules that run, the innermost last

    def keep(call: AttentionCall, *_: Any) -> None:
        found.setdefault(running[-1], []).append(make_plan(call))

    with torch.no_grad(), _naming(model, running), watch(model) as seen, listening(keep, outputs=False):
        model(*inputs, **arguments)
    if not found:
        asked = getattr(getattr(model, "config", None), "_attn_implementation", None) == "headwise"
        raise ArgumentError(
            f"expected a model whose attention is headwise's. Received: {type(model).__name__}, of which no attention "
            "call reached headwise. "
            + (
                "Its code asks no registry of transformers, so that no name changes its attention"
                if asked
                else "Call model.set_attn_implementation('headwise') first"
            )
        )
    others = {site.name: site.how for site in seen.coverage() if site.how != "headwise.attention"}
    return Kernels({name: tuple(plans) for name, plans in found.items()}, others)


@contextlib.contextmanager
def _naming(model: nn.Module, running: list[str]) -> Iterator[None]:
    """Keep the names of the modules that run in this thread in a list."""
    here, handles = threading.get_ident(), []

    def enter(name: str) -> None:
        if threading.get_ident() == here:
            running.append(name)

    def leave() -> None:  # a hook that returned something would replace the module's output
        if threading.get_ident() == here:
            running.pop()

    for name, part in model.named_modules():
        handles += [
            part.register_forward_pre_hook(lambda *_, name=name: enter(name)),
            part.register_forward_hook(lambda *_: leave(), always_call=True),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _describe(plan: Plan) -> tuple[str, ...]:
    """Return the cells of a plan's row, without the layers."""
    _, heads, q_len, k_len = plan.call.shape
    mask = "none" if plan.call.mask is None else repr(plan.call.mask)
    times = sorted((v.cost.time, v.kernel) for v in plan.verdicts if v.cost is not None and v.kernel != plan.kernel)
    others = ", ".join(f"{name} {time / plan.cost.time:.3g}" for time, name in times if plan.cost.time)
    share = f"{plan.cost.flops / plan.dense_flops:.0%}" if plan.dense_flops else ""
    return (
        plan.kernel,
        said("{q_len:,} × {k_len:,}, {heads} heads", q_len=q_len, k_len=k_len, heads=heads),
        mask,
        share,
        others or said("all refuse"),
    )


def _shorten(names: list[str]) -> str:
    """Return the first of several names, and how many follow."""
    return names[0] if len(names) == 1 else said("{names} and {count} more", names=names[0], count=len(names) - 1)
