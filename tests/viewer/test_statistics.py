"""The numbers of each head, against the definitions written out over the whole matrix in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise import masks
from headwise.analyses import head_importance, relevance, stack
from headwise.records import AttentionRecord, Seen
from headwise.text import Tokens
from headwise.viewer import facts, facts_of, inputs_of
from headwise.viewer.statistics import compute_statistics, descriptions

from .conftest import look, placed, record, tokens, write

KEYS = [each["key"] for each in descriptions()]


def told(seen: AttentionRecord, read: Tokens | None = None, *, example: int = 0, kind: str = "self") -> dict[str, Any]:
    read = read or tokens([f"w{i}" for i in range(seen.shape[3])])
    return compute_statistics(seen, {example: read}, kind=kind)[example]


def dense(seen: AttentionRecord, example: int = 0) -> Tensor:
    return seen.weights()[example].double()


def test_the_numbers_are_those_of_the_record_for_each_example() -> None:
    """tests/records/test_statistics.py has the definitions."""
    seen = record(4, 2, 9, 4, batch=2, size=2.0, mask=masks.lengths(torch.tensor([9, 5])))
    together = compute_statistics(seen, {0: tokens(list("abcdefghi")), 1: tokens(list("abcdefghi"))}, kind="self")
    for example in range(2):
        a, found = dense(seen, example), told(seen, example=example)
        assert found["entropy"] == pytest.approx(seen.entropy()[example].mean(-1).tolist(), abs=1e-4)
        assert found["previous"] == pytest.approx((a.diagonal(-1, 1, 2).sum(-1) / (8, 5)[example]).tolist(), abs=1e-4)
        assert found["strongest"] == pytest.approx(a.amax((1, 2)).tolist(), abs=1e-4)
        assert found == together[example]


def test_rows_that_attend_to_nothing_do_not_count() -> None:
    allowed = torch.eye(5, dtype=torch.bool)
    allowed[3] = False
    found = told(record(length=5, mask=masks.from_tensor(allowed)))
    assert found["entropy"] == [0.0, 0.0]
    assert found["keys_needed"] == [1.0, 1.0]  # of four rows, not five
    empty = told(record(length=5, mask=masks.from_tensor(torch.zeros(5, 5, dtype=torch.bool))))
    assert empty["entropy"] == [None, None]
    assert empty["strongest"] == [0.0, 0.0]


def test_between_two_texts_there_is_no_distance() -> None:
    found = told(record(length=3, keys=7), kind="cross")
    assert found["distance"] == found["previous"] == found["induction"] == found["importance"] == [None, None]
    assert found["first_visible"] == pytest.approx(dense(record_again())[:, :, 0].mean(-1).tolist(), abs=1e-4)


def record_again() -> AttentionRecord:
    torch.manual_seed(0)  # as every test begins
    return record(length=3, keys=7)


def test_each_statistic_is_there_and_explained() -> None:
    assert set(told(record())) == set(KEYS)
    assert " ".join(KEYS) == "entropy distance previous first_visible keys_needed strongest induction importance"
    assert all(each["about"].endswith(".") for each in descriptions())


# --- Induction --------------------------------------------------------------------------------------------------------


def prefix_matching(a: Tensor, names: Sequence[object], special: Sequence[bool]) -> list[float | None]:
    """Olsson et al. 2022, cell by cell: the weight on what followed each earlier place of the query's token."""
    rows = []
    for i, name in enumerate(names):
        followed = [j + 1 for j in range(i - 1) if names[j] == name and not (special[i] or special[j])]
        if followed:
            rows.append(a[:, i, followed].sum(-1))
    return [None] * len(a) if not rows else torch.stack(rows).mean(0).tolist()


def named(names: str) -> Tokens:
    """Tokens of which only names are known."""
    return dataclasses.replace(tokens(list(names)), ids=(-1,) * len(names))


def test_induction_of_a_text_that_can_be_checked_by_hand() -> None:
    def alike(names: str) -> Any:
        """Where all keys weigh the same."""
        return told(record(length=len(names), size=0.0), named(names))["induction"]

    third = pytest.approx([1 / 3] * 2, rel=1e-4)
    assert alike("aba") == third  # the second a looks at what followed the first
    assert alike("aa") == [None, None]  # what followed the first is the query itself, which does not count
    assert alike("aaa") == third  # the third looks at what followed the first: the second
    assert alike("abc") == [None, None]


