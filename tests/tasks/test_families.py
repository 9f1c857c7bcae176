"""Tasks that begin with a checkpoint of another family than BERT's: its signs, its token types, its kind when saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

from headwise import tasks
from headwise.errors import CheckpointError
from headwise.models import Bert
from headwise.tasks.answer import Answer
from headwise.tasks.classify import Classify
from headwise.tasks.language import Language
from headwise.tasks.text.subwords import Subwords
from headwise.tasks.translate import Translate
from headwise.text import Tokenizer
from tests.tasks.text.checkpoints import CHECKPOINTS

PAIRS: dict[str, Any] = {
    "text": ["a good film", "a bad film", "so good", "so bad"] * 3,
    "other": ["the cat", "the dog saw the cat", "who", "a cat saw"] * 3,
    "label": ["+", "-"] * 6,
}
QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 4, "monitor_every": 0}


@pytest.fixture(params=CHECKPOINTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / str(request.param)
    folder.mkdir()
    CHECKPOINTS[request.param](folder)
    return folder


def test_ids_and_types_are_those_of_the_tokenizer(checkpoint: Path) -> None:
    subwords = Subwords.from_pretrained(checkpoint)
    backend = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    texts = ["a good film", "who saw the dog"]
    one, two = (pieces.ids for pieces in subwords.pieces(texts))
    for found, expected in ((subwords.pair(one), texts[:1]), (subwords.pair(one, two), texts)):
        encoding = backend.encode(*expected)
        assert found == (encoding.ids, encoding.type_ids)
        assert subwords.size(subwords.pieces(expected)) == len(encoding.ids)
    assert subwords.name(subwords.pad) in ("[PAD]", "<pad>")
    read = subwords.read(texts)
    kept = subwords.named(read, [slice(2), slice(1)])
    assert list(kept.ids) == subwords.pair(one[:2], two[:1])[0]


def test_padding_and_mask_are_signs_not_words(tmp_path: Path) -> None:
    CHECKPOINTS["mpnet"](tmp_path)
    subwords = Subwords.from_pretrained(tmp_path)
    assert [subwords.name(id_) for id_ in (subwords.cls, subwords.sep, subwords.pad)] == ["<s>", "</s>", "<pad>"]
    assert [subwords.name(id_) for id_ in (subwords.mask, subwords.unknown)] == ["<mask>", "[UNK]"]


def test_classify_pairs(checkpoint: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = {"text_pair": "other", "model": str(checkpoint), "out": run, "max_length": 12, **QUICK}
    task = Classify.fit(PAIRS, validation=PAIRS, **options)
    inputs = list(zip(PAIRS["text"], PAIRS["other"], strict=True))[:4]
    found = task.predict(inputs)
    again = tasks.load(run)
    assert again.predict(inputs) == found
    encoder = again.model.encoder
    assert isinstance(encoder, Bert)
    assert encoder.config == task.model.encoder.config
    assert encoder.config.family == Bert.from_pretrained(checkpoint).config.family
    # In a padded batch, and looked at, a pair gets the probabilities that it gets alone.
    batch = task.collate(task.encode(task._inputs(inputs), targets=False))
    with torch.no_grad():
        shares = task._logits(batch).softmax(-1).max(-1).values
    torch.testing.assert_close(shares, torch.tensor([each["probability"] for each in found]), atol=1e-5, rtol=0)
    tokens = task.look(inputs[1:2])[0].tokens[0]
    assert list(tokens.ids) == task.encode(task._inputs(inputs[1:2]), targets=False)[0].ids


def test_answer(checkpoint: Path) -> None:
    data = {
        "question": ["who saw the cat", "who is bad"] * 4,
        "context": ["the dog saw the cat", "so bad the dog"] * 4,
        "answer": ["the dog", "the dog"] * 4,
    }
    task = Answer.fit(data, validation=data, model=str(checkpoint), max_length=48, **QUICK)
    found = task.predict(list(zip(data["question"], data["context"], strict=True)))
    for each, context in zip(found, data["context"], strict=True):
        assert each["answer"] == each["answer"].strip()
        assert each["start"] is None or context[each["start"] :].startswith(each["answer"])
    window = task.encode(task.read(data, task.options))[0]
    inside = task.collate([window])["in_context"][0]
    ids = torch.tensor(window.ids)[inside]
    assert ids.tolist() == task.subwords.pieces(["the dog saw the cat"])[0].ids


def test_masked_language_is_for_berts(tmp_path: Path) -> None:
    CHECKPOINTS["roberta"](tmp_path)
    with pytest.raises(CheckpointError, match=r"expected a BERT, whose head .* Received: family='roberta'"):
        Language.fit({"text": PAIRS["text"]}, model=str(tmp_path), **QUICK)


def test_translate(checkpoint: Path) -> None:
    data = {"source": PAIRS["text"], "target": PAIRS["other"]}
    task = Translate.fit(data, validation=data, model=str(checkpoint), max_source_length=16, **QUICK)
    assert len(task.predict(["a good film"])) == 1


def test_a_vocabulary_without_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["<s>", "</s>", "[UNK]", "[CLS]", "[SEP]", "cat"]), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"not a BERT vocabulary: it has <s>.*tokenizer\.json"):
        Tokenizer.from_pretrained(tmp_path)


def test_a_tokenizer_without_signs(tmp_path: Path) -> None:
    CHECKPOINTS["roberta"](tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.post_processor = tokenizers.processors.ByteLevel()
    with pytest.raises(CheckpointError, match="one without signs before and after a text"):
        Subwords(Tokenizer(backend))
