"""Collects the facts of a page (its JSON): names, tokens, words, layers, statistics; not queries, keys and masks."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

import torch

from headwise.analyses.gradient_relevance import relevance_by_layer
from headwise.errors import RecordError
from headwise.language import asked
from headwise.records import AttentionRecord
from headwise.text.groups import Groups
from headwise.text.tokens import cut_at_tokens as _cut_at_tokens
from headwise.version import __version__
from headwise.viewer.inputs import Axis, Input, Layer, Stack, is_long
from headwise.viewer.pairs import find_pairs
from headwise.viewer.statistics import choose_rows, compute_statistics, cost, descriptions
from headwise.viewer.threads import on_threads

QUICK_CELLS = 1e8  # weights that are processed in about half a second


def facts_of(
    inputs: Sequence[Input],
    *,
    title: str,
    made: str | None = None,
    quick: bool = False,
    rows: int | None = None,
    language: str | None = None,
) -> dict[str, Any]:
    """Collect the facts (JSON data) of a page that gets its numbers from a server.

    For a page that holds its numbers itself, `write_page` adds their description.

    Args:
        inputs: the inputs to show.
        title: the title of the page.
        made: the Python code that produces `seen`, such as 'headwise.load("run.hw")'; None = unknown.
        quick: leave out statistics and relevance that would take long (they become None); the page then asks for them.
        rows: the number of rows from which statistics that would take long are estimated; None = never estimate.
        language: the language of the page, "en" or "zh"; None = the one from `headwise.language.speak` or --lang, or
            else that of each reader's browser.
    """
    stacks = [stack for each in inputs for stack in each.stacks]
    records = {layer.record for stack in stacks for layer in stack.layers}
    complete = not quick or sum(map(cost, records)) <= QUICK_CELLS
    statistics = _statistics(stacks, rows) if complete else {}
    relevance = functools.cache(_relevance)  # examples of a batch share their records
    axes = _Axes()
    told = []
    for stack, pairs in zip(stacks, find_pairs(stacks), strict=True):
        example = stack.layers[0].example
        relevances = relevance(tuple(layer.record for layer in stack.layers)) if complete else None
        layers = [
            {**_layer(layer), **statistics.get((layer.record, layer.example), {"stats": None})}
            for layer in stack.layers
        ]
        told.append(
            {
                "name": stack.name,
                "kind": stack.kind,
                "rows": axes.place(stack.rows),
                "cols": axes.place(stack.cols),
                "example": example,
                "layers": layers,
                "relevance": relevances and relevances[example],
                "pairs": [{**asdict(pair), "weight": float(f"{pair.weight:.4g}")} for pair in pairs],
            }
        )
    found = iter(told)
    return {
        "title": title,
        "about": about_page(each.model for each in inputs),
        "language": language or asked(),
        "made": made,
        "tolerance": 0,
        "source": "server",
        "statistics": descriptions(),
        "axes": [_axis(axis) for axis in axes.known],
        "inputs": [{"name": each.name, "stacks": list(islice(found, len(each.stacks)))} for each in inputs],
    }


def about_page(models: Iterable[str]) -> dict[str, str]:
    """Return where a page comes from: the names of its models, today's date, and the version of headwise."""
    known = ", ".join(dict.fromkeys(filter(None, models)))
    return {"model": known, "date": datetime.date.today().isoformat(), "version": __version__}


class _Axes:
    """Collects axes in a list, each once. Two axes are the same if equal; long ones if they hold the same object."""

    def __init__(self) -> None:
        self.known: list[Axis] = []
        self._places: dict[object, int] = {}

    def place(self, axis: Axis) -> int:
        """Return the index of an axis in the list; a new axis is appended."""
        key = (id(axis.tokens), axis.generated) if is_long(axis.tokens) else axis
        if key not in self._places:
            self._places[key] = len(self.known)
            self.known.append(axis)
        return self._places[key]


def _layer(layer: Layer) -> dict[str, Any]:
    record = layer.record
    return {
        "name": layer.name,
        "number": layer.number,
        "heads": record.shape[1],
        "kvHeads": record.k.shape[1],
        "weights": _weights(record),
        "masked": record.mask is not None or (record.bias is not None and bool(torch.isneginf(record.bias).any())),
        "expression": layer.expression,
    }