@pytest.mark.parametrize("block_bytes", [2**25, 2**9])
def test_induction_is_the_definition(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "BLOCK_BYTES", block_bytes)
    seen = record(4, 2, 12, 4, batch=2, mask=masks.causal())
    first = dataclasses.replace(named("abcabcabcaab"), special=(*[False] * 11, True))
    second = dataclasses.replace(named("xyxyxy......"), special=(*[False] * 6, *[True] * 6))
    together = compute_statistics(seen, {0: first, 1: second}, kind="self")
    for example, read in enumerate((first, second)):
        expected = prefix_matching(dense(seen, example), read.labels, read.special)
        assert expected[0] is not None
        assert told(seen, read, example=example)["induction"] == pytest.approx(expected, abs=1e-4)
        assert together[example]["induction"] == pytest.approx(expected, abs=1e-4)


def test_ids_tell_tokens_apart_that_look_the_same() -> None:
    assert told(record(length=3), tokens(list("aba")))["induction"] == [None, None]  # their ids are 0, 1 and 2
    alike = dataclasses.replace(tokens(list("abc")), ids=(7, 8, 7))
    assert told(record(length=3, size=0.0), alike)["induction"] == pytest.approx([1 / 3] * 2, rel=1e-4)


# --- What supports a pattern ------------------------------------------------------------------------------------------


def supports(seen: AttentionRecord, read: Tokens) -> Any:
    return compute_statistics(seen, {0: read}, kind="self", queries={0: read})[0]["supports"]


def test_an_even_head_and_one_on_one_key_are_chance() -> None:
    text = named("abcabcabc")
    found = supports(record(length=9, size=0.0, mask=masks.causal()), text)
    for name, queries in (("previous", 8), ("first_visible", 9), ("induction", 6)):
        assert found[name]["queries"] == [queries] * 2
        assert found[name]["values"] == pytest.approx(found[name]["chance"], rel=1e-4) or name == "induction"
    # Every earlier place of the third a, b and c is one of two: the key that most queries could look at has 2 of 6.
    assert found["induction"]["chance"] == pytest.approx([2 / 6] * 2, rel=1e-4)
    assert found["previous"]["chance"] == pytest.approx([sum(1 / n for n in range(2, 10)) / 8] * 2, rel=1e-4)


def test_one_query_that_repeats_does_not_support_induction() -> None:
    found = supports(record(length=9), named("abcdefgha"))
    assert (found["induction"]["queries"], found["induction"]["chance"]) == ([1, 1], [1.0, 1.0])


def test_chance_follows_the_mask_of_each_head() -> None:
    allowed = torch.ones(1, 2, 6, 6, dtype=torch.bool).tril()
    allowed[:, 1] &= torch.ones(6, 6, dtype=torch.bool).triu(-1)  # head 1 sees itself and the token before
    allowed[:, 1, 4] = False
    found = supports(record(length=6, mask=masks.from_tensor(allowed)), named("abcdef"))["previous"]
    assert found["queries"] == [5, 4]
    assert found["chance"] == pytest.approx([sum(1 / n for n in range(2, 7)) / 5, 1 / 2], rel=1e-4)


def test_unknown_tokens_support_nothing() -> None:
    text = dataclasses.replace(named("xaxbxcxdxa"), unknown=tuple(name == "x" for name in "xaxbxcxdxa"))
    found = supports(record(length=10), text)
    assert found["previous"]["queries"] == [0, 0]
    assert found["first_visible"]["queries"] == [5, 5]
    assert found["induction"] is None
    assert told(record(length=10), text)["induction"] == [None, None]


# --- What gradients tell ----------------------------------------------------------------------------------------------


def with_gradients(batch: int = 1, layers: int = 3) -> Seen:
    records = []
    for i in range(layers):
        each = placed(record(4, 2, 7, 3, batch=batch), f"layers.{i}", i)
        each.extras.v = torch.randn(batch, 2, 7, 5)
        each.extras.grad = torch.randn(batch, 4, 7, 5)
        records.append(each)
    return Seen(records)


