"""Streams a column of a data set of Hugging Face: its rows are never all in memory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwise.errors import ArgumentError, FileError, shortened
from headwise.tasks.rows.sources import quiet, try_hub
from headwise.tasks.rows.tables import as_text

_DATASET = re.compile(r"(?P<name>[^:]+)(:(?P<split>[\w\[\]:%]+))?")


def stream_column(name: str, column: str) -> Iterator[str]:
    """Yield the cells of a column as text, one after the other.

    Args:
        name: "name", "name:split" or "name/config:split" on the hub, or a folder that `save_to_disk` wrote or that
            `load_dataset` reads. The split is "train" unless it is given.

    Raises:
        ArgumentError: `datasets` is not installed, or there is no such column.
        FileError: there is no such data set, or it cannot be read.
    """
    rows = _dataset(name)
    columns = list(rows.features or ())
    if columns and column not in columns:
        raise ArgumentError(
            "{name}: there is no column {column!r}. The columns are: {columns}",
            name=name,
            column=column,
            columns=", ".join(map(repr, columns)),
        )
    for row in rows:
        if column not in row:
            raise ArgumentError(
                "{name}: there is no column {column!r}. The columns are: {columns}",
                name=name,
                column=column,
                columns=", ".join(map(repr, row)),
            )
        yield as_text(row[column])


def _dataset(name: str) -> Any:
    match = _DATASET.fullmatch(name)
    place, split = (match["name"], match["split"] or "train") if match else (name, "train")
    config = None
    with contextlib.ExitStack() as around:
        datasets = around.enter_context(quiet())
        if not Path(place).is_dir():
            if place.count("/") == 2:
                place, _, config = place.rpartition("/")
            around.enter_context(try_hub(place))
        try:
            if (Path(place) / "dataset_dict.json").is_file():
                return datasets.load_from_disk(place)[split]
            if (Path(place) / "dataset_info.json").is_file():
                return datasets.load_from_disk(place)
            return datasets.load_dataset(place, config, split=split, streaming=True)
        except Exception as error:  # each library below has its own errors
            said = " ".join(str(error).split()) or type(error).__name__
            raise FileError(
                "{name}: there is no such folder, and no data set of that name can be read: {why}",
                name=name,
                why=shortened(said, 200),
            ) from error
