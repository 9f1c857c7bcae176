"""Computes statistics in one or two passes over the weights, however many there are, without all weights in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from headwise.call import Scores, suspend_autocast
from headwise.gpu import look as gpu
from headwise.native.attend import ANSWERS, look, refuse
from headwise.records.statistics.part import Part, Unit, on_all_threads, units
from headwise.records.statistics.statistic import Statistic, list_tensors
from headwise.tables import Cell, Heading, Table

Look = Callable[[set[str], dict[str, Any]], Mapping[str, Tensor]]  # (names, options) -> the answers of a kernel


class Statistics(SimpleNamespace):
    """The values of statistics, as attributes with the statistics' names; None for a statistic that was not requested.

    The classes in `headwise.records.statistics` describe them. A row that attends to nothing has 0 in every statistic
    except two: `lse` is -inf, or the learned sink if there is one, and `learned_sink` is then 1. Iterating gives names
    and answers: `dict(record.statistics("lse"))`.
    """

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter([(name, answer) for name, answer in vars(self).items() if answer is not None])

    def __repr__(self) -> str:
        lines = [f"{name:<14}{shape:<24}mean {mean}" for name, shape, mean in self._lines()]
        return "\n".join(["Statistics, each a tensor", *lines] if lines else ["Statistics(nothing)"])

    def _repr_html_(self) -> str:
        rows: list[list[Cell]] = [[[(name, "bold")], shape, mean] for name, shape, mean in self._lines()]
        headings = [Heading("statistic", "left"), *map(Heading, ("shape", "mean"))]
        return Table(headings, [rows])._repr_html_()

    def _lines(self) -> list[tuple[str, str, str]]:
        """Return (name, shape, mean) of each answer as text; if an answer has several tensors, of the first one."""
        found = []
        for name, answer in self:
            first = list_tensors(answer)[0]
            finite = first[first.isfinite()].double()
            found.append((name, str(list(first.shape)), f"{finite.mean():.4g}" if len(finite) else "–"))
        return found


class OfLayers(dict[str, Statistics]):
    """The statistics of some layers: a dict from layer name to `Statistics`."""

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in next(iter(self.values()))) if self else ""
        shown = ", ".join(map(repr, list(self)[:2])) + (", …" if len(self) > 2 else "")
        return f"Statistics of {len(self)} layer{'s' * (len(self) != 1)} ({names}), by their names: {shown}"

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for each in self.values() for name, _, _ in each._lines()))
        rows = []
        for layer, each in self.items():
            means = {name: mean for name, _, mean in each._lines()}
            rows.append([layer, *(means.get(name, "") for name in names)])
        headings = [Heading("layer", "left"), *map(Heading, names)]
        return Table(headings, [rows], caption="means over all examples, heads and queries")._repr_html_()


def compute(call: Scores, statistics: Sequence[Statistic], rows: int | None = None) -> dict[str, Any]:
    """Compute statistics of a call's weights: answers by name. `rows`: use only about so many rows; None = all.

    Native kernels (on a GPU, kernels written in Triton) compute the statistics that they can; a pass over tiles by
    torch computes the others. The kernel, and so the last digits of an answer, depend on which statistics are requested
    together.
    """
    whole = rows is None and call.places is None  # kernels assume that the last query is at the last key
    answers = by_native(call, statistics) or by_triton(call, statistics) if whole else {}
    left = [each for each in statistics if each.name not in answers]
    answers = {**answers, **by_tiles(call, left, rows)} if left else answers
    return {each.name: each.close(call, answers[each.name]) for each in statistics}


def by_native(call: Scores, statistics: Sequence[Statistic]) -> dict[str, Any]:
    """Compute the statistics that native CPU kernels can, in one pass: the answers to all, some or none of them."""
    if refuse(call) is not None:
        return {}
    return _found(call, statistics, ANSWERS.keys(), lambda names, options: look(call, names, options))


def by_triton(call: Scores, statistics: Sequence[Statistic]) -> dict[str, Any]:
    """Compute the statistics that the GPU kernels can: answers by name, for all, some or none of them."""
    if gpu.refuse(call) is not None:
        return {}
    return _found(call, statistics, gpu.ANSWERS, lambda names, _: gpu.look(call, names))


def _found(call: Scores, statistics: Sequence[Statistic], known: Set[str], look: Look) -> dict[str, Any]:
    """Compute the statistics that follow from the results of a kernel; `look` runs it, `known` names its results."""
    asked, names, options = list[Statistic](), set[str](), dict[str, Any]()
    for each in statistics:
        own = each.native_options(call) if each.native and known >= set(each.native) else None
        if own is not None and all(_same(options.get(name, value), value) for name, value in own.items()):
            asked.append(each)
            names.update(each.native)
            options.update(own)
    with torch.no_grad():
        rows = look(names, options) if names else {}
        return {each.name: each.of_rows(call, rows) for each in asked}


def _same(a: Any, b: Any) -> bool:
    return a is b or (not isinstance(a, Tensor) and bool(a == b))


def by_tiles(call: Scores, statistics: Sequence[Statistic], rows: int | None = None) -> dict[str, Any]:
    """Compute all of these statistics by torch; weights are made tile by tile (a tile: some rows and their keys)."""
    answers = {each.name: each.empty(call) for each in statistics}
    ordered = sorted(statistics, key=lambda each: each.overwrites)  # "" first

    def work(unit: Unit) -> None:
        # The answers are created outside, so they are not marked as made in inference mode.
        with torch.inference_mode(), suspend_autocast(call.q.device):
            part = Part(call, unit, rows)
            asked = [each.of(part, answers[each.name]) for each in ordered]
            for tile in part.tiles():
                for each in asked:
                    each.update(tile)
            part.close()
            for each in asked:
                each.finish()

    if 0 not in call.shape:
        on_all_threads(work, units(call), call.q.device)
    return answers
