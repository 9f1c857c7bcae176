"""Loads the model that a page of `headwise view --with-model` carries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headwise.errors import ArgumentError

if TYPE_CHECKING:
    from headwise.viewer.carried import Carried, Dtype

EXAMPLE = "The animal didn't cross the street because it was too tired."


def carry_model(run: Path | None, model: str | None, prompt: str, dtype: Dtype) -> Carried:
    """Make what the page gets of the model in a run folder, of a BERT by its id or folder, or of MiniLM.

    Raises:
        ArgumentError: a model of another kind.
    """
    from headwise import tasks
    from headwise.models.bert import Bert
    from headwise.models.checkpoint import default_model, resolve
    from headwise.text import Tokenizer
    from headwise.viewer.carried import carry_bert, carry_classifier

    if run is None:
        folder = default_model() if model is None else resolve(model)
        return carry_bert(Bert.from_pretrained(folder), Tokenizer.from_pretrained(folder), prompt, dtype)
    task = tasks.load(run)
    if not isinstance(task, tasks.Classify):
        raise ArgumentError(
            "--with-model: a page can carry a BERT, or a run of headwise train classify. Received: a run of {name}",
            name=type(task).name,
        )
    return carry_classifier(task, prompt, dtype)
