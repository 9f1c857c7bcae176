"""LibreOffice computes every workbook anew: it comes to PyTorch's numbers, and follows where one is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwise import masks
from headwise.nn import MultiHeadAttention, MultiHeadLatentAttention
from headwise.nn.positions import Rope
from tests.libreoffice import Convert

from .cases import CASES, MLA, Case, bert, heads, x
from .workbook import Workbook

pytestmark = pytest.mark.usefixtures("_exact_rope")


def off(found: np.ndarray, expected: Any) -> str:
    """How far they are apart; nothing where they are the same within 1e-9."""
    expected = np.asarray(expected)
    if found.shape != expected.shape or (np.isfinite(found) != np.isfinite(expected)).any():
        return f"{found.shape} of other cells than {expected.shape}"
    found, expected = np.nan_to_num(found), np.nan_to_num(expected)  # −∞ stands in the same cells
    apart = np.abs(found - expected)
    return f"{apart.max():.3g} apart" if (apart > 1e-9 * np.abs(expected) + 1e-13).any() else ""


# Those whose formulas are those of others are compared with PyTorch in test_make.py: LibreOffice takes a second each.
LIKE_OTHERS = {
    "multi-head",
    "causal",
    "a window and padding",
    "sixteen tokens",
    "grouped queries",
    "shared projection",
    "t5 of a decoder",
    "cross layer",
    "one token",
    "one key head",
    "rope after padding",
    "rope at other positions",
    "rope far away",
    "alibi of three heads",
    "shaw of keys alone, scaled",
    "cross with rope",
    "queries, keys and values",
    "other values",
    "latents that look at each other",
    "latents that read again and again",
    "latents, read out",
    "encoder layer",
    "decoder layer with rope after padding",
    "bert of two layers and two sentences",
    "rope of neighbours, in part",
    "rope, linear",
    "rope, yarn not truncated",
    "layer norm of queries and keys",
    "encoder layer of mla, swiglu",
    "cross",
}


@pytest.mark.slow
def test_every_workbook_comes_to_what_pytorch_computes(libreoffice: Convert, tmp_path: Path) -> None:
    """All of them in one start, which costs seconds."""
    assert CASES.keys() > LIKE_OTHERS
    cases = {name: make() for name, make in CASES.items() if name not in LIKE_OTHERS}
    sheets = {name: case.make() for name, case in cases.items()}
    paths = [tmp_path / f"{number}.xlsx" for number in range(len(cases))]
    for sheet, path in zip(sheets.values(), paths, strict=True):
        sheet.write(path)
    wrong = []
    for (name, case), path in zip(cases.items(), libreoffice(paths), strict=True):
        book, sheet = Workbook(path), sheets[name]
        wrong += [f"{name}: {error}" for error in book.errors]
        assert sorted(book.names) == sorted(sheet.matrices)
        apart = {each: off(book[each], matrix.values) for each, matrix in sheet.matrices.items()}
        apart["the output"] = off(book[sheet.output.name], case.forward()[0])
        wrong += [f"{name}, {each}: {how}" for each, how in apart.items() if how]
    assert wrong == []


@dataclass
class Change:
    """What is changed in a workbook, cell by cell, and in the call."""

    case: Case
    cells: dict[tuple[str, int, int], Any]  # name of the range, row and column from 0 -> what it shall hold
    change: Callable[[Case], None]


def weight_and_scale_change() -> Change:
    def change(case: Case) -> None:
        with torch.no_grad():
            case.module.qkv.weight[4 + 1, 3] = -2.5  # head 2 of the queries, its second dimension
        case.module.scale = 0.25

    return Change(heads(), {("W_Q_2", 3, 1): -2.5, ("Scale", 0, 0): 0.25}, change)


def mask_changes() -> Change:
    def change(case: Case) -> None:
        mask = masks.causal().to_bool(5, 5)[0, 0].clone()
        mask[0, 0], mask[1, 4] = False, True  # now the first row is empty
        case.given["mask"] = mask

    return Change(heads(given={"mask": masks.causal()}), {("Mask", 0, 0): 0, ("Mask", 1, 4): 1}, change)


def rope_changes() -> Change:
    def change(case: Case) -> None:
        case.module.positions = Rope(4, base=50.0)
        case.given["position_ids"] = torch.tensor([0, 1, 2, 9, 4])

    return Change(heads(positions=Rope(4)), {("Rope_base", 0, 0): 50, ("Position", 3, 0): 9}, change)


def memory_changes() -> Change:
    def change(case: Case) -> None:
        case.inputs[1][0, 3, 5] = -1.5
        mask = masks.lengths(3).to_bool(5, 4)[0, 0].clone()
        mask[:2, 3] = True
        case.given["mask"] = mask

    case = Case(MultiHeadAttention(8, 2, kdim=6), (x(), x(4, 6)), {"mask": masks.lengths(3)})
    return Change(case, {("Memory", 3, 5): -1.5, ("Mask", 0, 3): 1, ("Mask", 1, 3): 1}, change)


def mla_changes() -> Change:
    def change(case: Case) -> None:
        with torch.no_grad():
            case.module.kv_norm.weight[1] = 2.0
            case.module.kv_down.weight[0, 7] = 0.5
        case.inputs[0][0, 4, 0] = -3.0

    cells = {("Gain_C_KV", 0, 1): 2.0, ("W_DKV", 7, 0): 0.5, ("X", 4, 0): -3.0}
    return Change(Case(MultiHeadLatentAttention(8, 2, **MLA), (x(),), {"mask": masks.causal()}), cells, change)


def bert_changes() -> Change:
    def change(case: Case) -> None:
        with torch.no_grad():
            case.module.embeddings.position.weight[3, 2] = 1.5
        case.module.layers[1].mlp_norm.eps = 0.1

    case = Case(bert(num_layers=2), (torch.tensor([[1, 4, 5, 6, 2]]),))
    return Change(case, {("Place", 3, 2): 1.5, ("Layer2_Eps_feed_forward", 0, 0): 0.1}, change)


CHANGES = (weight_and_scale_change, mask_changes, rope_changes, memory_changes, mla_changes, bert_changes)


def test_a_number_that_is_changed_changes_everything_after_it(libreoffice: Convert, tmp_path: Path) -> None:
    before, after, paths = {}, {}, []
    for make in CHANGES:
        name, each = make.__name__, make()
        sheet = each.case.make()
        before[name] = (sheet.output.name, copy.deepcopy(each.case.forward()[0]))
        path = tmp_path / f"{name}.xlsx"
        sheet.write(path)
        book = Workbook(path, results=False)
        for (matrix, row, col), value in each.cells.items():
            cell = book.cells(matrix)[row][col]
            assert sheet[matrix].kind not in ("result", "weights", "output"), matrix
            cell.value = value
        book.book.save(path)
        each.change(each.case)
        after[name] = each.case.forward()[0]
        paths.append(path)
    wrong = []
    for (name, (output, old)), path in zip(before.items(), libreoffice(paths), strict=True):
        book = Workbook(path)
        assert book.errors == []
        assert off(book[output], old), f"{name}: nothing changed"
        wrong += [f"{name}: {how}" for how in [off(book[output], after[name])] if how]
    assert wrong == []
