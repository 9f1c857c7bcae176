"""Writes the page of a profile: a card for every head, and a page for each head, in a file or from a local server."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwise.analyses.patterns import LEAST
from headwise.files import check_page, writing
from headwise.language import asked
from headwise.profiles import CLASSES, KINDS, MEASURES, Head, Profile
from headwise.profiles.bins import NEAR, OFFSETS
from headwise.profiles.examples import Window, distinct
from headwise.profiles.profile import DEFAULT_MODEL
from headwise.text.tokens import cut_at_tokens
from headwise.viewer.facts import about_page
from headwise.viewer.page import page_of

PAIRS = 24  # the number of pairs of tokens shown for each head
ENTRY = "profile.js"

#: The scores of patterns, with a description of each.
PATTERNS = {
    "previous_token": "The mean weight on the token before, of the queries that may see one.",
    "duplicate_token": "The mean weight on the same token before, of the queries that have one.",
    "induction": "The mean weight on what followed the same token before, of the queries that have such.",
    "block_previous_token": "The mean weight on the token before, in a random block that is repeated.",
    "block_duplicate_token": "The mean weight on the same token in the first of two equal random blocks.",
    "block_induction": "The mean weight on what followed the same token in the first of two equal random blocks.",
}


def write_profile_page(path: Path | str, profile: Profile, *, title: str) -> None:
    """Write one self-contained HTML file with every head of a profile. FileError if it cannot be written."""
    path = Path(path)
    check_page(path)
    with writing(path) as part, part.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(profile_page(profile, title=title))


def profile_page(profile: Profile, *, title: str, serves: bool = False) -> Iterator[str]:
    """Yield the HTML of the page, in parts. `serves`: a server answers text?…, with the page of an example's text."""
    return page_of(collect_facts(profile, title=title, serves=serves), entry=ENTRY)


def collect_facts(profile: Profile, *, title: str, serves: bool = False) -> dict[str, Any]:
    """Collect the data of the page, as JSON data."""
    windows = distinct([each for sums in profile.layers for each in sums.examples])
    places = {(window.text, window.start): place for place, window in enumerate(windows)}
    heads = list(profile.heads())
    known = [name for name in PATTERNS if heads and name in heads[0].patterns]
    # A learned sink is rare: without one its numbers are meaningless.
    measures = [each for each in MEASURES if each.name != "learned_sink" or any(h.means[each.name] for h in heads)]
    names = [each.name for each in measures]
    return {
        "source": "embedded" if not serves else "server",
        "title": title,
        "about": about_page([Path(profile.model).name or profile.model]),
        "language": asked(),
        "serves": serves,
        "texts": profile.texts,
        "tokens": profile.tokens,
        "length": profile.options["length"],
        "complete": profile.complete,
        "kinds": KINDS,
        "classes": CLASSES,
        "even": list(heads[0].even_classes.values()) if heads else [],
        "asked": (profile.layers[0].numbers["class_rows"] > 0).tolist() if heads else [],
        "offsets": OFFSETS,
        "self": NEAR + 1,
        "patterns": {name: PATTERNS[name] for name in known},
        "measures": [
            {"name": each.name, "unit": each.unit, "sentence": each.sentence, "edges": _short(profile.edges(each.name))}
            for each in measures
        ],
        "layers": [{"name": sums.name, "heads": sums.heads} for sums in profile.layers],
        "heads": [_head(head, place, places, known, names) for place, head in enumerate(heads)],
        "windows": [_window(each, profile.model) for each in windows],
    }


def _head(
    head: Head, place: int, places: dict[tuple[int, int], int], patterns: list[str], names: list[str]
) -> dict[str, Any]:
    kind, score = head.kind
    pairs = head.pairs(PAIRS)
    return {
        "name": f"{head.layer}.{head.head}",
        "place": place,
        "layer": head.layer,
        "head": head.head,
        "kind": kind,
        "score": score,
        "relative": head.relative_entropy,
        "means": {name: round(head.means[name], 5) for name in names},
        "histograms": [head.histogram(name) for name in names],
        "offsets": _short(head.offsets.values()),
        "classes": _short(head.classes.values()),
        "matrix": [_short(head.classes_from(name).values()) for name in CLASSES],
        "patterns": {
            name: round(head.patterns[name], 5) if head.supports.get(name, LEAST) >= LEAST else None
            for name in patterns
        },
        "supports": head.supports,
        "pairs": [[each.query, each.key, round(each.weight, 3)] for each in pairs],
        "error": round(pairs[0].error, 3) if pairs else 0.0,
        "examples": [
            {
                "window": places[each.window.text, each.window.start],
                "query": each.query,
                "key": each.key,
                "score": each.score,
                "weights": each.weights,
            }
            for each in head.examples
        ],
    }


def _window(window: Window, model: str) -> dict[str, Any]:
    tokens = window.tokens
    text = shlex.quote(tokens.text)
    given = "" if model == DEFAULT_MODEL else f"--model {shlex.quote(model)} "
    command = f"headwise watch {given}--out text.hw -- {text} && headwise view text.hw"
    pieces = [gap[len(gap.rstrip()) :] + piece for gap, piece in zip(*cut_at_tokens(tokens), strict=True)]
    told = {"text": window.text, "labels": tokens.labels, "special": tokens.special}
    return {**told, "pieces": pieces, "command": command}


def _short(numbers: Any) -> list[float]:
    return [round(float(x), 5) for x in numbers]
