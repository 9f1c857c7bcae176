"""Finds the strongest readable pairs of a query and a key: the first view of a page, and its suggestions.

In a readable pair, a token attends to another word: to no special token, no punctuation, not to itself or the sink.
Pairs are compared by A log(A / u), the term of a weight A in the divergence from the expected weight u: the largest of
an even share of the query's keys, the mean weight that the key gets from other queries, and the mean weight that other
queries give at this distance. So the pairs of a head that always attends to the previous token, or to one
token, count little. Near words count less than far ones, because their relation can be seen in the text itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headwise.records import AttentionRecord
from headwise.text import Tokens
from headwise.text.labels import bare
from headwise.text.linking import linking_words
from headwise.viewer.inputs import Stack, is_long
from headwise.viewer.threads import on_threads

CELLS = 1e7  # weights that are examined; in longer inputs, evenly spread rows
LEAST, TIMES_EVEN = 0.15, 3  # a pair needs at least this weight, and this multiple of an even share
FAR = 5  # words between a query and a key of which the pair is worth 1/2
KEPT = 4  # the largest number of pairs of a stack, each of a different head
NEAR = 0.25  # the least score of a further pair, as a share of the strongest one's


@dataclass(frozen=True)
class Pair:
    """A query and a key of one head.

    `layer`: its index in the stack (layers over the same tokens); `keys`: the number of keys that the query sees.
    """

    layer: int
    head: int
    row: int
    col: int
    weight: float
    keys: int


def find_pairs(stacks: Sequence[Stack]) -> list[list[Pair]]:
    """Find the strongest readable pairs of each stack of layers, strongest first; none for nearly even attention."""
    examples: dict[AttentionRecord, dict[int, tuple[Stack, _Readable]]] = {}
    for stack in stacks:
        if is_long(stack.cols.tokens) or is_long(stack.rows.tokens):  # a few rows of very many are not informative
            continue
        readable = _Readable(stack)
        for layer in stack.layers:
            examples.setdefault(layer.record, {})[layer.example] = stack, readable
    cells = CELLS / max(1, len(examples))
    found = on_threads(lambda record: _strongest(record, examples[record], cells), examples)
    known = dict(zip(examples, found, strict=True))
    return [
        _distinct(
            (score, replace(pair, layer=place))
            for place, layer in enumerate(stack.layers)
            for score, pair in known.get(layer.record, {}).get(layer.example, ())
        )
        for stack in stacks
    ]


def _strongest(
    record: AttentionRecord, examples: Mapping[int, tuple[Stack, _Readable]], cells: float
) -> dict[int, list[tuple[float, Pair]]]:
    """Find the strongest readable pair of each head, in each example: example -> [(score, pair)]."""
    batch, heads, q_len, k_len = record.shape
    step = max(1, -(-q_len // max(1, int(cells / (batch * heads * k_len)))))
    rows = list(range(step // 2, q_len, step))
    with torch.no_grad():
        weights = record.weights(rows).float()
        allowed = record.call.allowed(torch.tensor(rows, device=record.q.device)).expand_as(weights)
        return {
            b: _in_example(weights[b], allowed[b], rows, stack, readable.worth(rows).to(weights.device))
            for b, (stack, readable) in examples.items()
        }


def _in_example(
    weights: Tensor, allowed: Tensor, rows: Sequence[int], stack: Stack, worth: Tensor
) -> list[tuple[float, Pair]]:
    """Find the strongest readable pair of each head in one example: [(score, pair)].

    weights, allowed (True = may attend): [H, R, K] of the R rows `rows`; worth: [R, K], see `_Readable`. Pairs get
    layer 0; the caller sets it.
    """
    if stack.kind == "self":
        seen = allowed.any(0).any(0)
        worth[:, int(seen.int().argmax())] = 0  # the sink: the first key that any query may attend to
    keys = allowed.sum(-1, keepdim=True).clamp(min=1)  # [H, R, 1]
    of_key = _average_others(weights, weights.sum(1, keepdim=True), allowed.sum(1, keepdim=True))
    usual = of_key.maximum(_usual_at_distance(weights, allowed, rows)).maximum(1 / keys)
    scores = worth * weights * (weights / usual).log()
    strong = (worth > 0) & (weights >= LEAST) & (weights * keys >= TIMES_EVEN)
    best, places = scores.where(strong, scores.new_tensor(-torch.inf)).flatten(1).max(1)
    found = []
    for head, (score, place) in enumerate(zip(best.tolist(), places.tolist(), strict=True)):
        row, col = divmod(place, weights.shape[2])
        if score > 0:
            pair = Pair(0, head, rows[row], col, float(weights[head, row, col]), int(keys[head, row]))
            found.append((score, pair))
    return found


def _usual_at_distance(weights: Tensor, allowed: Tensor, rows: Sequence[int]) -> Tensor:
    """Compute, for each cell (query and key), the mean weight of the other cells at the same distance: [H, R, K]."""
    heads, _, k_len = weights.shape
    far = torch.arange(k_len) - torch.tensor(rows)[:, None] + max(rows)
    at = far.flatten().to(weights.device)
    sums = weights.new_zeros(2, heads, int(far.max()) + 1)
    sums[0].index_add_(1, at, weights.flatten(1))
    sums[1].index_add_(1, at, allowed.flatten(1).float())
    return _average_others(weights, *(each[:, at].view_as(weights) for each in sums))


def _average_others(weights: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
    return (sums - weights) / (counts - 1).clamp(min=1)


class _Readable:
    """Rates the pairs of a query and a key by how much they say to a reader: 0 = one of the tokens is unreadable."""

    def __init__(self, stack: Stack) -> None:
        queries, keys = stack.rows.tokens, stack.cols.tokens
        self.rows, self.cols = _are_readable(queries), _are_readable(keys)
        self.words = self.names = None  # the number of each token's word, and a number by its text
        if stack.kind == "self" and len(self.rows) == len(self.cols):
            numbers: dict[str, int] = {}
            self.names = torch.tensor([numbers.setdefault(bare(x).lower(), len(numbers)) for x in keys.labels])
            self.words = torch.tensor(keys.words().index)

    def worth(self, rows: Sequence[int]) -> Tensor:
        """Return the rating of the pairs in R rows, [R, K]: 0 for unreadable tokens; up to 1, more for far words."""
        readable = self.rows[rows, None] & self.cols
        if self.words is None or self.names is None:
            return readable.float()
        far = (self.words[rows, None] - self.words).abs()
        apart = far / (far + FAR)  # 0 within a word
        return apart * (readable & (self.names[rows, None] != self.names))


def _are_readable(tokens: Tokens) -> Tensor:
    """Return which tokens are readable, bool [tokens].

    Such a token has letters or digits, is not a single ASCII character, is known to the model, and is no special token;
    and it is no article, preposition or particle (`headwise.text.linking`), which says nothing without its neighbours.
    Where none is, single characters are: the model reads letters.
    """
    labels = list(map(bare, tokens.labels))
    letters = [label.isalnum() and len(label) == 1 for label in labels]
    words = [
        any(map(str.isalnum, label)) and not (alone and label.isascii()) and label.lower() not in linking_words()
        for label, alone in zip(labels, letters, strict=True)
    ]
    able = ~(torch.tensor(tokens.special) | torch.tensor(tokens.unknown or [False] * len(labels))).bool()
    readable = torch.tensor(words) & able
    return readable if readable.any() else torch.tensor(letters) & able


def _distinct(found: Iterable[tuple[float, Pair]]) -> list[Pair]:
    """Return the strongest pair, and up to `KEPT` with those of `NEAR` its score; no two of the same query and key."""
    kept: list[tuple[float, Pair]] = []
    for score, pair in sorted(found, key=lambda each: -each[0]):
        new = all((pair.row, pair.col) != (other.row, other.col) for _, other in kept)
        if new and score >= NEAR * (kept or [(score, pair)])[0][0]:
            kept.append((score, pair))
    return [pair for _, pair in kept[:KEPT]]
