"""The strongest readable pairs of a stack: what a page opens on, and what it suggests to look at.

A readable pair is a token that looks at another word: no special token, no punctuation, not itself, not the sink. Pairs
are compared by A log(A / u), the part of a weight A in the divergence from what one would expect, u: an even share of
the query's keys or, if that is more, the mean weight that the key gets from all queries, or that all queries give at
this distance. So the pairs of a head that always looks at the token before, or at one token, count little.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.records import AttentionRecord
from headwise.text import Tokens
from headwise.viewer.inputs import Stack
from headwise.viewer.threads import on_threads

CELLS = 1e7  # weights that are looked at; of longer inputs evenly spread rows
LEAST, TIMES_EVEN = 0.15, 3  # of a pair: its weight, and how many times an even share that is
KEPT = 4  # pairs of a stack, each of another head


@dataclass(frozen=True)
class Pair:
    """A query and a key of one head. `layer`: an index into the layers of the stack; `keys`: how many the query sees."""

    layer: int
    head: int
    row: int
    col: int
    weight: float
    keys: int


def pairs_of(stacks: Sequence[Stack]) -> list[list[Pair]]:
    """The strongest readable pairs of each stack, strongest first; none where attention is nearly even."""
    examples: dict[AttentionRecord, dict[int, tuple[Stack, _Readable]]] = {}
    for stack in stacks:
        readable = _Readable(stack)
        for layer in stack.layers:
            examples.setdefault(layer.record, {})[layer.example] = stack, readable
    cells = CELLS / max(1, len(examples))
    found = on_threads(lambda record: _strongest(record, examples[record], cells), examples)
    known = dict(zip(examples, found, strict=True))
    return [
        _distinct([(score, Pair(place, *pair))
                   for place, layer in enumerate(stack.layers)
                   for score, *pair in known[layer.record][layer.example]])
        for stack in stacks
    ]  # fmt: skip


Found = tuple[float, int, int, int, float, int]  # its score, and the pair but for its layer


def _strongest(
    record: AttentionRecord, examples: Mapping[int, tuple[Stack, _Readable]], cells: float
) -> dict[int, list[Found]]:
    """The strongest pair of each head, for each example."""
    batch, heads, q_len, k_len = record.shape
    step = max(1, -(-q_len // max(1, int(cells / (batch * heads * k_len)))))
    rows = list(range(step // 2, q_len, step))
    with torch.no_grad():
        weights = record.weights(rows).float()
        allowed = record.call.allowed(torch.tensor(rows, device=record.q.device)).expand_as(weights)
        return {
            b: _in_example(weights[b], allowed[b], rows, stack, readable.cells(rows).to(weights.device))
            for b, (stack, readable) in examples.items()
        }


def _in_example(weights: Tensor, allowed: Tensor, rows: Sequence[int], stack: Stack, readable: Tensor) -> list[Found]:
    """weights, allowed: [H, R, K] of these rows; readable: [R, K]."""
    if stack.kind == "self":
        seen = allowed.any(0).any(0)
        readable[:, int(seen.int().argmax())] = False  # the sink: the first key that any query may attend to
    keys = allowed.sum(-1, keepdim=True).clamp(min=1)  # [H, R, 1]
    usual = weights.sum(1, keepdim=True) / allowed.sum(1, keepdim=True).clamp(min=1)  # [H, 1, K]
    usual = usual.maximum(1 / keys).maximum(_usual_at_distance(weights, allowed, rows))
    scores = weights * (weights / usual).log()
    strong = readable & (weights >= LEAST) & (weights * keys >= TIMES_EVEN)
    best, places = scores.where(strong, scores.new_tensor(-torch.inf)).flatten(1).max(1)
    found: list[Found] = []
    for head, (score, place) in enumerate(zip(best.tolist(), places.tolist(), strict=True)):
        row, col = divmod(place, weights.shape[2])
        if score > 0:
            found.append((score, head, rows[row], col, float(weights[head, row, col]), int(keys[head, row])))
    return found


def _usual_at_distance(weights: Tensor, allowed: Tensor, rows: Sequence[int]) -> Tensor:
    """For each cell the mean weight of all cells as far from their queries, [H, R, K]."""
    heads, _, k_len = weights.shape
    far = torch.arange(k_len) - torch.tensor(rows)[:, None] + max(rows)
    at = far.flatten().to(weights.device)
    sums = weights.new_zeros(2, heads, int(far.max()) + 1)
    sums[0].index_add_(1, at, weights.flatten(1))
    sums[1].index_add_(1, at, allowed.flatten(1).float())
    return (sums[0] / sums[1].clamp(min=1))[:, at].view_as(weights)


class _Readable:
    """Which cells of a stack are of two readable tokens."""

    def __init__(self, stack: Stack) -> None:
        queries, keys = stack.rows.tokens, stack.cols.tokens
        self.rows, self.cols = _are_readable(queries), _are_readable(keys)
        self.same: list[Tensor] = []  # a number of each token, the same for two tokens that say nothing of each other
        if stack.kind == "self" and len(self.rows) == len(self.cols):
            numbers: dict[str, int] = {}
            names = [numbers.setdefault(label.strip().lower(), len(numbers)) for label in keys.labels]
            self.same = [torch.tensor(keys.words().index), torch.tensor(names)]

    def cells(self, rows: Sequence[int]) -> Tensor:
        """Those of some rows, bool [R, K]."""
        found = self.rows[rows, None] & self.cols
        for same in self.same:
            found &= same[rows, None] != same
        return found


def _are_readable(tokens: Tokens) -> Tensor:
    readable = [any(map(str.isalnum, label)) for label in tokens.labels]
    return torch.tensor([is_name and not special for is_name, special in zip(readable, tokens.special, strict=True)])


def _distinct(found: Collection[tuple[float, Pair]]) -> list[Pair]:
    """The first few, each of other tokens."""
    kept: list[Pair] = []
    for _, pair in sorted(found, key=lambda each: -each[0]):
        if all((pair.row, pair.col) != (other.row, other.col) for other in kept):
            kept.append(pair)
    return kept[:KEPT]