def _weights(record: AttentionRecord) -> int | None:
    """Count the weights of a head that the mask allows, by blocks of cells; None = all, or not known from blocks."""
    mask, (q_len, k_len) = record.mask, record.shape[2:]
    if mask is None or mask.cellwise or q_len * k_len <= QUICK_CELLS:
        return None
    size = 64
    every, some, _ = mask.runs_of_blocks(q_len, k_len, size).counts()
    return min(q_len * k_len, (every + some) * size**2 // ((mask.batch or 1) * (mask.heads or 1)))


def _statistics(stacks: Sequence[Stack], rows: int | None) -> dict[tuple[AttentionRecord, int], dict[str, Any]]:
    """Compute the "stats" of each (record, example), and what "supports" suggestions.

    "estimated" in the first is the number of rows that were used, if not all rows were used.
    """
    examples: dict[AttentionRecord, dict[int, Stack]] = {}
    for stack in stacks:
        for layer in stack.layers:
            examples.setdefault(layer.record, {})[layer.example] = stack

    def of(record: AttentionRecord) -> dict[int, dict[str, Any]]:
        tokens = {example: stack.cols.tokens for example, stack in examples[record].items()}
        some = None if rows is None or cost(record) <= QUICK_CELLS else choose_rows(record, rows)
        queries = {example: stack.rows.tokens for example, stack in examples[record].items()}
        kind = next(iter(examples[record].values())).kind
        found = compute_statistics(record, tokens, kind=kind, rows=some, queries=queries)
        supports = {example: numbers.pop("supports") for example, numbers in found.items()}
        estimated = {"estimated": some} if some else {}
        return {b: {"stats": {**stats, **estimated}, "supports": supports[b]} for b, stats in found.items()}

    found = zip(examples, on_threads(of, examples), strict=True)
    return {(record, example): numbers for record, told in found for example, numbers in told.items()}


def _relevance(records: tuple[AttentionRecord, ...]) -> list[dict[str, Any]] | None:
    """Compute, for each example, how much the loss depends on each token in each layer.

    The relevance is that for the position whose output has the largest gradient. None without values or gradients.
    """
    if not all(record.extras.v is not None and record.extras.grad is not None for record in records):
        return None
    rows = records[-1].grad.float().square().sum((1, 3)).argmax(1).tolist()
    try:
        found = relevance_by_layer(records, rows).tolist()
    except RecordError:  # not the layers of one pass over the same tokens, or dropout is on
        return None
    return [
        {"row": row, "layers": [[float(f"{x:.4g}") for x in layer] for layer in layers]}
        for row, layers in zip(rows, found, strict=True)
    ]


def _axis(axis: Axis) -> dict[str, Any]:
    tokens, count, is_text = axis.tokens, len(axis.tokens.labels), axis.tokens.text != ""
    known = {"cut": tokens.cut, "text": is_text, "seconds": tokens.seconds, "generated": axis.generated}
    if is_long(tokens):  # the count, and the labels unless they are consecutive numbers
        first = int(tokens.labels[0]) if tokens.labels[0].isascii() and tokens.labels[0].isdecimal() else None
        numbers = first is not None and all(label == str(i) for i, label in enumerate(tokens.labels, first))
        labels = {"first": first} if numbers else {"labels": tokens.labels}
        return {"count": count, **labels, **known, "patches": None, "image": None, "imageNote": None}
    gaps, pieces = _cut_at_tokens(tokens)
    words = tokens.words()
    patches = tokens.patches
    return {
        "labels": tokens.labels,
        "gaps": gaps,
        "pieces": pieces,
        "special": tokens.special,
        "unknown": tokens.unknown or [False] * count,
        "words": _groups(words),
        "sentences": _groups(tokens.sentences() if is_text else words),  # names form no sentences
        "patches": patches and {"rows": patches.rows, "cols": patches.cols, "prefix": patches.prefix},
        "image": axis.image and axis.image.uri,
        "imageNote": axis.image and axis.image.note,
        **known,
    }


def _groups(groups: Groups) -> dict[str, Any]:
    return {"index": groups.index, "labels": groups.labels}
