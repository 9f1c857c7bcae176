"""Writes the page, one HTML file that never uses the network: the scripts of static/ and the numbers of every layer.

The Content-Security-Policy of the page allows only the script and the style in the file, so no text can inject code.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import FileError, RecordError
from headwise.files import check_page, replacing
from headwise.records import AttentionRecord
from headwise.version import __version__
from headwise.viewer.bundle import assemble, read
from headwise.viewer.encoding import FEWEST, TOLERANCE, encode
from headwise.viewer.facts import facts_of
from headwise.viewer.inputs import Input, Layer
from headwise.viewer.planes import Shared

if TYPE_CHECKING:
    from headwise.viewer.carried import Carried

LARGEST_PAGE = 1e9  # bytes

# Statistics that would take seconds are estimated from this many rows.
ESTIMATED_ROWS = 1024


def write_page(
    path: Path | str,
    inputs: Sequence[Input],
    *,
    title: str,
    made: str | None = None,
    language: str | None = None,
    carried: Carried | None = None,
) -> None:
    """Write one self-contained HTML file that shows every layer and head of `inputs`.

    The page holds queries, keys and masks, so its size is linear in the length: 6.7 MB for 6 layers x 12 heads x 512
    tokens x 32 dims, 51 MB for 4,096 tokens. Its weights are within 1e-4 of `record.weights()` (2e-3 if scores are
    in the thousands, where float32 is no more accurate); this is checked while the page is written.

    `carried`: the model that made `inputs`, a single text; on the page one types others.

    Raises:
        RecordError: the page cannot represent a record.
        FileError: the file cannot be written, or is no page that headwise wrote. No partial file is left behind.
    """
    path, parts = Path(path), whole_page(inputs, title=title, made=made, language=language, carried=carried)
    check_page(path)
    if os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        raise FileError(f"cannot write the page to {path}: expected a file. Received: a folder. Choose a file in it")
    try:
        with replacing(path) as part, part.open("w", encoding="utf-8", newline="\n") as out:
            out.writelines(parts)
    except OSError as error:
        raise FileError(f"cannot write the page to {path}: {error.strerror or error}. Choose another file") from error


def whole_page(
    inputs: Sequence[Input],
    *,
    title: str,
    made: str | None = None,
    language: str | None = None,
    carried: Carried | None = None,
) -> Iterator[str]:
    """Yield the HTML of a self-contained page, in parts. Raises RecordError as `write_page` does."""
    _check_length(inputs)
    told = facts_of(inputs, title=title, made=made, rows=ESTIMATED_ROWS, language=language)
    facts = {**told, "source": "embedded", "tolerance": TOLERANCE}
    blocks = blocks_of(inputs, facts)
    if carried is None:
        return page_of(facts, blocks)
    return page_of({**facts, **carried.facts}, itertools.chain(blocks, carried.blocks), entry="model.js")


def page_of(
    facts: dict[str, Any], blocks: Iterable[tuple[str, bytes]] = (), *, entry: str = "page.js"
) -> Iterator[str]:
    """Yield the HTML of a page, in parts.

    `blocks` (name, bytes) is read before the facts (JSON data), so it may add facts; `entry`: the page's script.
    """
    script, style = assemble(entry), read("document.css")
    before, after = read("page.html").split("<!-- data -->")
    allowed = policy(script, style, embedded=facts["source"] == "embedded", runs="model" in facts)
    yield (
        before.replace("<!-- policy -->", allowed)
        .replace("/* style */", style)
        .replace("<!-- version -->", __version__)
        .replace("<!-- title -->", html.escape(facts["title"].encode("utf-8", "replace").decode()))
    )
    for name, data in blocks:
        yield f'<script type="text/plain" id="{name}">{base64.b64encode(data).decode()}</script>\n'
    # ASCII only and no "<", so that no text can end the element and line separators are escaped.
    safe = json.dumps(facts, separators=(",", ":"), allow_nan=False).replace("<", r"\u003c")
    yield f'<script type="application/json" id="facts">{safe}</script>\n'
    yield after.replace("/* script */", script)


def policy(script: str, style: str, *, embedded: bool, runs: bool = False) -> str:
    """Return the Content-Security-Policy: it allows the page's script, worker, images, and its server if it has one.

    `runs`: the page runs a model, in WebAssembly.
    """
    parts = [
        "default-src 'none'",
        "img-src data: blob:",
        f"script-src {_hash(script)}" + " 'wasm-unsafe-eval'" * runs,
        f"style-src {_hash(style)}",
        "worker-src blob:",
        *([] if embedded else ["connect-src 'self'"]),
    ]
    return "; ".join(parts)


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def blocks_of(inputs: Sequence[Input], facts: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the numbers of every layer (q, k, masks, biases) as (name, bytes); describe them in `facts`.

    Raises:
        RecordError: the page cannot represent a record.
    """
    shared = Shared()
    layers: dict[
        AttentionRecord, list[tuple[str, Layer, dict[str, Any]]]
    ] = {}  # examples of a batch are encoded together
    for i, each in enumerate(inputs):
        for s, stack in enumerate(each.stacks):
            for place, layer in enumerate(stack.layers):
                told = facts["inputs"][i]["stacks"][s]["layers"][place]
                layers.setdefault(layer.record, []).append((f"input{i}-stack{s}-layer{place}", layer, told))
    names = {record: f"{found[0][1].name} ({found[0][1].expression})" for record, found in layers.items()}
    for (record, found), encoded in zip(layers.items(), encode(names), strict=True):
        for name, layer, told in found:
            groups = []
            for number, group in enumerate(encoded[layer.example]):
                facts["tolerance"] = max(facts["tolerance"], group.tolerance)
                groups.append({"bits": group.bits, "wide": group.wide, "block": f"{name}-group{number}"})
                yield f"{name}-group{number}", group.data
            planes, bias = shared.planes(record, layer.example), shared.bias(record, layer.example)
            softcap = None if record.softcap is None else float(record.softcap)
            told.update(dim=record.q.shape[3], scale=float(record.scale), softcap=softcap)
            sinks = None if record.sinks is None else [x if isfinite(x) else None for x in record.sinks.tolist()]
            told.update(planes=planes, bias=bias, sinks=sinks, groups=groups)
    yield from shared.blocks()


def _check_length(inputs: Sequence[Input]) -> None:
    """Raise RecordError if the page is too large for browsers."""
    records = {layer.record for each in inputs for stack in each.stacks for layer in stack.layers}
    numbers = sum(record.q.numel() + record.k.numel() for record in records)
    least = numbers * FEWEST / 6  # bytes in base64: one character per 6 bits
    if least > LARGEST_PAGE:
        raise RecordError(
            f"the page would take {least / 1e9:.1f} GB or more, too large for browsers. Show fewer layers, or use "
            'seen.save("run.hw") and headwise view run.hw --serve'
        )
