"""The page's modules that draw nothing, in node: small numbers in `js/`, and here the same numbers as in Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise import analyses, masks
from headwise.records import AttentionRecord, Seen, grouped
from headwise.worksheet import of_weight
from tests.worksheet.workbook import Workbook

from .conftest import CASES, empty_row, look, record
from .node import FOLDER, carried, evaluate, run
from .texts import PIECES, seen_of, tokens_of
from .texts import record as text_record


@pytest.mark.parametrize("script", sorted(path.name for path in FOLDER.glob("*.test.mjs")))
def test_small_numbers(script: str) -> None:
    run(script)


# ---- weights


def test_every_weight_of_every_kind_of_record() -> None:
    records = {}
    for name, make in CASES.items():
        torch.manual_seed(1)
        records[name] = make()
    code = """
        const all = [];
        for (const { stacks: [stack] } of source.inputs) {
            const [rows, cols] = [stack.rows.length, stack.cols.length];
            for (let head = 0; head < stack.layers[0].heads; head++) {
                const tile = await stack.tile(0, head, [0, rows], [0, cols], rows, cols, "max");
                const terms = [];
                for (let row = 0; row < rows; row++) {
                    terms.push(...(await stack.terms(0, head, row)).steps.map(({ weight }) => weight));
                }
                all.push([[...tile].map((weight) => weight || 0), terms]);
            }
        }
        return all;
    """
    found = iter(evaluate(code, page=carried({name: look(each) for name, each in records.items()})))
    for name, each in records.items():
        batch, heads, *_ = each.shape
        drawn, terms = np.array([next(found) for _ in range(batch * heads)]).swapaxes(0, 1).reshape(2, *each.shape)
        expected = each.weights().nan_to_num(0)
        np.testing.assert_allclose(drawn, expected, rtol=0, atol=1e-4, err_msg=name)
        np.testing.assert_allclose(terms, expected, rtol=0, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("how", ["max", "mean", "sample"])
def test_a_tile_is_pooled_from_the_cells_it_stands_for(how: str) -> None:
    seen = record(length=9, mask=masks.causal())
    code = "return source.inputs[0].stacks[0].tile(0, 1, [1, 9], [0, 8], 3, 2, given)"
    tile = evaluate(code, how, carried(look(seen)))
    cells = seen.weights(slice(1, 9), slice(0, 8), 1)[0, 0]
    rows, cols = [(0, 2), (2, 5), (5, 8)], [(0, 4), (4, 8)]
    if how == "sample":
        rows = [(middle, middle + 1) for middle in (1, 3, 6)]
    blocks = [cells[a:b, c:d] for a, b in rows for c, d in cols]
    expected = [(block.mean() if how == "mean" else block.max()).item() for block in blocks]
    expected[1] = float("nan")  # rows 1, 2 and keys 4 to 7: all masked
    np.testing.assert_allclose(tile, expected, atol=1e-4)


# ---- words and sentences


@pytest.mark.parametrize("level", ["words", "sentences"])
def test_words_and_sentences_are_grouped_as_the_library_groups(level: str) -> None:
    allowed = torch.ones(len(PIECES), len(PIECES), dtype=torch.bool).tril()
    allowed[2] = False  # un- of unhelpful looks at nothing: it counts as 0
    tokens, seen = tokens_of(PIECES), text_record(len(PIECES), mask=masks.from_tensor(allowed))
    groups = getattr(tokens, level)()
    code = """
        const { attentionOf, groupsOf, matrixOf } = await use("views/text/grouping.js");
        const stack = source.inputs[0].stacks[0];
        const [rows, cols] = [stack.rows, stack.cols].map((axis) => groupsOf(axis, given));
        const all = async (direction) => Promise.all(
            rows.labels.map((_, group) => attentionOf(stack, [[0, 1], [0, 2]], rows, cols, direction, group)));
        return [await all("gives"), await all("gets"), await matrixOf(stack, [0, 1], rows, cols)];
    """
    gives, gets, matrix = evaluate(code, level, carried(seen_of(seen, tokens=tokens)))
    expected = grouped(seen, groups, groups)[0].numpy()
    np.testing.assert_allclose(np.nan_to_num(gives), expected[1:].mean(0), atol=1e-4)
    np.testing.assert_allclose(np.nan_to_num(gets).T, expected[1:].mean(0), atol=1e-4)
    np.testing.assert_allclose(np.nan_to_num(matrix).reshape(expected[1].shape), expected[1], atol=1e-4)
    forbidden = np.triu(np.ones_like(expected[1], bool), 1)
    assert np.isnan(gives)[forbidden].all()
    assert np.isnan(gets).T[forbidden].all()


# ---- rollout

STACKS: dict[str, Callable[[], Seen]] = {
    "plain": lambda: look(*(record() for _ in range(3))),
    "window": lambda: look(*(record(mask=masks.window(2, 1)) for _ in range(2))),
    "grouped queries": lambda: look(*(record(heads=6, kv_heads=2, mask=masks.causal()) for _ in range(2))),
    "an empty row": lambda: look(empty_row(), record(), empty_row()),
    "sinks": lambda: look(*(record(sinks=torch.tensor([0.5, 3.0]), mask=masks.causal()) for _ in range(3))),
    "one token": lambda: look(record(length=1), record(length=1)),
    "a batch": lambda: look(*(record(batch=2) for _ in range(2))),
}

ROLLOUT = """
    const { rollout, usualToken } = await use("views/flow/rollout.js");
    const { signal } = new AbortController();
    const { stacks: [stack] } = source.inputs.at(-1);
    const mixed = [];
    const watched = { ...stack, mix: (layer, vector, options) => {
        mixed.push(vector.filter((share) => share > 0).length);
        return stack.mix(layer, vector, options);
    } };
    const how = { kind: "embedded", signal, tell: () => {} };
    const found = await Promise.all(given.map((token) => rollout(watched, token, how)));
    return { found, mixed, usual: await usualToken(stack, signal) };
