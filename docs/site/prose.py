"""The Markdown of the documents, written so that the site shows what is meant."""

from __future__ import annotations

import re

_CHINESE = "[\u2018-\u201d\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"  # letters and marks
_BROKEN = re.compile(rf"(?<={_CHINESE})\n *(?=[*`\[]*{_CHINESE})|(?<=[，。；：、）])\n *(?=[`\[A-Za-z])")
_CODE = re.compile(r"`[^`\n]+`")


def adapt(markdown: str) -> str:
    """Join lines of Chinese, where browsers show a space; "\\|" in code, which GitHub needs in tables, is "|"."""
    return _CODE.sub(lambda code: code[0].replace("\\|", "|"), _BROKEN.sub("", markdown))
