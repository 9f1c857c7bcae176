"""What a docstring shows after `>>>` is code in the reference, wherever it stands in the text."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Examples(griffe.Extension):
    """Fences them before the docstrings are read as Markdown."""

    def on_object(self, *, obj: griffe.Object, **rest: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