"""


def layer_by_layer(seen: Seen, token: int, example: int = 0) -> Tensor:
    """Rollout of one token through the uppermost layer, the two uppermost ones, and so on."""
    start = torch.zeros(1, seen[0].shape[3])
    start[0, token] = 1.0
    above = [analyses.rollout(seen.records[i:], rows=token)[example] for i in reversed(range(len(seen)))]
    return torch.cat([start, *above])


@pytest.mark.parametrize("name", STACKS)
def test_every_layer_of_a_rollout_is_that_of_python(name: str) -> None:
    seen = STACKS[name]()
    tokens = sorted({0, 3, 8} & set(range(seen[0].shape[3])))
    found = evaluate(ROLLOUT, tokens, carried(seen))["found"]
    for token, layers in zip(tokens, found, strict=True):
        expected = layer_by_layer(seen, token, example=seen[0].shape[0] - 1)
        np.testing.assert_allclose(layers, expected, rtol=0, atol=1e-4)


def test_a_long_rollout_is_summed_from_strips_of_rows() -> None:
    seen = look(*(record(length=1800, dim=2, size=2.0) for _ in range(2)))
    found = evaluate(ROLLOUT, [701], carried(seen))
    first, *others = found["mixed"]
    assert (first, sum(others)) == (1, 1800)  # the one row of the top layer; all rows of the other one
    assert len(others) > 1
    np.testing.assert_allclose(found["found"][0], layer_by_layer(seen, 701), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("mask", "token"), [(None, 0), (masks.causal(), 8), (masks.window(8, 1), 0)])
def test_at_first_it_is_the_token_that_has_seen_the_most(mask: Any, token: int) -> None:
    assert evaluate(ROLLOUT, [], carried(look(record(mask=mask))))["usual"] == token


# ---- two heads compared


def test_tokens_are_matched_as_difflib_and_so_headwise_compare_does() -> None:
    generator = random.Random(0)
    pairs = []
    for _ in range(400):
        letters = "abcdefgh"[: generator.choice([1, 2, 3, 8])]
        one = generator.choices(letters, k=generator.randrange(12))
        cut = generator.randrange(12)
        edited = [*one[:cut], *"xy"[: generator.randrange(3)], *one[cut + generator.randrange(3) :]]
        pairs.append((one, edited if generator.random() < 0.6 else generator.choices(letters, k=9)))
    code = 'const { align } = await use("views/compare/align.js"); return given.map((pair) => align(...pair))'
    for (one, other), found in zip(pairs, evaluate(code, pairs), strict=True):
        runs = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
        assert [(i, j) for i, j, same in zip(found["left"], found["right"], found["same"], strict=True) if same] == [
            (run.a + i, run.b + i) for run in runs for i in range(run.size)
        ]
        assert [i for i in found["left"] if i >= 0] == list(range(len(one)))
        assert [j for j in found["right"] if j >= 0] == list(range(len(other)))
        assert found["whole"]


TIRED = ["the", "animal", "did", "n't", "cross", "the", "street", ",", "it", "was", "tired", "."]
WIDE = ["the", "animal", "did", "n't", "cross", "the", "old", "road", "because", "it", "was", "wide", "."]

PAIRS: dict[str, Callable[[], tuple[Seen, Seen]]] = {
    "two prompts": lambda: (look(record(length=12), labels=TIRED), look(record(length=13), labels=WIDE)),
    "causal": lambda: (
        look(record(length=12, mask=masks.causal()), labels=TIRED),
        look(record(length=13, mask=masks.causal()), labels=WIDE),
    ),
    "grouped queries": lambda: (look(record(heads=4, kv_heads=2)), look(record(heads=4))),
    "an empty row": lambda: (look(empty_row()), look(record(mask=masks.causal()))),
    "sinks": lambda: (look(record(sinks=torch.tensor([0.5, 3.0]))), look(record())),
    "by position": lambda: (
        look(record(length=5), labels=["a", "b", "c", "d", "e"]),
        look(record(length=5), labels=["a", "c", "x", "d", "f"]),
    ),
    "nothing in common": lambda: (
        look(record(length=2), labels=["a", "b"]),
        look(record(length=3), labels=list("xyz")),
    ),
}

COMPARE = """
    const { Side, alone, difference, divergence } = await use("views/compare/difference.js");
    const { Union } = await use("views/compare/union.js");
    const [one, other] = source.inputs.map(({ stacks: [stack] }) => stack);
    const axis = new Union(one.rows, other.rows, given.byPosition);
    const side = (stack, name, head) => new Side(stack, 0, head, axis[name], axis[name]);
    const sides = (head) => [side(one, "left", head), side(other, "right", head)];
    const { length } = axis;
    const [left, right] = sides(given.head);
    const told = [];
    const tiles = [alone(left), alone(right), difference(left, right, (rows) => told.push(rows))];
    const whole = [[0, length], [0, length], length, length, "max"];
    const cells = given.whole && (await Promise.all(tiles.map((tile) => tile(...whole))));
    const asked = await Promise.all((given.asked ?? []).map((question) => tiles[2](...question)));
    const nats = [];
    for (let head = 0; given.whole && head < one.layers[0].heads; head++) {
        nats.push((await divergence(...sides(head), axis, axis)).nats);
    }
    return { left: axis.left, right: axis.right, cells, asked, nats, told };
