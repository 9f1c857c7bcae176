"""Vectors of texts, for both embedding protocols: OpenAI's and text-embeddings-inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from headwise.errors import RequestRefused
from headwise.server.engine import Engine, Served
from headwise.server.interface import Embeds
from headwise.server.protocols.answers import answers
from headwise.server.protocols.errors import bad_input, piece

_TEXT = {"type": "string", "minLength": 1}
TEXTS: dict[str, Any] = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}  #: JSON Schema of texts
Texts = Annotated[list[str], Field(fail_fast=True)]
MODELS = "models that make vectors of texts"


def embedder(engine: Engine, name: str | None) -> tuple[Served, Embeds]:
    """Find the model with this name; None = the only model that makes vectors. Returns (the model, its `Embeds`).

    Raises:
        RequestRefused: "not_found": there is no such model; "bad_input": there are several.
    """
    found = {served.name: served for served in engine.models() if served.description.embeds}  # the newest is the last
    if not found:
        raise RequestRefused("not_found", f"{MODELS}: none is loaded. Serve the folder of a BERT with its tokenizer")
    if name is None and len(found) > 1:
        raise bad_input(f'there are several {MODELS}. Add "model" with one of {", ".join(found)}')
    served = next(iter(found.values())) if name is None else found.get(name)
    if served is None:
        raise RequestRefused("not_found", f"{MODELS}: expected one of {', '.join(found)}. Received: {piece(name)}")
    assert served.description.embeds is not None
    return served, served.description.embeds


async def vectors(
    engine: Engine, served: Served, inputs: Sequence[str | list[int]], **how: Any
) -> tuple[np.ndarray, int]:
    """Embed N texts or lists of token ids. Returns (vectors, float32 [N, M]; the number of tokens that were read).

    Args:
        how: "prompt_name" and "truncate" of each row: see `Embeds`.
    """
    rows = [
        {"text": each, **how} if isinstance(each, str) else {"ids": np.array(each, dtype=np.int64), **how}
        for each in inputs
    ]
    found = await answers(engine, served, rows)
    return np.stack([each["embedding"] for each in found]), sum(each["tokens"] for each in found)


def check_width(dimensions: int | None, dim: int) -> None:
    """Raise RequestRefused unless 1 <= `dimensions` <= `dim`, the size of the model's vectors; None = all elements."""
    if dimensions is not None and not 1 <= dimensions <= dim:
        raise bad_input(f"dimensions: expected 1 to {dim}. Received: {dimensions}")


def of_length_1(vectors_NM: np.ndarray) -> np.ndarray:
    """Scale each vector to length 1; a vector of length 0 stays as it is."""
    norms = np.linalg.norm(vectors_NM, axis=-1, keepdims=True)
    return vectors_NM / np.maximum(norms, np.float32(1e-12))


def check_texts(name: str, inputs: Sequence[str | list[int]]) -> None:
    """Raise RequestRefused unless there is an input, and none is empty or has a lone surrogate."""
    if not inputs:
        raise bad_input(f"`{name}` cannot be empty")
    for place, each in enumerate(inputs):
        if not each:
            raise bad_input(f"`{name}`: expected no empty input. Received: an empty one, at {place} (from 0)")
        if isinstance(each, str) and not each.isascii():
            try:
                each.encode()
            except UnicodeEncodeError:
                raise bad_input(f"`{name}`: expected text. Received: a lone surrogate, at {place} (from 0)") from None
