"""What a page shows of whatever was seen: what stands together, what it is called, and how Python finds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import headwise
from headwise.errors import ArgumentError, DtypeError, RecordError
from headwise.records import AttentionRecord, Coverage, Seen
from headwise.records.coverage import CallSite
from headwise.text import Patches
from headwise.viewer import Input, inputs_of

from .conftest import look, placed, record, tokens


def names(inputs: list[Input]) -> list[str]:
    return [each.name for each in inputs]


def stacks(given: Input) -> dict[str, list[str]]:
    return {stack.name: [layer.name for layer in stack.layers] for stack in given.stacks}


def translator(batch: int = 1) -> Seen:
    """An encoder of 5 tokens and a decoder of 3, two layers each, in the order in which a model computes them."""
    records = [placed(record(length=5, batch=batch), f"encoder.{i}.attn", i) for i in range(2)]
    for i in range(2):
        records.append(placed(record(length=3, batch=batch), f"decoder.{i}.attn", i))
        records.append(placed(record(length=3, keys=5, batch=batch), f"decoder.{i}.cross", i, kind="cross"))
    seen = Seen(records)
    source, target = tokens(["ein", "Satz", "von", "mir", "."]), tokens(["a", "sentence", "!"])
    seen.tokens = {"source": [source] * batch, "target": [target] * batch}
    return seen


# --- Stacks -----------------------------------------------------------------------------------------------------------


def test_the_layers_of_one_model_are_one_stack() -> None:
    (given,) = inputs_of(look(record(), record(), record()))
    (stack,) = given.stacks
    assert (stack.name, stack.kind) == ("self", "self")
    assert [layer.number for layer in stack.layers] == [0, 1, 2]
    assert stack.rows is stack.cols or stack.rows == stack.cols
    assert stack.rows.tokens.labels == tuple(f"w{i}" for i in range(9))


def test_an_encoder_decoder_has_three_stacks_with_their_own_axes() -> None:
    (given,) = inputs_of(translator())
    assert stacks(given) == {
        "encoder": ["encoder.0.attn", "encoder.1.attn"],
        "decoder": ["decoder.0.attn", "decoder.1.attn"],
        "cross": ["decoder.0.cross", "decoder.1.cross"],
    }
    axes = {stack.name: (stack.rows.tokens.labels[0], stack.cols.tokens.labels[0]) for stack in given.stacks}
    assert axes == {"encoder": ("ein", "ein"), "decoder": ("a", "a"), "cross": ("a", "ein")}
    assert [stack.kind for stack in given.stacks] == ["self", "self", "cross"]
    assert [layer.number for layer in given.stacks[2].layers] == [3, 5]
    assert given.name == "ein Satz von mir ."


def test_forward_passes_and_towers_are_stacks_of_their_own() -> None:
    seen = Seen([placed(record(length=4 + call), f"{i}.attn", i, call=call) for call in range(2) for i in range(2)])
    (given,) = inputs_of(seen)
    assert stacks(given) == {"self · call 0": ["0.attn", "1.attn"], "self · call 1": ["0.attn", "1.attn"]}

    (given,) = inputs_of(Seen([placed(record(length=4), "vision.0"), placed(record(length=6), "text.0")]))
    assert stacks(given) == {"self · 4 × 4": ["vision.0"], "self · 6 × 6": ["text.0"]}


def test_more_keys_than_queries_are_numbered_from_the_end() -> None:
    (given,) = inputs_of(Seen([placed(record(length=2, keys=5), "attn")]))
    (stack,) = given.stacks
    assert stack.rows.tokens.labels == ("3", "4")
    assert stack.cols.tokens.labels == ("0", "1", "2", "3", "4")
    assert stack.rows.tokens.ids == (-1, -1)


def test_a_record_alone_is_an_input() -> None:
    square, wide = record(), record(length=2, keys=5)
    (given,) = inputs_of(square)
    assert stacks(given) == {"self": ["attention"]}
    assert given.stacks[0].layers[0].record is square
    assert given.stacks[0].rows.tokens.labels == tuple("012345678")
    assert inputs_of(wide)[0].stacks[0].kind == "cross"  # nobody said that it is not
    assert inputs_of(wide)[0].stacks[0].rows.tokens.labels == ("0", "1")

    for each in (record(), placed(record(), "layers.0")):
        assert inputs_of(each)[0].stacks[0].layers[0].expression == "record"


def test_records_of_no_module_are_layers_in_their_order() -> None:
    (given,) = inputs_of(Seen([record(), record()]))
    assert stacks(given) == {"self": ["attention 0", "attention 1"]}
    assert [layer.number for layer in given.stacks[0].layers] == [0, 1]


def test_layers_can_be_chosen_and_keep_their_numbers() -> None:
    (given,) = inputs_of(translator(), layers=[0, 3])
    assert stacks(given) == {"encoder": ["encoder.0.attn"], "cross": ["decoder.0.cross"]}
    assert given.stacks[1].layers[0].expression == "seen[3]"


# --- Inputs -----------------------------------------------------------------------------------------------------------


def test_every_example_of_a_batch_is_an_input() -> None:
    seen = translator(batch=3)
    seen.tokens = {
        "source": [tokens(list(text)) for text in ("abcde", "fghij", "klmno")],
        "target": [tokens(list(text)) for text in ("xyz", "uvw", "rst")],
    }
    given = inputs_of(seen)
    assert names(given) == ["a b c d e · 1 of 3", "f g h i j · 2 of 3", "k l m n o · 3 of 3"]
    assert [each.stacks[2].rows.tokens.labels for each in given] == [tuple("xyz"), tuple("uvw"), tuple("rst")]
    assert [each.stacks[2].layers[1].example for each in given] == [0, 1, 2]
    assert names(inputs_of(record(batch=2))) == ["input · 1 of 2", "input · 2 of 2"]


def test_a_pass_over_fewer_examples_is_in_fewer_inputs() -> None:
    seen = Seen([placed(record(batch=1), "attn", call=0), placed(record(batch=2), "attn", call=1)])
    assert [list(stacks(each)) for each in inputs_of(seen)] == [["self · call 0", "self · call 1"], ["self · call 1"]]


def test_several_are_named_by_a_mapping_or_by_their_texts() -> None:
    first, second = look(record(), labels=list("abcdefghi")), look(record(batch=2))
    assert names(inputs_of({"before": first, "after": second})) == ["before", "after · 1 of 2", "after · 2 of 2"]
    assert names(inputs_of([first, record()])) == ["a b c d e f g h i", "input"]
    assert names(inputs_of([first, first])) == ["a b c d e f g h i (1)", "a b c d e f g h i (2)"]

    (given,) = inputs_of(look(record(length=40), labels=["word\n"] * 40))
    assert given.name == "word " * 12 + "…"


SEEN: dict[str, Callable[[], Any]] = {
    "layers": lambda: look(record(), record(), record()),
    "an encoder-decoder": translator,
    "calls": lambda: Seen(
        [
            placed(record(length=4), "once"),
            *(placed(record(length=4 + call), "twice", call=call) for call in range(2)),
            placed(record(length=5), "late", call=1),
        ]
    ),
    "no modules": lambda: Seen([record(), record(length=5)]),
    "a mapping": lambda: {'a "name"\n': look(record()), "another": record(), "动": Seen([record(), record()])},
    "a list": lambda: [look(record()), record(), placed(record(), "layers.0")],
}


@pytest.mark.parametrize("name", SEEN)
def test_the_python_of_each_layer_gives_its_record(name: str) -> None:
    seen = SEEN[name]()
    layers = [layer for each in inputs_of(seen) for stack in each.stacks for layer in stack.layers]
    for layer in layers:
        assert eval(layer.expression, {"seen": seen}) is layer.record
    every = seen.values() if isinstance(seen, dict) else [seen] if isinstance(seen, Seen) else seen
    assert len(layers) == sum(1 if isinstance(each, AttentionRecord) else len(each) for each in every)


# --- Images and prompts -----------------------------------------------------------------------------------------------


def seen_image(batch: int = 1) -> Seen:
    seen = Seen([placed(record(length=5, batch=batch), f"layers.{i}", i) for i in range(2)])
    seen.tokens = Patches(2, 2)
    return seen


def test_an_image_goes_to_the_axes_that_are_its_patches() -> None:
    (given,) = inputs_of(seen_image(), images=torch.zeros(4, 4))
    assert given.stacks[0].rows.image.uri.startswith("data:image/png;base64,")
    assert given.stacks[0].rows == given.stacks[0].cols
    both = inputs_of(seen_image(2), images=[torch.zeros(4, 4), None])
    assert [each.stacks[0].rows.image is not None for each in both] == [True, False]


def test_images_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"images: input has no tokens that are patches .* seen.tokens = headwise.text.Patches"
    ):
        inputs_of(record(), images=torch.zeros(4, 4))
    with pytest.raises(ArgumentError, match=r"images: expected one for each of the 2 inputs. Received: 3"):
        inputs_of(seen_image(2), images=[None] * 3)


def test_a_prompt_is_marked_on_what_the_model_wrote() -> None:
    (given,) = inputs_of(look(record()), generated=6)
    assert (given.stacks[0].rows.generated, given.stacks[0].cols.generated) == (6, 6)
    (given,) = inputs_of(translator(), generated=1)
    told = {stack.name: (stack.rows.generated, stack.cols.generated) for stack in given.stacks}
    assert told == {"encoder": (None, None), "decoder": (1, 1), "cross": (1, None)}
    both = inputs_of(look(record(batch=2)), generated=[3, None])
    assert [each.stacks[0].rows.generated for each in both] == [3, None]


@pytest.mark.parametrize("prompt", [-1, True, "3", 2.0, 9, 100])
def test_a_prompt_is_a_number_of_tokens(prompt: Any) -> None:
    said = (
        "the number of tokens in the prompt" if prompt in (-1, True, "3", 2.0) else f"fewer .* Received: {prompt} of 9"
    )
    with pytest.raises(ArgumentError, match=f"generated: expected {said}"):
        inputs_of(look(record()), generated=prompt)


# --- Nothing to show --------------------------------------------------------------------------------------------------


def test_nothing_seen_says_why() -> None:
    coverage = Coverage((CallSite("layer.0", "refused", 1, "made of something else"),), ())
    with pytest.raises(RecordError, match=r"no attention was seen. 1 place that computes it was not: print\(seen.cov"):
        inputs_of(Seen([], coverage))
    with pytest.raises(ArgumentError, match=r"expected at least one Seen or record. Received: an empty collection"):
        inputs_of({})


@pytest.mark.parametrize("given", [3, "run.hw", Path("run.hw"), [3], {"a": None}])
def test_what_is_no_attention_is_refused(given: Any) -> None:
    with pytest.raises(DtypeError, match=r"expected a Seen of headwise.watch, a record, or a list"):
        inputs_of(given)


def test_a_record_without_queries_is_refused() -> None:
    q = torch.zeros(1, 2, 0, 4)
    seen = look(headwise.attention(q, q, q, record=True)[1])
    with pytest.raises(RecordError, match=r"layers.0: nothing to show for Q = 0 queries and K = 0 keys"):
        inputs_of(seen)
