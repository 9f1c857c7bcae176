"""One weight of a record as a worksheet: its formulas come to the record's weight, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headwise
from headwise import masks
from headwise.errors import ArgumentError, WorksheetError
from headwise.records import AttentionRecord, Seen
from headwise.worksheet import of_weight
from tests.libreoffice import Convert
from tests.viewer.conftest import look, record

from .workbook import Workbook

WORDS = ["the", "animal", "did", "not", "cross", "the", "street"]


def seen_of(*records: AttentionRecord) -> Seen:
    return look(*records, labels=WORDS)


def rich() -> AttentionRecord:
    """Everything that changes a score."""
    options: dict[str, Any] = {"softcap": 2.0, "scale": 1.5, "sinks": torch.tensor([0.5, -1.0, 0.0, 2.0])}
    return record(4, 2, 7, 6, mask=masks.causal(), bias=torch.randn(1, 4, 7, 7), **options)


def test_two_keys_by_hand() -> None:
    q, k = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 0.0], [0.0, 1.0]]]])
    seen = headwise.attention(q, k, k, scale=0.5, record=True)[1]
    sheet = of_weight(seen, row=0, col=1)
    assert sheet["Products"].values.tolist() == [[3.0, 0.0], [0.0, 2.0]]
    assert sheet["Scores"].values.ravel().tolist() == [3.0, 2.0]
    assert sheet["Scaled"].values.ravel().tolist() == [1.5, 1.0]
    assert sheet["Weight"].values.item() == pytest.approx(1 / (1 + np.exp(0.5)))
    assert sheet.output is sheet["Weight"]


def test_libreoffice_comes_to_the_weight_of_the_record(libreoffice: Convert, tmp_path: Path) -> None:
    torch.manual_seed(0)
    seen = seen_of(record(2, length=7), rich())
    cases = [(0, 1, 6, 1), (1, 3, 4, 2), (1, 3, 2, 5)]  # the last one is masked
    paths = [tmp_path / f"{i}.xlsx" for i in range(len(cases))]
    for (layer, head, row, col), path in zip(cases, paths, strict=True):
        of_weight(seen, layer=layer, head=head, row=row, col=col).write(path)
    for (layer, head, row, col), path in zip(cases, libreoffice(paths), strict=True):
        book, weights = Workbook(path), seen[layer].weights(heads=head, rows=row)[0, 0, 0].numpy()
        assert book.errors == []
        np.testing.assert_allclose(book["Weights"].ravel(), weights, rtol=0, atol=1e-6)
        assert book["Weight"].item() == pytest.approx(weights[col], abs=1e-6)
    assert weights[col] == 0.0


def test_tokens_are_named() -> None:
    sheet = of_weight(seen_of(record(length=7)), head=1, row="animal", col="street")
    assert sheet.title == "layers.0, head 1: animal → street"
    assert sheet["Keys"].rows.labels == tuple(WORDS)
    same = of_weight(seen_of(record(length=7)), head=1, row=1, col=6)
    assert same.title == sheet.title
    assert of_weight(seen_of(record(length=7)), head=1, row="the:2", col=6).title.endswith("the → street")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"row": "the", "col": 0},
            r"row: 'the' occurs at 0 and 5\. Choose one: row=0, the same as row='the:1'; or row=5",
        ),
        ({"row": "cow", "col": 0}, r"row: 'cow' is not among the tokens"),
        ({"row": 0, "col": 7}, r"col must lie in 0 … 6. Received: col=7"),
        ({"row": 0, "col": 0, "head": 2}, r"head must lie in 0 … 1. Received: head=2"),
    ],
)
def test_what_is_not_there_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        of_weight(seen_of(record(length=7)), **options)


def test_a_layer_is_chosen_where_there_are_several() -> None:
    seen = seen_of(record(length=7), record(length=7))
    with pytest.raises(ArgumentError, match="layer: choose one of the 2 layers"):
        of_weight(seen, row=0, col=0)
    assert of_weight(seen, layer=1, row=0, col=0).title.startswith("layers.1")
    with pytest.raises(ArgumentError, match="a record is one layer"):
        of_weight(seen[0], layer=1, row=0, col=0)

    assert of_weight(record(), row=2, col=3).title == "head 0: 2 → 3"
    with pytest.raises(ArgumentError, match="expected a number, because the tokens are not known"):
        of_weight(record(), row="it", col=3)


def test_more_than_a_workbook_holds_is_refused() -> None:
    with pytest.raises(WorksheetError, match=r"up to 1,024 keys\. Received: 1,025 keys"):
        of_weight(record(1, length=1, keys=1025), row=0, col=0)
