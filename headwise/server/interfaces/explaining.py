"""Explains the answer to a row: the statistics of the heads as JSON, or the page that shows their attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headwise.call import AttentionCall
from headwise.errors import ArgumentError
from headwise.records import AttentionRecord
from headwise.viewer import Input, facts_of
from headwise.viewer.page import ESTIMATED_ROWS, whole_page


def statistics(inputs: Sequence[Input]) -> dict[str, Any]:
    """Return the viewer's statistics: for each layer and statistic a list with one number per head; None = undefined.

    Returns:
        "statistics": a description of each statistic: "key", "name", "unit", "about".
        "inputs": one entry per input of the model: "name", and "stacks". A stack is a list of layers with the same
        tokens: "name", "kind" ("self" or "cross"), "rows" (the query tokens), "columns" (the key tokens), and "layers":
        "name", "number", "heads", and "statistics": key -> one number per head.
    """
    facts = facts_of(inputs, title="", rows=ESTIMATED_ROWS)
    told = []
    for shown, fact in zip(inputs, facts["inputs"], strict=True):
        stacks = []
        for stack, of_stack in zip(shown.stacks, fact["stacks"], strict=True):
            layers = [
                {"name": each["name"], "number": each["number"], "heads": each["heads"], "statistics": each["stats"]}
                for each in of_stack["layers"]
            ]
            stacks.append(
                {
                    "name": stack.name,
                    "kind": stack.kind,
                    "rows": list(stack.rows.tokens.labels),
                    "columns": list(stack.cols.tokens.labels),
                    "layers": layers,
                }
            )
        told.append({"name": shown.name, "stacks": stacks})
    return {"statistics": facts["statistics"], "inputs": told}


MOST = 2**20  # weights in one answer, which is then at most about 25 MB


@torch.inference_mode()
def compute_weights(calls: Sequence[AttentionCall], names: Sequence[str], places: Sequence[int]) -> dict[str, Any]:
    """Compute some rows of the weights of each attention call, from its queries and keys. Other rows are not computed.

    Args:
        calls: the attention calls of one pass over a single input: q [1, H, Q, D], k [1, G, K, D] with Q = K tokens.
        names: the names of the tokens.
        places: the indices of the rows (queries); negative indices count from the end.

    Returns:
        "rows": `places` as indices from 0; "layers": a float32 array [H, rows, K] for each call.

    Raises:
        ArgumentError: an index that no token has, an attention call whose queries are not these tokens, or more than
            `MOST` weights.
    """
    count = len(names)
    if wrong := [place for place in places if not -count <= place < count]:
        raise ArgumentError(f"rows: expected {-count} to {count - 1}, for {count} tokens. Received: {wrong[0]}")
    if not calls or any(call.q.shape[0] != 1 or {call.q.shape[2], call.k.shape[2]} != {count} for call in calls):
        raise ArgumentError("rows: the queries of this model are not the tokens. Ask without rows for statistics")
    heads = sum(call.q.shape[1] for call in calls)
    if len(places) * count * heads > MOST:
        raise ArgumentError(
            f"rows: expected at most {MOST // (count * heads):,} of them ({MOST:,} weights in one answer: rows × "
            f"{count:,} tokens × {heads:,} heads). Received: {len(places):,} rows. Ask for some at a time"
        )
    rows = [place % count for place in places]
    layers = [AttentionRecord(call).weights(rows)[0].float().numpy() for call in calls]
    return {"rows": rows, "layers": layers}


def page(inputs: Sequence[Input], *, title: str) -> str:
    """Return the HTML of the viewer's page, as `headwise view` writes it."""
    return "".join(whole_page(inputs, title=title))