def test_importance_is_that_of_the_analyses() -> None:
    seen = with_gradients(batch=2)
    found = facts_of(inputs_of(seen), title="")["inputs"][1]["stacks"][0]["layers"]
    expected = head_importance(seen)
    for layer, each in enumerate(found):
        assert each["stats"]["importance"] == pytest.approx(expected[layer].tolist(), rel=1e-4)
    seen[1].dropout = 0.1  # which weights were used is not known
    found = facts_of(inputs_of(seen), title="")["inputs"][0]["stacks"][0]["layers"]
    assert found[1]["stats"]["importance"] == [None] * 4


def test_relevance_goes_down_from_the_token_with_the_largest_gradient(tmp_path: Path) -> None:
    seen = with_gradients(batch=2)
    top = seen[2].grad.clone()
    top[0, :, 3] *= 100
    top[1, :, 6] *= 100
    seen[2].extras.grad = top
    page = write(tmp_path / "page.html", seen)
    for example, row in enumerate((3, 6)):
        found = page.stack(example)["relevance"]
        assert found["row"] == row
        rows = np.array(found["layers"])
        assert rows.shape == (4, 7)
        assert rows[0].tolist() == [float(i == row) for i in range(7)]
        for done in range(1, 4):
            expected = relevance(seen.records[3 - done :], rows=row)[example, 0]
            np.testing.assert_allclose(rows[done], expected, rtol=1e-3)


def test_without_gradients_or_with_dropout_there_is_no_relevance() -> None:
    assert facts_of(inputs_of(look(record())), title="")["inputs"][0]["stacks"][0]["relevance"] is None
    seen = with_gradients()
    seen[0].extras.grad = None
    assert facts_of(inputs_of(seen), title="")["inputs"][0]["stacks"][0]["relevance"] is None
    dropped = with_gradients()
    dropped[1].dropout = 0.5
    assert facts_of(inputs_of(dropped), title="")["inputs"][0]["stacks"][0]["relevance"] is None


# --- In the facts -----------------------------------------------------------------------------------------------------


def test_the_facts_hold_the_statistics_of_each_example() -> None:
    seen = look(record(batch=2), record(batch=2))
    read = [named("abcabcabc"), named("abcdefghi")]
    seen.tokens = read
    found = facts_of(inputs_of(seen), title="")
    assert found["statistics"] == descriptions()
    for example in range(2):
        for layer in range(2):
            expected = told(seen[layer], read[example], example=example)
            assert found["inputs"][example]["stacks"][0]["layers"][layer]["stats"] == expected
    assert found["inputs"][1]["stacks"][0]["layers"][0]["stats"]["induction"] == [None, None]


def test_quickly_only_what_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = inputs_of(with_gradients(batch=2, layers=3))
    for most, there in ((3 * 2 * 4 * 7 * 7, True), (3 * 2 * 4 * 7 * 7 - 1, False)):
        monkeypatch.setattr(facts, "QUICK_CELLS", most)
        (stack,) = facts_of(inputs, title="", quick=True)["inputs"][0]["stacks"]
        assert (stack["layers"][0]["stats"] is not None, stack["relevance"] is not None) == (there, there)
        assert facts_of(inputs, title="")["inputs"][0]["stacks"][0]["layers"][0]["stats"] is not None


def test_of_long_inputs_the_numbers_in_a_file_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(record(length=200))
    exact = write(tmp_path / "page.html", seen).stack()["layers"][0]["stats"]
    assert "estimated" not in exact
    monkeypatch.setattr(facts, "QUICK_CELLS", 2 * 200 * 200 - 1)
    monkeypatch.setattr("headwise.viewer.page.ESTIMATED_ROWS", 40)
    found = write(tmp_path / "page.html", seen).stack()["layers"][0]["stats"]
    assert found.pop("estimated") == 40
    assert found["entropy"] != exact["entropy"]
    assert found["entropy"] == pytest.approx(exact["entropy"], rel=0.1)
    monkeypatch.setattr("headwise.viewer.page.ESTIMATED_ROWS", 200)
    assert write(tmp_path / "page.html", seen).stack()["layers"][0]["stats"] == exact
