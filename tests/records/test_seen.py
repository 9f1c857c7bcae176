"""The records of a model: how one is found, what its rows are called, and what is said of what is not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import headwise
from headwise import masks
from headwise.errors import ArgumentError, HeadwiseError, RecordError
from headwise.records import AttentionRecord, CallSite, Coverage, Seen, Site
from headwise.text import Patches


def record(
    name: str | None = None, *, kind: Any = "self", call: int = 0, batch: int = 1, q_len: int = 5, k_len: int = 5
) -> AttentionRecord:
    q, k = torch.randn(batch, 2, q_len, 4), torch.randn(batch, 2, k_len, 4)
    kept = headwise.attention(q, k, k, mask=masks.window(3, 3), record=True)[1]
    kept.site = None if name is None else Site(name, 0, kind, False, 2, 2, call)
    return kept


def model(*names: str, calls: int = 1) -> Seen:
    return Seen([record(name, call=call) for call in range(calls) for name in names])


BERT = [f"encoder.layer.{i}.attention.self" for i in range(12)]
T5 = ["encoder.block.0.self_attn", "encoder.block.1.self_attn"]
T5 += [f"decoder.block.{i}.{kind}" for i in range(2) for kind in ("self_attn", "cross_attn")]


def said(error: pytest.ExceptionInfo[HeadwiseError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


# --- Which record -----------------------------------------------------------------------------------------------------


def test_layers_are_named_in_the_order_of_their_first_computation() -> None:
    seen = Seen([record("b"), record("a"), record("b", call=1), record()])
    assert seen.layers == ["b", "a", "attention"]
    assert len(seen) == 4
    assert list(seen) == seen.records


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ("encoder.layer.3.attention.self", 3),
        ("encoder.layer.3", 3),
        ("encoder.layer.1", 1),  # not 10 or 11: components are whole
        ("layer.3.attention.self", 3),
        ("layer.11", 11),
        ("*.3.*", 3),
        ("encoder.layer.[3]", 3),
        (3, 3),
        (-1, 11),
        (torch.tensor(4), 4),
    ],
)
def test_one_layer_is_found_by_number_path_part_or_pattern(wanted: Any, place: int) -> None:
    seen = model(*BERT)
    assert seen[wanted] is seen.records[place]


def test_the_very_name_comes_before_what_lies_under_it() -> None:
    seen = model("layer.0", "layer.0.cross", "other.layer.0", "odd[0]")
    assert seen["layer.0"] is seen.records[0]
    assert seen["odd[0]"] is seen.records[3]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("encoder.layer.12", ["no attention was seen at 'encoder.layer.12'", "encoder.layer.1.attention.self"]),
        ("decodr", ["There is: encoder.layer.0.attention.self, ", "and 4 more"]),
        ("*.cross_attn", ["no attention was seen at '*.cross_attn'"]),
        ("encoder", ["'encoder', which means 12 layers", "encoder.layer.0.attention.self", "seen.only("]),
        (12, ["0 … 11", "Received: 12"]),
        (-13, ["0 … 11", "Received: -13"]),
        (["encoder.layer.0", 99], ["0 … 11", "Received: 99"]),
        (1.5, ["Received: layers=1.5"]),
        (None, ["Received: layers=None"]),
    ],
)
def test_what_is_not_there_or_not_clear_is_said(wanted: Any, expected: Sequence[str]) -> None:
    with pytest.raises((RecordError, ArgumentError)) as error:
        model(*BERT)[wanted]
    for words in expected:
        assert words in said(error)


def test_some_layers_are_a_seen_again() -> None:
    seen = model(*T5)
    seen.tokens = [["a", "b", "c", "d", "e"]]
    for chosen, places in (
        (seen[2:5], [2, 3, 4]),
        (seen[-2:], [4, 5]),
        (seen[["decoder.block.1", 0]], [0, 4, 5]),
        (seen.only("*.self_attn"), [0, 1, 2, 4]),
        (seen.only("*.cross_attn", -2), [3, 4, 5]),
        (seen.only("encoder"), [0, 1]),
        (seen[6:], []),
    ):
        assert chosen.records == [seen.records[place] for place in places]
        assert chosen.tokens == seen.tokens
        assert chosen.coverage() is seen.coverage()
    assert seen[2:5].layers == T5[2:5]
    with pytest.raises(RecordError, match="no attention was seen at"):
        seen.only("*.self_attn", "vision")


@pytest.mark.parametrize("choose", [lambda seen: seen.only([]), lambda seen: seen.only(), lambda seen: seen[[]]])
def test_a_choice_of_no_layer_is_refused(choose: Any) -> None:
    with pytest.raises(ArgumentError, match=r"at least one layer. Received: layers=\[\]. To take all"):
        choose(model(*BERT))


def test_weights_are_those_of_the_record() -> None:
    seen = model(*BERT[:2])
    each = seen[1]
    assert torch.equal(seen[1,], each.weights())
    assert torch.equal(seen["layer.1", 0], each.weights(heads=0))
    assert torch.equal(seen[1, :, 2], each.weights(rows=2))
    assert torch.equal(seen[-1, [0, 1], 1:3, -1], each.weights(heads=[0, 1], rows=slice(1, 3), cols=-1))
    assert seen[1, 0, 2, 3].shape == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ((0, 2), "heads must lie in 0 … 1"),
        ((0, 0, 0, 5), "cols must lie in 0 … 4"),
        ((9, 0), "0 … 1"),
        ((BERT[0], BERT[1]), "give a list"),
        ((0, 0, 0, 0, 0), "expected seen[layer, heads, rows, cols]"),
        ((slice(0, 1), 0), "one layer"),
    ],
)
def test_weights_out_of_range_are_said(index: Any, words: str) -> None:
    with pytest.raises((RecordError, ArgumentError)) as error:
        model(*BERT[:2])[index]
    assert words in said(error)


# --- Several calls ----------------------------------------------------------------------------------------------------


def test_of_several_calls_one_is_chosen() -> None:
    seen = model("a", "b", calls=3)
    with pytest.raises(RecordError) as error:
        seen["a"]
    assert "a was called 3 times" in said(error)
    assert "seen.call(i)" in said(error)
    assert "0 … 2" in said(error)
    assert seen.call(1).records == seen.records[2:4]
    assert seen.call(-1).records == seen.records[4:]
    assert seen.call(0)["b"] is seen.records[1]
    with pytest.raises(RecordError, match="there is no call 3: the calls are 0 … 2"):
        seen.call(3)
    with pytest.raises(RecordError, match="there is no call -4"):
        seen.call(-4)


def test_calls_are_the_sites_own_numbers() -> None:
    seen = Seen([record("a", call=0), record("a", call=10), record("b", call=10)])
    assert seen.call(10).records == seen.records[1:]
    assert seen.call(-2).records == [seen.records[0]]
    with pytest.raises(RecordError, match="the calls are 0, 10"):
        seen.call(1)


def test_records_of_no_module_are_one_layer() -> None:
    seen = Seen([record(), record()])
    assert seen.layers == ["attention"]
    assert seen.call(1)["attention"] is seen.records[1]
    assert Seen([record()])["attention"].site is None


# --- Nothing, and what was missed -------------------------------------------------------------------------------------

COVERAGE = Coverage(
    (
        CallSite("encoder.0.attn", "seen", 1, "scaled_dot_product_attention"),
        CallSite("encoder.1.attn", "refused", 2, "linear attention has no weights"),
        CallSite("[odd].2", "missed", 0, "[bold] a fused op hides Q and K"),
    ),
    ("the fused encoder layer was turned off; outputs agree within 1e-6",),
)


def test_a_model_without_attention_is_told_in_a_sentence() -> None:
    seen = Seen([], Coverage(notes=("no attention was seen: looked for scaled_dot_product_attention",)))
    assert repr(seen) == "Seen(empty: no attention was seen: looked for scaled_dot_product_attention)"
    assert seen.layers == []
    for ask in (lambda: seen[0], lambda: seen["a"], lambda: seen.call(0), lambda: seen.only("*")):
        with pytest.raises(RecordError, match="no attention was seen: looked for scaled"):
            ask()
    assert "no attention was seen" in str(seen.summary())
    assert "2 places that compute it were not" in repr(Seen([], COVERAGE))


def test_a_layer_that_was_refused_says_why() -> None:
    seen = Seen([record("encoder.0.attn")], COVERAGE)
    with pytest.raises(RecordError, match=r"^encoder\.1\.attn was refused: linear attention has no weights$"):
        seen["encoder.1"]
    assert COVERAGE.refused == COVERAGE.sites[1:2]
    assert COVERAGE.missed == COVERAGE.sites[2:]


def test_coverage_is_a_table() -> None:
    lines = [line.split() for line in str(COVERAGE).splitlines()]
    assert lines[0] == ["status", "calls", "name", "how"]
    assert lines[2] == ["seen", "1", "encoder.0.attn", "scaled_dot_product_attention"]
    assert lines[3] == ["refused", "2", "encoder.1.attn", "linear", "attention", "has", "no", "weights"]
    assert lines[4][:4] == ["missed", "0", "[odd].2", "[bold]"]
    assert lines[-1][:2] == ["note:", "the"]
    assert "\x1b" not in str(COVERAGE)
    assert str(Coverage()) == "no place that computes attention was found"


def test_repr_is_one_line_that_helps() -> None:
    assert repr(Seen([record("a"), record("b")])) == "Seen(2 layers, B=1, H=2, Q=5, K=5)"
    several = Seen([record("a"), record("a", call=1, k_len=7), record("b")], COVERAGE)
    assert repr(several) == (
        "Seen(2 layers, 3 calls, B=1, H=2, Q=5, K=5…7, 1 missed, see coverage(), 1 refused, see coverage())"
    )


# --- Tokens -----------------------------------------------------------------------------------------------------------


def test_tokens_name_the_rows_and_columns() -> None:
    seen = Seen([record("a", batch=2)])
    assert seen.row_labels(seen[0]) is None
    seen.tokens = [list("abcde"), list("vwxyz")]
    assert seen.row_labels(seen[0]) == tuple("abcde")
    assert seen.col_labels(seen[0], b=1) == seen.col_labels(seen[0], -1) == tuple("vwxyz")
    with pytest.raises(ArgumentError, match="b must lie in 0 … 1"):
        seen.row_labels(seen[0], 2)
    seen.tokens = None
    assert seen.row_labels(seen[0]) is None


def test_every_image_of_a_batch_has_the_same_patches() -> None:
    seen = Seen([record("a", batch=3)])
    seen.tokens = Patches(2, 2)
    for image in range(3):
        assert seen.row_labels(seen[0], image) == ("[CLS]", "(0, 0)", "(0, 1)", "(1, 0)", "(1, 1)")


def encoder_decoder(source: int, target: int) -> Seen:
    encoder = record("model.encoder.0.attn", q_len=source, k_len=source)
    decoder = record("model.decoder.0.attn", q_len=target, k_len=target)
    return Seen([encoder, decoder, record("model.decoder.0.cross", kind="cross", q_len=target, k_len=source)])


@pytest.mark.parametrize("lengths", [(3, 5), (5, 5)], ids=str)
def test_an_encoder_decoder_has_two_sides(lengths: tuple[int, int]) -> None:
    seen = encoder_decoder(*lengths)
    source, target = (tuple(f"{side}{i}" for i in range(n)) for side, n in zip("st", lengths, strict=True))
    seen.tokens = {"source": [list(source)], "target": [list(target)]}
    assert [(seen.row_labels(each), seen.col_labels(each)) for each in seen] == [
        (source, source),
        (target, target),
        (target, source),
    ]
    assert (seen.tokens[0].labels, seen.source_tokens[0].labels) == (target, source)


def test_tokens_of_another_number_are_refused_and_the_old_ones_kept() -> None:
    seen = Seen([record("layer.0"), record("layer.1")])
    seen.tokens = [list("abcde")]
    for wrong, words in (
        ([list("abcd")], "layer.0 has B = 1, Q = 5, K = 5. Received: target tokens=4"),
        ([list("abcde")] * 2, "target tokens=[5, 5]"),
        ({"source": [list("abc")], "target": [list("abcdef")]}, "target tokens=6, source tokens=3"),
    ):
        with pytest.raises(RecordError) as error:
            seen.tokens = wrong
        assert words in said(error)
        assert seen.tokens[0].labels == tuple("abcde")
        assert seen.source_tokens is None


def test_what_is_missing_is_named_where_tokens_do_not_fit() -> None:
    with pytest.raises(RecordError, match=r"An encoder-decoder needs both: seen\.tokens = "):
        encoder_decoder(3, 5).tokens = [list("abcde")]
    seen = Seen([record("a"), record("a", call=1, q_len=7, k_len=7)])
    with pytest.raises(RecordError, match="Of several forward passes choose one first"):
        seen.tokens = [list("abcde")]
    with pytest.raises(RecordError, match="The last token that generate\\(\\) returns was never read"):
        Seen([record("a")]).tokens = [list("abcdef")]
    first = seen.call(0)
    first.tokens = [list("abcde")]
    assert first.row_labels(first[0]) == tuple("abcde")


def test_statistics_by_layer() -> None:
    seen = model("b", "a")
    found = seen.statistics("entropy", "top", top=2)
    assert list(found) == ["b", "a"]
    assert found["b"].received is None
    assert found["b"].top.weights.shape == (1, 2, 5, 2)
    torch.testing.assert_close(found["a"].entropy, seen["a"].entropy())
    with pytest.raises(RecordError, match="called 2 times"):
        model("a", calls=2).statistics("entropy")


def test_tokens_are_chosen_by_their_text() -> None:
    q = torch.randn(2, 2, 4, 8)
    kept = headwise.attention(q, q, q, record=True)[1]
    seen = Seen([kept])
    seen.tokens = [["the", "cat", "the", "mat"], ["the", "cat", "a", "dog"]]
    assert torch.equal(seen[0, 1, "cat"], kept.weights(1, heads=1))
    assert torch.equal(seen[0, :, "cat", ["cat", 0]], kept.weights(1, [1, 0]))
    assert {row.looks_label for row in seen.summary("cat")} == {"cat"}
    with pytest.raises(
        ArgumentError,
        match=r"rows: 'the' occurs at 0 and 2. Choose one: rows=0, the same as rows='the:1'; or rows=2",
    ):
        seen[0, :, "the"]
    with pytest.raises(ArgumentError, match=r"cols: 'mat' is not among the tokens"):  # of the second example
        seen[0, :, :, "mat"]
    seen.tokens = [["the", "cat", "b", "mat"], ["cat", "the", "a", "dog"]]
    with pytest.raises(ArgumentError, match=r"rows: 'cat' is at other positions in other examples"):
        seen[0, :, "cat"]
