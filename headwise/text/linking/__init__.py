"""Words that link others and mean little alone: articles, prepositions and particles, in one file for each language."""

from __future__ import annotations

import functools
from importlib.resources import files

LANGUAGES = ("en", "zh")


@functools.cache
def linking_words() -> frozenset[str]:
    """Return these words of all languages, in lower case."""
    texts = [files(__name__).joinpath(f"{language}.txt").read_text(encoding="utf-8") for language in LANGUAGES]
    return frozenset(word for text in texts for word in text.split())