"""


def weights(seen: AttentionRecord, head: int) -> np.ndarray:
    """NaN where the mask forbids."""
    scores, found = seen.scores(heads=head)[0, 0], seen.weights(heads=head)[0, 0]
    return found.masked_fill(scores == -torch.inf, torch.nan).numpy()


def spread(cells: np.ndarray, rows: Sequence[int], cols: Sequence[int] | None = None) -> np.ndarray:
    """The cells at the entries of both axes; NaN where there is no such token."""
    padded = np.full([size + 1 for size in cells.shape], np.nan)
    padded[:-1, :-1] = cells
    return padded[list(rows)][:, list(rows if cols is None else cols)]


@pytest.mark.parametrize("name", PAIRS)
def test_every_cell_and_the_divergence_of_every_head_are_those_of_python(name: str) -> None:
    one, other = PAIRS[name]()
    by_position = name == "by position"
    found = evaluate(COMPARE, {"head": 1, "whole": True, "byPosition": by_position}, carried([one, other]))
    cells = [spread(weights(seen[0], 1), side) for seen, side in ((one, found["left"]), (other, found["right"]))]
    drawn = [np.reshape(each, cells[0].shape) for each in found["cells"]]
    for each, expected in zip(drawn, [*cells, cells[1] - cells[0]], strict=True):
        np.testing.assert_allclose(each, expected, rtol=0, atol=2e-4)
    if name == "nothing in common":
        assert np.isnan(found["nats"]).all()
        return
    align = "positions" if by_position else "tokens"
    compared = analyses.compare(one, other, align=align)[0]  # type: ignore[arg-type]
    np.testing.assert_allclose(found["nats"], compared.divergence[0], rtol=0, atol=1e-3)


def largest(cells: Any) -> float:
    known = cells[~np.isnan(cells)]
    return float(known[np.abs(known).argmax()]) if known.size else float("nan")


def test_a_pooled_cell_is_the_difference_of_largest_magnitude() -> None:
    asked = [([0, 15], [0, 15], 4, 5), ([1, 12], [2, 13], 3, 11)]
    questions = [(*each, how) for each in asked for how in ("max", "sample")]
    found = evaluate(COMPARE, {"head": 0, "whole": True, "asked": questions}, carried([*PAIRS["causal"]()]))
    cells = np.reshape(found["cells"][2], (15, 15))
    for place, ((row, past_row), (col, past_col), height, width) in enumerate(asked):
        pooled, sampled = (np.reshape(each, (height, width)) for each in found["asked"][2 * place : 2 * place + 2])
        edges = [row + i * (past_row - row) // height for i in range(height + 1)]
        sides = [col + i * (past_col - col) // width for i in range(width + 1)]
        for y in range(height):
            for x in range(width):
                block = cells[edges[y] : edges[y + 1], sides[x] : sides[x + 1]]
                middle = cells[(edges[y] + edges[y + 1]) // 2, sides[x] : sides[x + 1]]
                assert pooled[y, x] == pytest.approx(largest(block), nan_ok=True)
                assert sampled[y, x] == pytest.approx(largest(middle), nan_ok=True)


def test_of_very_many_cells_only_the_middle_rows_are_looked_at_and_it_says_so() -> None:
    one, other = (look(record(heads=1, kv_heads=1, length=2100, dim=2)) for _ in range(2))
    question = ([0, 2100], [0, 2100], 20, 30, "max")
    found = evaluate(COMPARE, {"head": 0, "asked": [question]}, carried([one, other]))
    rows = [(y * 105 + (y + 1) * 105) // 2 for y in range(20)]
    by = (other[0].weights(rows=rows)[0, 0] - one[0].weights(rows=rows)[0, 0]).numpy()
    expected = [[largest(row[70 * x : 70 * (x + 1)]) for x in range(30)] for row in by]
    np.testing.assert_allclose(np.abs(np.reshape(found["asked"][0], (20, 30))), np.abs(expected), rtol=0, atol=2e-4)
    assert found["told"] == [105]


def test_the_python_of_a_difference_of_the_same_tokens() -> None:
    one, other = PAIRS["grouped queries"]()
    code = """
        const { pythonOfDifference } = await use("views/compare/python.js");
        const [one, other] = source.inputs.map(({ stacks: [stack] }) => stack);
        const [plain, place] = [{ plain: true }, { layer: 0, head: 1 }];
        return pythonOfDifference({ left: place, right: place, one, other, rows: plain, cols: plain });
    """
    scope: dict[str, Any] = {"seen": [one, other]}
    exec(evaluate(code, page=carried([one, other])), scope)
    expected = other[0].weights()[0, 1] - one[0].weights()[0, 1]
    np.testing.assert_allclose(scope["difference"], expected, rtol=0, atol=1e-6)


# ---- a workbook


def rich() -> AttentionRecord:
    """Everything that changes a score."""
    torch.manual_seed(3)
    options = {"softcap": 3.0, "scale": 0.7, "sinks": torch.tensor([0.5, 1.0, 0.0, 2.0]), "mask": masks.causal()}
    return record(4, 2, 9, 6, bias=torch.randn(1, 4, 9, 9), **options)


def test_it_is_the_workbook_that_python_writes(tmp_path: Path) -> None:
    """The same sheets, names, addresses, formulas and looks; the numbers as exact as the file."""
    seen = look(rich(), labels=["=1+1", "naïve", *(f"w{i}" for i in range(2, 8)), "長い" * 20])
    code = """
        const { workbookOf } = await use("views/neuron/worksheet.js");
        const stack = source.inputs[0].stacks[0];
        const { labels } = stack.cols;
        const terms = await stack.terms(0, 2, 7);
        const book = workbookOf(terms, { title: "A title", query: labels[7], keys: labels, col: 3 });
        return new Uint8Array(await book.arrayBuffer());
    """
    (tmp_path / "page.xlsx").write_bytes(bytes(evaluate(code, page=carried(seen))))
    of_weight(seen, layer=0, head=2, row=7, col=3).write(tmp_path / "python.xlsx")
    found, expected = (Workbook(tmp_path / name, results=False).book for name in ("page.xlsx", "python.xlsx"))
    assert found.sheetnames == expected.sheetnames
    areas = [{name: each.attr_text for name, each in book.defined_names.items()} for book in (found, expected)]
    assert areas[0] == areas[1]
    for sheet in expected.sheetnames[1:]:  # the overview has the title, and sizes
        for row in expected[sheet].iter_rows():
            for cell in row:
                other = found[sheet][cell.coordinate]
                where = f"{sheet}!{cell.coordinate}"
                if isinstance(cell.value, float | int):
                    assert other.value == pytest.approx(cell.value, abs=2e-3), where
                else:
                    assert other.value == cell.value, where
                if cell.value is not None:
                    for look_of in ("b", "i", "sz"):
                        assert getattr(other.font, look_of) == getattr(cell.font, look_of), where
                    assert other.number_format == cell.number_format, where
                    assert other.fill.fgColor.rgb == cell.fill.fgColor.rgb, where
