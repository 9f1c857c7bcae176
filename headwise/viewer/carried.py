"""Collects what a page needs to run a model: `static/model` runs it there, by headwise/native/wasm.

Dimension letters: V words, M model, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.models.bert import Bert, Embeddings
from headwise.models.packed_encoder import pack_for
from headwise.models.sentence_head import Normalize
from headwise.models.sentence_settings import read_settings
from headwise.models.text_classifier import TextClassifier
from headwise.native.linear import Encoder, Norm, quantise
from headwise.text import Tokenizer
from headwise.text.linking import linking_words
from headwise.viewer.carried_tokenizer import carry_tokenizer

if TYPE_CHECKING:
    from headwise.tasks import Classify

WASM = files("headwise.native").joinpath("wasm", "encoder.wasm")
STRIP = 8  # outputs next to one another in the weights: those of the portable instruction set, which WebAssembly has
ALIGNMENT = 16  # each tensor begins at a multiple of so many bytes
MOST_BYTES = 380_000_000  # of weights: browsers hold no longer text, and base64 holds 3 bytes in 4 characters

Dtype = Literal["int8", "float32"]


@dataclass(frozen=True)
class Carried:
    """What a page needs to run a model: facts (JSON data), and blocks of bytes."""

    facts: dict[str, Any]
    blocks: tuple[tuple[str, bytes], ...]

    @property
    def prompt(self) -> str:
        """The text with which the page opens."""
        return str(self.facts["live"]["prompt"])


def carry_bert(bert: Bert, tokenizer: Tokenizer, prompt: str | None = None, dtype: Dtype = "int8") -> Carried:
    """Collect what a page needs to run a `Bert`; an encoder of sentences gets sentences to compare a text with.

    `prompt`: the text with which the page opens; None = the first of the sentences. Raises ArgumentError for a model or
    a tokenizer of another kind.
    """
    facts: dict[str, Any] = {"longest": bert.config.max_positions, "tokenizer": carry_tokenizer(tokenizer)}
    first, *sentences = choose_sentences(tokenizer)
    if pooling := _read_pooling(bert):
        facts |= {"pooling": pooling, "sentences": sentences}
    return _carry(bert, prompt or first, dtype, facts)


def carry_classifier(task: Classify, prompt: str | None = None, dtype: Dtype = "int8") -> Carried:
    """Collect what a page needs to run a trained classifier of single texts, as `carry_bert` does."""
    if task.reads_pairs:
        raise ArgumentError("a page can carry a classifier of single texts. Received: a classifier of pairs of texts")
    tokenizer = carry_tokenizer(task.subwords.tokenizer, signs=False)
    facts = {"longest": task.max_length, "tokenizer": tokenizer, "labels": list(task.labels)}
    return _carry(task.model, prompt or choose_sentences(task.subwords.tokenizer)[0], dtype, facts)


def choose_sentences(tokenizer: Tokenizer) -> list[str]:
    """Return an example and twelve sentences: in Chinese if a tokenizer knows all their tokens, else in English."""
    for language in ("zh", "en"):
        found = files(__package__).joinpath("sentences", f"{language}.txt").read_text("utf-8").splitlines()
        if not any(any(tokenizer.encode(each).unknown) for each in found):
            break
    return found


def _read_pooling(bert: Bert) -> str | None:
    """Return how an encoder of sentences makes the vector of a text, "mean" or "cls"; None = in another way."""
    settings = read_settings(bert.folder) if bert.folder else None
    if not (settings and settings.stated) or settings.lowercase or settings.default_prompt or settings.width:
        return None
    if settings.pooling not in (("mean",), ("cls",)) or any(type(each) is not Normalize for each in settings.later):
        return None
    return settings.pooling[0]


def _carry(model: Bert | TextClassifier, prompt: str, dtype: Dtype, facts: dict[str, Any]) -> Carried:
    described, weights = carry(model, dtype)
    if len(weights) > MOST_BYTES:
        raise ArgumentError(
            "the weights of this model take {size} MB: expected at most {most} MB, which browsers read from a page. "
            "Take --dtype int8, or a smaller model",
            size=round(len(weights) / 1e6),
            most=round(MOST_BYTES / 1e6),
        )
    live: dict[str, Any] = {"run": None, "prompt": prompt, "edits": [], "position": None, "predictions": None}
    live |= {"why": "", "emptied": 0, "carried": True, "dtype": dtype}
    told = {"model": {**described, **facts, "linking": sorted(linking_words())}, "live": live}
    return Carried(told, (("wasm", WASM.read_bytes()), ("weights", weights)))


@torch.no_grad()
def carry(model: Bert | TextClassifier, dtype: Dtype = "int8") -> tuple[dict[str, Any], bytes]:
    """Lay out the weights of an encoder, and of a classifier's head, as headwise/native/wasm/page.cpp reads them.

    Args:
        model: a `Bert` whose layers the native kernels support, or a `TextClassifier` with such an encoder.
        dtype: "int8" = the weights that `Bert.encode(dtype="int8")` uses, and embeddings of words with a scale for each
            word; "float32" = the weights as they are.

    Returns:
        A description, which fits into JSON (sizes, the dtype, and the head of a classifier), and the bytes: tensors
        behind one another, in the order of `_tensors`.

    Raises:
        ArgumentError: another model.
    """
    bert = model.encoder if isinstance(model, TextClassifier) else model
    packed = pack_for(bert, Embeddings, dtype, STRIP) if type(bert) is Bert else None
    if packed is None or packed.embeddings is None:
        family = f" ({bert.config.family})" if isinstance(bert, Bert) else ""
        raise ArgumentError(
            "a page can carry a model with BERT's embeddings and layers, such as MiniLM, or a classifier of such a "
            "model. Received: {encoder}",
            encoder=type(bert).__name__ + family,
        )
    tables, (dim, heads, hidden, activation, layers) = packed.embeddings, packed.sizes
    data = b"".join(_bytes(tensor) for tensor in _tensors(packed, dtype))
    description: dict[str, Any] = {
        **{"dtype": dtype, "strip": STRIP, "dim": dim, "heads": heads, "hidden": hidden, "activation": activation},
        **{"layers": layers, "scale": packed.scale},
        **{"words": len(tables.word), "positions": len(tables.position), "types": len(tables.type)},
    }
    if isinstance(model, TextClassifier):
        head = {"weight": model.head.weight.tolist(), "bias": model.head.bias.tolist()}  # [C, M], [C]
        description["head"] = {"pooling": model.pooling, **head}
    return description, data


def _tensors(encoder: Encoder, dtype: str) -> Iterator[Tensor]:
    """Yield the tensors in the order in which page.cpp reads them."""
    tables = encoder.embeddings
    assert tables is not None
    yield from quantise(tables.word) if dtype == "int8" else (tables.word,)  # [V, M], [V]
    yield from (tables.position, tables.type, *_norm(tables.norm))
    for layer in encoder.layers:
        for linear in (layer.qkv, layer.out, layer.up, layer.down):
            yield from (x for x in (linear.data, linear.bias, linear.scale, linear.offset) if x is not None)
        yield from (*_norm(layer.attention_norm), *_norm(layer.mlp_norm))


def _norm(norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    return norm.weight, norm.bias, torch.tensor([norm.eps], dtype=torch.float64)


def _bytes(tensor: Tensor) -> bytes:
    data = tensor.contiguous().numpy().tobytes()
    return data + bytes(-len(data) % ALIGNMENT)
