"""The graphs of translate, summarize and reply; see `encoder_decoder.py`."""

from __future__ import annotations

from typing import Any

from headwise.export.graph import Graph
from headwise.export.graphs import encoder_decoder
from headwise.tasks.text_to_text import TextToText


def graphs(task: TextToText[Any], rows: Any = None) -> tuple[Graph, ...]:
    """encoder and decoder."""
    if rows is None:
        return encoder_decoder.graphs(task)
    texts = [rows] if isinstance(rows, str) else rows
    if not (isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)):
        data = task.read(rows, task.options, targets=False)
        texts = task.pairs(data, task.options, targets=False).sources
    return encoder_decoder.graphs(task, texts)
