"""Makes the text encoder of a task, and its subwords: both from a checkpoint, or both new for the data.

The model of such a task has an `encoder` of one of three kinds. Its shape is kept as JSON, from which it is made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.capture import watch
from headwise.errors import ArgumentError, CheckpointError
from headwise.models import Bert, BertConfig
from headwise.models.checkpoint import default_model, resolve
from headwise.models.latent_encoder import LatentEncoder, LatentEncoderConfig
from headwise.models.small_encoder import SmallEncoder, SmallEncoderConfig
from headwise.records import Seen
from headwise.tasks.kinds import load
from headwise.tasks.options.classify import LATENT, ClassifyOptions
from headwise.tasks.options.encoder import EncoderOptions
from headwise.tasks.text.subwords import Subwords
from headwise.tasks.training.run import CONFIG
from headwise.text import Tokens

AnyEncoder = Bert | SmallEncoder | LatentEncoder

MAX_LENGTH = 512  # tokens of an input that a small encoder reads, by default


def make(texts: Sequence[str], options: EncoderOptions) -> tuple[Any, Subwords]:
    """Make (encoder, subwords): from the checkpoint in the options, with new characters of `texts`; or small new ones.

    With the model "latent", it makes a new latent encoder, which reads a text of any length.

    Raises:
        CheckpointError: the checkpoint does not exist, or is not a BERT.
        ArgumentError: more tokens are requested than the checkpoint can read.
    """
    if options.is_pretrained:
        new = texts if options.new_characters else ()
        return pretrained(options.model, new, dropout=options.dropout, max_length=options.max_length)
    subwords = Subwords.train(texts, options.vocab_size, lowercase=options.lowercase)
    shape: dict[str, Any] = {
        "vocab_size": len(subwords),
        "dim": options.dim,
        "num_layers": options.layers,
        "num_heads": options.heads,
        "dropout": options.dropout,
    }
    if isinstance(options, ClassifyOptions) and options.model == LATENT:
        return LatentEncoder(LatentEncoderConfig(num_latents=options.latents, **shape)), subwords
    return SmallEncoder(SmallEncoderConfig(attention_dropout=min(options.dropout, 0.1), **shape)), subwords


def pretrained(
    name: str | None,
    texts: Sequence[str],
    *,
    dropout: float,
    max_length: int | None = None,
    asked_as: str = "max_length",
) -> tuple[Bert, Subwords]:
    """Load (the BERT of a checkpoint, its subwords), the BERT without pooler and in training mode.

    Characters of the texts that the subwords lack are added to both.

    Args:
        name: a folder, a hub id, or the folder of a run whose model has a BERT; None = MiniLM, of the extra demo.
        dropout: replaces the dropout of the checkpoint.
        max_length: the number of tokens that the checkpoint must be able to read.
        asked_as: the name of the option for this number.

    Raises:
        CheckpointError, ArgumentError: as for `make`.
    """
    folder = default_model() if name is None else resolve(name)
    bert = (
        take_bert(load(folder).model, folder, dropout)
        if (folder / CONFIG).is_file()
        else Bert.from_pretrained(folder, dropout=dropout)
    )
    if max_length is not None and max_length > bert.config.max_positions:
        raise ArgumentError(
            f"{asked_as}: {folder.name} reads at most {bert.config.max_positions} tokens. Received: {max_length}"
        )
    subwords = Subwords.from_pretrained(folder).extended(texts)
    _make_room(bert, subwords)
    bert.pooler, bert.config = None, replace(bert.config, pooler=False)  # it is not used here
    return bert.train(), subwords


def take_bert(model: nn.Module, folder: Path, dropout: float) -> Bert:
    """Return a copy of the BERT in the model of a run, with another dropout.

    Raises:
        CheckpointError: the model has no BERT.
    """
    trained = next((each for each in model.modules() if isinstance(each, Bert)), None)
    if trained is None:
        raise CheckpointError(f"model: {folder} is a run without a BERT: expected one that began with a checkpoint")
    bert = Bert(replace(trained.config, dropout=dropout, attention_dropout=dropout))
    bert.load_state_dict(trained.state_dict())
    return bert


def new_bert(subwords: Subwords, *, dim: int, layers: int, heads: int, max_length: int, dropout: float) -> Bert:
    """Make a small BERT with random weights."""
    config = BertConfig(
        vocab_size=len(subwords),
        dim=dim,
        num_layers=layers,
        num_heads=heads,
        ffn_dim=4 * dim,
        max_positions=max_length,
        dropout=dropout,
        attention_dropout=dropout,
        pooler=False,
        initializer_range=dim**-0.5,
    )
    return Bert(config)


def look(model: nn.Module, tokens: Tokens, types: Sequence[int] | None = None) -> Seen:
    """Return the attention of a model that reads these tokens of one or two texts; `types`: token types, if any."""
    device = next(model.parameters()).device
    given = {} if types is None else {"token_type_ids": torch.tensor([types], device=device)}
    model.eval()
    with torch.no_grad(), watch(model, tokens=[tokens]) as seen:
        model(torch.tensor([tokens.ids], device=device), **given)
    return seen


def max_length(encoder: AnyEncoder, options: EncoderOptions) -> int | None:
    """Return the number of tokens of an input that the encoder reads; None = all."""
    if options.max_length is not None or isinstance(encoder, LatentEncoder):
        return options.max_length
    return encoder.config.max_positions if isinstance(encoder, Bert) else MAX_LENGTH


def describe(encoder: AnyEncoder) -> dict[str, Any]:
    """Describe an encoder as JSON data, from which `again` makes it again."""
    (kind,) = (name for name, (made, _) in _KINDS.items() if isinstance(encoder, made))
    return {"kind": kind, **asdict(encoder.config)}


def again(description: dict[str, Any]) -> Any:
    """Make an encoder from its description by `describe`, with random weights."""
    encoder, config = _KINDS[description["kind"]]
    return encoder(config(**{name: value for name, value in description.items() if name != "kind"}))


_KINDS: dict[str, tuple[type[AnyEncoder], Any]] = {
    "bert": (Bert, BertConfig),
    "small": (SmallEncoder, SmallEncoderConfig),
    "latent": (LatentEncoder, LatentEncoderConfig),
}


def _make_room(bert: Bert, subwords: Subwords) -> None:
    """Add embeddings for the new characters of the subwords, each a copy of the embedding of a random word.

    The layers above can process a word, for example find the same word elsewhere, and so they can process a character
    that looks like one; the meaning of the characters is then learned. With random embeddings of the same mean and
    deviation as words, XQuAD's Chinese questions are learned much worse.
    """
    known = bert.embeddings.word.weight.data
    count = len(subwords) - len(known)
    if count <= 0:
        return
    words = torch.tensor([number for number in range(len(known)) if subwords.name(number).isalpha()] or [0])
    drawn = words[torch.randperm(len(words))][torch.arange(count) % len(words)]
    bert.embeddings.word = nn.Embedding.from_pretrained(torch.cat([known, known[drawn]]), freeze=False)
    bert.config = replace(bert.config, vocab_size=len(subwords))
