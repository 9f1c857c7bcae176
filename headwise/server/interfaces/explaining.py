"""Explanations of a row: the statistics of the heads as JSON, or the page that shows their attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwise.viewer import Input, facts_of
from headwise.viewer.page import ESTIMATED_ROWS, whole_page


def statistics(inputs: Sequence[Input]) -> dict[str, Any]:
    """The viewer's statistics: for each layer a list with one number per head; None if a number is undefined.

    Returns:
        "statistics": what each statistic is: "key", "name", "unit", "about".
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


def page(inputs: Sequence[Input], *, title: str) -> str:
    """The HTML of the viewer's page, as `headwise view` writes it."""
    return "".join(whole_page(inputs, title=title))
