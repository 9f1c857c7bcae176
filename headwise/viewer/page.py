"""Writes the page: static/ and the data of every layer, in one HTML file that never asks the network for anything.

Its Content-Security-Policy allows only the script and the style that stand in the file: no text can smuggle in more.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from headwise.errors import ArgumentError, FileError, RecordError
from headwise.records import AttentionRecord
from headwise.text import Tokens
from headwise.viewer.encoding import TOLERANCE, allowed_cells, encode_groups, layer_facts, runs_of

SCRIPTS = ("source.js", "colour.js", "heatmap.js", "page.js")  # each uses only what stands before it


@dataclass(frozen=True)
class TextAttention:
    """One text and what every layer saw of it: `records[i]` (B = 1) is layer number `layers[i]` of the model."""

    tokens: Tokens
    records: Sequence[AttentionRecord]
    layers: Sequence[int]


def write_page(path: Path | str, texts: Sequence[TextAttention], *, title: str) -> None:
    """Write one self-contained HTML file that shows every layer and head of `texts` as heat maps over the tokens.

    The page carries queries, keys and masks, so its size is linear in the length: about 5.5 MB for 6 layers x 12 heads
    x 400 tokens x 32 dims. Its weights are within 1e-4 of `record.weights()`; that is checked while it is written.

    Raises:
        ArgumentError: no text, or layers and records that do not match.
        RecordError: a record the page cannot represent (a batch, Q or K other than the number of tokens, a bias ...).
        FileError: the file cannot be written. Nothing half-written is left behind, whatever goes wrong.
    """
    path = Path(path)
    _check(texts)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as out:
            out.writelines(_page(texts, title))
        os.replace(part, path)
    except OSError as error:
        raise FileError(f"cannot write the page to {path}: {error.strerror or error}; choose another file") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _check(texts: Sequence[TextAttention]) -> None:
    if not texts:
        raise ArgumentError("texts: expected at least one text to show, received none")
    for number, text in enumerate(texts):
        where, length = f"texts[{number}]", len(text.tokens.labels)
        if not len(text.records) or not length:
            raise ArgumentError(f"{where}: expected at least one record and one token, received "
                                f"{len(text.records)} records, {length} tokens")  # fmt: skip
        if len(text.records) != len(text.layers) or len(set(text.layers)) != len(text.layers):
            raise ArgumentError(f"{where}: expected one layer number, each once, for every record, received "
                                f"{len(text.records)} records and layers {list(text.layers)}")  # fmt: skip
        for layer, record in zip(text.layers, text.records, strict=True):
            batch, _, queries, keys = record.shape
            if batch != 1:
                raise RecordError(
                    f"{where}, layer {layer}: expected a record of one text (B = 1), received B = {batch}"
                )
            if not queries == keys == length:
                raise RecordError(f"{where}, layer {layer}: expected Q = K = {length}, one query and one key a token, "
                                  f"received Q = {queries}, K = {keys}")  # fmt: skip


def _page(texts: Sequence[TextAttention], title: str) -> Iterator[str]:
    static = files("headwise.viewer") / "static"
    script = "\n".join((static / name).read_text("utf-8") for name in SCRIPTS)
    style = (static / "page.css").read_text("utf-8")
    policy = f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src {_hash(style)}"
    before, after = (static / "page.html").read_text("utf-8").split("<!-- data -->")
    yield (
        before.replace("<!-- policy -->", policy)
        .replace("/* style */", style)
        .replace("<!-- title -->", html.escape(title.encode("utf-8", "replace").decode()))
    )
    facts = []
    for number, text in enumerate(texts):
        layers, blocks = _text_layers(text, f"texts[{number}]")
        facts.append({**_text_facts(text.tokens), "layers": layers})
        for name, data in blocks:
            yield f'<script type="text/plain" id="text{number}-{name}">{base64.b64encode(data).decode()}</script>\n'
    # ASCII only, and no "<": nothing in a text can end the element, and no line separator stands bare.
    safe = json.dumps({"tolerance": TOLERANCE, "texts": facts}, separators=(",", ":")).replace("<", r"\u003c")
    yield f'<script type="application/json" id="facts">{safe}</script>\n'
    yield after.replace("/* script */", script)


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def _text_layers(text: TextAttention, where: str) -> tuple[list[dict[str, Any]], Iterator[tuple[str, bytes]]]:
    """The facts of every layer, filled in as its numbers (name, bytes) are drawn from the iterator."""
    facts: list[dict[str, Any]] = []
    planes: dict[bytes, int] = {}  # the same mask in several heads or layers is carried once

    def blocks() -> Iterator[tuple[str, bytes]]:
        for layer, record in zip(text.layers, text.records, strict=True):
            allowed = allowed_cells(record)
            of_heads = None
            if allowed is not None:
                of_heads = [planes.setdefault(runs_of(matrix).tobytes(), len(planes)) for matrix in allowed]
            groups = []
            for number, group in enumerate(encode_groups(record, allowed, f"{where}, layer {layer}")):
                groups.append({"bits": group.bits})
                yield f"layer{layer}-group{number}", group.data
            facts.append({"layer": layer, **layer_facts(record, of_heads), "groups": groups})
        for data, number in planes.items():
            yield f"plane{number}", data

    return facts, blocks()


def _text_facts(tokens: Tokens) -> dict[str, Any]:
    """Labels for the axes, and the text itself cut at its tokens: each, and what stands before it."""
    gaps, pieces, end = [], [], 0
    for label, (start, stop), special in zip(tokens.labels, tokens.offsets, tokens.special, strict=True):
        own = not special and start >= end  # else a sign, or a further token of a character already shown
        gaps.append(tokens.text[end:start] if own else "")
        pieces.append((own and tokens.text[start:stop]) or label)
        end = stop if own else end
    facts = {"labels": tokens.labels, "gaps": gaps, "pieces": pieces, "special": tokens.special}
    return {**facts, "unknown": tokens.unknown, "cut": tokens.cut}
