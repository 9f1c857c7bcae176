"""A model that a page carries, run in node, against the same model in Python by the portable kernels."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headwise import edit, edits, watch
from headwise.call import AttentionCall, make_call
from headwise.errors import ArgumentError
from headwise.models import Bert, BertConfig, SmallEncoder, SmallEncoderConfig, TextClassifier
from headwise.models.bert import Embeddings
from headwise.models.checkpoint import default_model
from headwise.models.packed_encoder import pack_for
from headwise.native.library import instruction_set, use
from headwise.native.linear import Encoder, quantise
from headwise.records import AttentionRecord
from headwise.records.summary import ask, numbers
from headwise.tasks import Classify
from headwise.tasks.options.classify import ClassifyOptions
from headwise.viewer.carried import WASM, carry, carry_classifier
from tests.conftest import missing
from tests.models.test_packed_encoder import small

from .node import evaluate

SEED = random.randrange(2**31)  # other ids and heads in each run; pytest prints it where a test fails
CODE = """
    const { readFileSync } = await import("node:fs");
    const { Encoder } = await use("model/encoder.js");
    const encoder = await Encoder.load(readFileSync(given.wasm), given.facts, readFileSync(given.bytes));
    return given.texts.map(({ ids, gates }) => encoder.run(ids, gates));
"""


@contextlib.contextmanager
def as_portable() -> Iterator[None]:
    """Python computes by the instructions that WebAssembly has."""
    before = instruction_set()
    if before is None:
        missing("no native kernels here: python headwise/native/build.py compiles them")
    use("portable")
    yield
    use(before)


@pytest.fixture
def portable() -> Iterator[None]:
    with as_portable():
        yield


def minilm() -> Bert:
    return Bert.from_pretrained(default_model())


def drawn(bert: Bert, lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Texts of random ids: each once as it is, and once with a random half of the heads off."""
    print(f"seed {SEED}")
    draw, config = random.Random(SEED), bert.config
    texts = []
    for length in lengths:
        ids = [draw.randrange(config.vocab_size) for _ in range(length)]
        heads = config.num_layers * config.num_heads
        off = [float(draw.random() < 0.5) for _ in range(heads)]
        texts += [{"ids": ids, "gates": gates} for gates in (None, off)]
    return texts


def in_the_page(model: Bert | TextClassifier, dtype: Any, texts: list[dict[str, Any]], folder: Path) -> list[Any]:
    facts, data = carry(model, dtype)
    (folder / "bytes").write_bytes(data)
    facts = json.loads(json.dumps(facts))
    return evaluate(CODE, {"wasm": str(WASM), "facts": facts, "bytes": str(folder / "bytes"), "texts": texts})


def pack_as_the_page(bert: Bert, dtype: Any) -> Encoder:
    if dtype == "int8":  # the page rounds embeddings of words, too
        bert = copy.deepcopy(bert)
        rows, scale = quantise(bert.embeddings.word.weight)
        bert.embeddings.word.weight = nn.Parameter(rows * scale[:, None])
    encoder = pack_for(bert, Embeddings, dtype)
    assert encoder is not None
    return encoder


@torch.no_grad()
def in_python(encoder: Encoder, text: dict[str, Any]) -> tuple[Tensor, list[AttentionCall]]:
    """The hidden states [T, M], and the call of each layer, by the packed encoder."""
    length = len(text["ids"])
    types = torch.zeros(length, dtype=torch.long)
    given = (torch.tensor(text["ids"]), types, torch.arange(length), torch.tensor([0, length]))
    gates = None if text["gates"] is None else torch.tensor(text["gates"])
    qkv = encoder.room_for_qkv(length)
    hidden = encoder.embed(*given, qkv, gates)
    return hidden, [make_call(*x[:, None], scale=encoder.scale) for x in qkv.float().permute(0, 2, 3, 1, 4)]


def weights(layer: dict[str, Any], heads: int, tokens: int, scale: float) -> np.ndarray:
    """A layer's weights [H, T, T] from what the page has, as it computes them."""
    q, k = (np.array(layer[name]).reshape(heads, tokens, -1) for name in ("q", "k"))
    scores: np.ndarray = q @ k.transpose(0, 2, 1) * scale
    return np.exp(scores - np.array(layer["lse"]).reshape(heads, tokens, 1))


