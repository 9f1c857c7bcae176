"""The number of token ids that a model knows."""

from __future__ import annotations

from torch import nn


def vocabulary_size(model: nn.Module) -> int | None:
    """Return the number of rows in a model's table of token embeddings; None if it has no nn.Embedding.

    A model of transformers names the table (`get_input_embeddings`). In other models it is the first table: a table of
    positions may have more rows.
    """
    tables = [part for part in model.modules() if isinstance(part, nn.Embedding)]
    named = getattr(model, "get_input_embeddings", None)
    if named is not None and tables:
        try:
            table = named()
        except NotImplementedError:
            table = None
        if isinstance(table, nn.Embedding):
            return table.num_embeddings
    return tables[0].num_embeddings if tables else None
