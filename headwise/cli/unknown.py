"""Says how many tokens of a text the model does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from headwise.text import Tokens


def tell_unknown(name: str, tokens: Tokens) -> None:
    """Print how many tokens of a text the model does not know, if any."""
    from headwise.language import said
    from headwise.records.summary import unknown_said

    if told := unknown_said(tokens.unknown_count, len(tokens.labels)):
        click.echo(f"headwise: {name}: {told}" + said(", which reads [UNK] instead"), err=True)
