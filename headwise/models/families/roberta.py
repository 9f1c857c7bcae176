"""RoBERTa (Liu et al. 2019, arXiv:1907.11692) and XLM-R (Conneau et al. 2019, arXiv:1911.02116).

The rows of the position table up to the id of the padding token are reserved, and padding does not count as a position.
"""

from collections.abc import Mapping
from typing import Any

from headwise.errors import CheckpointError
from headwise.models.families.bert import SETTINGS, TENSORS
from headwise.models.families.family import Family


def counted(config: Mapping[str, Any], padding: Any) -> dict[str, Any]:
    """Return `first_position`, and `max_positions`, the number of rows of the position table that are not reserved."""
    rows = config.get("max_position_embeddings", 512)
    if type(padding) is not int or padding < 0 or type(rows) is not int:
        raise CheckpointError(
            "config.json: expected whole numbers as pad_token_id and max_position_embeddings. Received: "
            f"pad_token_id={padding!r}, max_position_embeddings={rows!r}"
        )
    return {"first_position": padding + 1, "max_positions": rows - padding - 1}


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    return counted(config, config.get("pad_token_id", 1))


FAMILY = Family(
    name="roberta",
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefix="roberta.",
    settings=SETTINGS,
    tensors=TENSORS,
    own=_own,
)
