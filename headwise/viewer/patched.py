"""Writes the page of a patching experiment: a map of its effects, layer by position or layer by head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from headwise.errors import ArgumentError
from headwise.experiments import Patching
from headwise.files import check_page, writing
from headwise.language import Sentence, asked
from headwise.viewer.facts import about_page
from headwise.viewer.page import page_of


def write_patching_page(path: Path | str, found: Patching, *, title: str, language: str | None = None) -> None:
    """Write one self-contained HTML file with the effects of every head.

    Raises:
        ArgumentError: the effects are those of edges: there are too many for a map.
        FileError: the file cannot be written, or is no page that headwise wrote.
    """
    if found.effects.ndim > 3:
        raise ArgumentError(
            Sentence(
                'patching: effects over "edges" have no map. Print the largest: '
                "print(headwise.experiments.Patching.load(PATH)), or patch over heads or positions"
            )
        )
    path = Path(path)
    check_page(path)
    facts = collect_facts(found, title=title, language=language)
    with writing(path) as part, part.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(page_of(facts, entry="patching.js"))


def collect_facts(found: Patching, *, title: str, language: str | None = None) -> dict[str, Any]:
    """Collect the data of the page, as JSON data; effects are rounded to 1e-5."""
    of_heads = found.effects.ndim == 2
    return {
        "source": "embedded",
        "title": title,
        "about": about_page([found.model]),
        "language": language or asked(),
        "layers": found.layers,
        "heads": 0 if found.over == "residual" else found.effects.shape[1],
        "positions": None if of_heads else found.effects.shape[2],
        "labels": found.labels,
        "others": found.corrupted_labels,
        "effects": _rounded(found.effects),
        "attributed": None if found.attributed is None else _rounded(found.attributed),
        "clean": found.clean,
        "corrupted": found.corrupted,
        "correlation": found.correlation,
    }


def _rounded(effects: Tensor) -> list[Any]:
    """Return the effects as nested lists, [L][H] or [L][H][Q]; None for heads that a layer does not have."""
    flat = [None if x != x else round(x, 5) for x in effects.flatten().tolist()]
    for size in reversed(effects.shape[1:]):
        flat = [flat[start : start + size] for start in range(0, len(flat), size)]
    return flat
