"""Says which tokens of a text a model does not know; if it can hardly read the text, how one gets a model that can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.language import echo, said

if TYPE_CHECKING:
    from headwise.text import Tokens

_MANY = 0.3  # a larger share of unknown tokens means another language: an English BERT knows 0.0 to 0.1 of them not


def tell_unknown(name: str, tokens: Tokens) -> None:
    """Print how many tokens of a text the model does not know, if any, and what to do if these are many."""
    from headwise.models.chinese import find_way
    from headwise.records.summary import unknown_said

    told = unknown_said(tokens.unknown_count, len(tokens.labels))
    if not told:
        return
    echo(said("headwise: {name}: {told}, which reads [UNK] instead", name=name, told=told), err=True)
    if tokens.unknown_count > _MANY * len(tokens.labels):
        told = said(
            "headwise: this model cannot read such a text. One for Chinese and other languages: {way}", way=find_way()
        )
        echo(told, err=True)