@pytest.mark.usefixtures("portable")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize(("make", "lengths"), [(lambda: small(80), (1, 2, 65, 80)), (minilm, (3, 40))])
def test_equals_python(make: Any, lengths: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    bert = make()
    packed = pack_as_the_page(bert, dtype)
    texts = drawn(bert, lengths)
    for text, found in zip(texts, in_the_page(bert, dtype, texts, tmp_path), strict=True):
        hidden, calls = in_python(packed, text)
        np.testing.assert_array_equal(np.array(found["hidden"], np.float32), hidden.flatten())
        for layer, call in zip(found["layers"], calls, strict=True):
            for name in ("q", "k"):
                np.testing.assert_array_equal(np.array(layer[name], np.float32), getattr(call, name).flatten())
            record = AttentionRecord(call)
            ours = weights(layer, *call.shape[1:3], call.scale)
            np.testing.assert_allclose(ours, record.weights()[0], rtol=0, atol=1e-5)
            statistics = numbers(ask(record, "self"), "self", (0, 2))
            assert layer["stats"].keys() == statistics.keys()
            for name, expected in statistics.items():
                told = np.array(layer["stats"][name], float)
                np.testing.assert_allclose(told, expected, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.usefixtures("portable")
def test_heads_off_as_in_an_edit(tmp_path: Path) -> None:
    bert = minilm()
    *_, text = texts = drawn(bert, (40,))
    layers, heads = bert.config.num_layers, bert.config.num_heads
    off = (torch.tensor(text["gates"]).view(layers, heads) == 0).nonzero().tolist()
    cut = [edits.ablate(f"layers.{layer}.attention", heads=[head]) for layer, head in off]
    with torch.no_grad(), edit(bert, cut), watch(bert) as seen:
        bert(torch.tensor([text["ids"]]))
    found = in_the_page(bert, "float32", texts, tmp_path)
    largest = 0.0
    for with_all, layer, record in zip(found[0]["layers"], found[1]["layers"], seen.records, strict=True):
        ours = weights(layer, heads, 40, record.call.scale)
        np.testing.assert_allclose(ours, record.weights()[0], rtol=0, atol=1e-5)
        largest = max(largest, float(np.abs(ours - weights(with_all, heads, 40, record.call.scale)).max()))
    assert largest > 0.01  # the heads matter


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_classifier(pooling: Any, tmp_path: Path) -> None:
    classifier = TextClassifier(small(80), 3, pooling=pooling).eval()
    texts = drawn(classifier.encoder, (7,))[:1]
    (found,) = in_the_page(classifier, "float32", texts, tmp_path)
    code = """
        const { probabilitiesOf } = await use("model/follows.js");
        return probabilitiesOf({ ...given.head, labels: [0, 1, 2] }, given.hidden, given.hidden);
    """
    told = evaluate(code, {"head": carry(classifier, "float32")[0]["head"], "hidden": found["hidden"]})
    with torch.no_grad():
        expected = classifier(torch.tensor([texts[0]["ids"]]))[0].softmax(-1)
    for each in told["tokens"]:
        assert each["plain"] == each["edited"] == pytest.approx(float(expected[each["text"]]), abs=1e-5)


def test_what_cannot_be_carried() -> None:
    other = Bert(BertConfig(50, 24, 2, 2, 40, 80, relative_buckets=8))
    with pytest.raises(ArgumentError, match=r"such as MiniLM.* Received: Bert \(bert\)$"):
        carry(other)
    classifier = TextClassifier(SmallEncoder(SmallEncoderConfig(50, 24)), 3)
    with pytest.raises(ArgumentError, match=r"Received: SmallEncoder$"):
        carry(classifier)
    pairs = Classify(ClassifyOptions(text_pair="b"), classifier, None, {"+": 1, "-": 1})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"a classifier of pairs of texts$"):
        carry_classifier(pairs)


def test_a_damaged_model_and_a_text_too_long(tmp_path: Path) -> None:
    facts, data = carry(small(80))
    (tmp_path / "bytes").write_bytes(data)
    code = """
        const { readFileSync } = await import("node:fs");
        const { Encoder } = await use("model/encoder.js");
        const [wasm, bytes, said] = [readFileSync(given.wasm), readFileSync(given.bytes), []];
        const sayOf = async (what) => said.push(await what().then(() => "nothing", (error) => error.message));
        const load = (facts, bytes) => Encoder.load(wasm, facts, bytes);
        await sayOf(() => load(given.facts, bytes.subarray(16)));
        const encoder = await load(given.facts, bytes);
        const packedFor = await load({ ...given.facts, strip: 16 }, bytes);
        await sayOf(async () => packedFor.run([1]));
        for (const ids of [[], Array(81).fill(1), [50], [-1]]) await sayOf(async () => encoder.run(ids));
        return said;
    """
    said = evaluate(code, {"wasm": str(WASM), "facts": facts, "bytes": str(tmp_path / "bytes")})
    assert said == [
        "The file is damaged: its model is not complete.",
        "The encoder refuses 1 tokens: the weights are packed for another instruction set: pack them again.",
        *(f"The model reads 1 to 80 tokens. Received: {tokens}." for tokens in (0, 81)),
        *2 * ["The encoder refuses 1 tokens: a size is below 1, or too large."],
    ]
