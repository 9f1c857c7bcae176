"""The encoder of a task that reads text, and its subwords: a checkpoint's, or both made for the data.

Such a model has `encoder`, one of three kinds; what it is like is kept as JSON, and made again from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from headwise.errors import ArgumentError
from headwise.models import Bert, BertConfig
from headwise.models.checkpoint import default_model, resolve
from headwise.models.latent_encoder import LatentEncoder, LatentEncoderConfig
from headwise.models.small_encoder import SmallEncoder, SmallEncoderConfig
from headwise.tasks.options.classify import ClassifyOptions
from headwise.tasks.options.encoder import EncoderOptions
from headwise.tasks.text.subwords import Subwords

AnyEncoder = Bert | SmallEncoder | LatentEncoder

MAX_LENGTH = 512  # tokens of an input that a small encoder reads, if no other number is asked for


def make(texts: Sequence[str], options: EncoderOptions) -> tuple[Bert | SmallEncoder, Subwords]:
    """The checkpoint that the options name, with the characters of the texts that it lacks; or a small new encoder.

    Raises:
        CheckpointError: no such checkpoint, or one that is not a BERT's.
        ArgumentError: more tokens than the checkpoint can read are asked for.
    """
    if options.is_pretrained:
        return _tuned(texts, options)
    subwords = Subwords.train(texts, options.vocabulary, lowercase=options.lowercase)
    config = SmallEncoderConfig(
        vocab_size=len(subwords),
        hidden_size=options.dim,
        num_layers=options.layers,
        num_heads=options.heads,
        dropout=options.dropout,
        attention_dropout=min(options.dropout, 0.1),
    )
    return SmallEncoder(config), subwords


def make_latent(texts: Sequence[str], options: ClassifyOptions) -> tuple[LatentEncoder, Subwords]:
    """Latents that read a text of any length, and the subwords of the texts."""
    subwords = Subwords.train(texts, options.vocabulary, lowercase=options.lowercase)
    config = LatentEncoderConfig(
        vocab_size=len(subwords),
        hidden_size=options.dim,
        num_latents=options.latents,
        num_layers=options.layers,
        num_heads=options.heads,
        dropout=options.dropout,
    )
    return LatentEncoder(config), subwords


def max_length(encoder: AnyEncoder, options: EncoderOptions) -> int | None:
    """How many tokens of an input are read; None = all."""
    if options.max_length is not None or isinstance(encoder, LatentEncoder):
        return options.max_length
    return encoder.config.max_positions if isinstance(encoder, Bert) else MAX_LENGTH


def describe(encoder: AnyEncoder) -> dict[str, Any]:
    """What `again` makes the encoder from, as JSON has it."""
    (kind,) = (name for name, (made, _) in _KINDS.items() if isinstance(encoder, made))
    return {"kind": kind, **asdict(encoder.config)}


def again(description: dict[str, Any]) -> Any:
    """An encoder of that description, with random weights."""
    encoder, config = _KINDS[description["kind"]]
    return encoder(config(**{name: value for name, value in description.items() if name != "kind"}))


_KINDS: dict[str, tuple[type[AnyEncoder], Any]] = {
    "bert": (Bert, BertConfig),
    "small": (SmallEncoder, SmallEncoderConfig),
    "latent": (LatentEncoder, LatentEncoderConfig),
}


def _tuned(texts: Sequence[str], options: EncoderOptions) -> tuple[Bert, Subwords]:
    folder = default_model() if options.model is None else resolve(options.model)
    bert = Bert.from_pretrained(folder, dropout=options.dropout)
    if options.max_length is not None and options.max_length > bert.config.max_positions:
        raise ArgumentError(
            f"max_length: {folder.name} reads at most {bert.config.max_positions} tokens, received {options.max_length}"
        )
    subwords = Subwords.from_pretrained(folder)
    if options.new_characters:
        subwords = subwords.extended(texts)
    _make_room(bert, len(subwords))
    bert.pooler, bert.config = None, replace(bert.config, pooler=False)  # nothing here reads it
    return bert.train(), subwords


def _make_room(bert: Bert, size: int) -> None:
    """Embeddings for ids that were added: near the mean of all others, as a model that never saw them may read them."""
    known = bert.embeddings.word.weight.data
    if size <= len(known):
        return
    mean, deviation = known.mean(0), known.std(0)
    new = mean + deviation * torch.randn(size - len(known), known.shape[1])
    bert.embeddings.word = nn.Embedding.from_pretrained(torch.cat([known, new]), freeze=False)
    bert.config = replace(bert.config, vocab_size=size)
