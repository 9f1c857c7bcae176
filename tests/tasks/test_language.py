"""`Language`: what it reads, hides and finds again; that it looks where the same words stood before."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from headwise import tasks
from headwise.errors import ArgumentError, CheckpointError
from headwise.models import Bert
from headwise.models.language_model import MaskedLanguageModel
from headwise.nn import Cache
from headwise.tasks.language import Language, Masked, _filled
from headwise.tasks.options.language import LanguageOptions
from headwise.tasks.rows.corpus import read_corpus
from headwise.tasks.text import encoders
from headwise.tasks.text.subwords import Subwords
from tests.tasks.problems import WORDS, twice

TINY: dict[str, Any] = {"dim": 32, "layers": 2, "heads": 2, "vocab_size": 300, "dropout": 0.0, "monitor_every": 0}
TEXTS = ["the cat sat on the mat", "the dog sat on the cat", "a dog and a cat"] * 2


def learn(texts: Any = TEXTS, **options: Any) -> Language:
    """A task before its first step."""
    chosen = LanguageOptions(**{**TINY, **options})
    return Language.learn(Language.read(texts, chosen), chosen)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Language, Path]:
    folder = tmp_path_factory.mktemp("masked") / "run"
    options = {**TINY, "dim": 64, "epochs": 10, "lr": 3e-3, "batch_size": 32, "block": 16}
    return Language.fit(twice(500), validation=twice(60, seed=1), out=folder, **options), folder


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Language, Path]:
    folder = tmp_path_factory.mktemp("causal") / "run"
    options = {**TINY, "epochs": 8, "lr": 1e-2, "batch_size": 32, "block": 16, "objective": "causal"}
    return Language.fit(twice(500), validation=twice(60, seed=1), out=folder, **options), folder


# --- They learn, by looking where the answer is -----------------------------------------------------------------------


def test_masked_words_are_found_by_their_twins(masked: tuple[Language, Path]) -> None:
    task, _ = masked
    scores = task.evaluate(twice(60, seed=2))
    assert scores.values["accuracy"] >= 0.95
    assert scores.values["perplexity"] < 1.3
    (unigram,) = scores.baselines.values()
    assert unigram["accuracy"] < 0.3
    assert unigram["perplexity"] > 6


def test_the_record_shows_that_a_mask_attends_to_its_twin(masked: tuple[Language, Path]) -> None:
    task, _ = masked
    right = 0
    for line in twice(20, seed=3):
        words = line.split()
        (seen,) = task.look([" ".join(["[MASK]", *words[1:]])])
        assert seen.tokens[0].labels == ("[CLS]", "[MASK]", *words[1:], "[SEP]")
        most = max(float(seen[layer].weights()[0, :, 1, 1 + 4].max()) for layer in range(2))
        right += most > 0.5
    assert right >= 18


def test_the_next_word_is_found_by_induction(causal: tuple[Language, Path]) -> None:
    task, _ = causal
    scores = task.evaluate(twice(60, seed=2))
    # Of 8 words and [EOS] the first 4 are one of 8 each, and the others certain.
    assert scores.values["perplexity"] < 1.1 * math.exp(4 * math.log(8) / 9)
    lines = [line.split() for line in twice(20, seed=3)]
    written = task.predict([" ".join(words[:5]) for words in lines])
    found = [row["continuation"].split() == words[5:] for row, words in zip(written, lines, strict=True)]
    assert sum(found) >= 18


def test_the_record_shows_that_the_next_word_is_looked_for_behind_its_twin(causal: tuple[Language, Path]) -> None:
    task, _ = causal
    right = 0
    for line in twice(20, seed=3):
        (seen,) = task.look([line])
        # [BOS] 1 2 3 4 1 2 3 4 [EOS]: the second "1", at 5, has to find 2, which is at 2.
        most = max(float(seen[layer].weights()[0, :, 5, 2].max()) for layer in range(2))
        right += most > 0.5
        assert float(seen[0].weights()[0, :, 5, 6:].max()) == 0  # causal
    assert right >= 18


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_the_run_folder_predicts_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    task, folder = request.getfixturevalue(kind)
    again = tasks.load(folder)
    assert isinstance(again, Language)
    asked = ["ant bee [MASK] dog ant"]
    assert again.predict(asked) == task.predict(asked)
    held = twice(20, seed=5)
    assert again.evaluate(held).values == task.evaluate(held).values


# --- The checkpoint of a masked run -----------------------------------------------------------------------------------


def test_a_masked_model_is_saved_as_a_checkpoint_that_transformers_reads(
    masked: tuple[Language, Path], tmp_path: Path
) -> None:
    task, _ = masked
    assert isinstance(task, Masked)
    task.save_pretrained(tmp_path)
    theirs = transformers.BertForMaskedLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([task.pieces(twice(1, seed=4))[0]])
    with torch.no_grad():
        expected, ours = theirs(ids).logits, task.model(ids)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    bert = Bert.from_pretrained(tmp_path)
    assert torch.equal(bert(ids), task.model.bert(ids))
    assert Subwords.from_pretrained(tmp_path).pieces(["ant bee"]) == task.subwords.pieces(["ant bee"])


def test_another_task_goes_on_from_the_run_itself(masked: tuple[Language, Path]) -> None:
    task, folder = masked
    bert, subwords = encoders.pretrained(str(folder), [], dropout=0.2)
    assert bert.config.dropout == 0.2
    assert subwords.pieces(["ant bee"]) == task.subwords.pieces(["ant bee"])
    assert {name: tensor.tolist() for name, tensor in bert.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in task.model.bert.state_dict().items()
    }


@pytest.mark.parametrize("source", ["run", "checkpoint"])
def test_training_goes_on_with_the_head(source: str, masked: tuple[Language, Path], tmp_path: Path) -> None:
    task, folder = masked
    assert isinstance(task, Masked)
    if source == "checkpoint":
        task.save_pretrained(folder := tmp_path)
    again = learn(twice(8), model=str(folder), block=16)
    assert isinstance(again.model, MaskedLanguageModel)
    assert again.evaluate(twice(60, seed=2)).values["accuracy"] >= 0.95


# --- What is hidden ---------------------------------------------------------------------------------------------------


def test_fifteen_of_a_hundred_are_hidden_and_of_these_eighty_ten_ten() -> None:
    task = learn(mask_share=0.15)
    subwords = task.subwords
    words = subwords.pieces([TEXTS[0]])[0].ids
    ids = torch.tensor([subwords.pair(words * 20)[0]] * 100)
    torch.manual_seed(0)
    hidden, seen = task._drawn(ids, torch.ones_like(ids, dtype=torch.bool))
    assert not hidden[:, 0].any()  # [CLS]
    assert not hidden[:, -1].any()  # [SEP]
    assert float(hidden[:, 1:-1].float().mean()) == pytest.approx(0.15, abs=0.01)
    assert torch.equal(seen[~hidden], ids[~hidden])
    masks = float((seen[hidden] == subwords.mask).float().mean())
    same = float((seen[hidden] == ids[hidden]).float().mean())
    other = 0.1 / (len(subwords) - 5)  # a random token may be the one that stood there
    assert masks == pytest.approx(0.8, abs=0.03)
    assert same == pytest.approx(0.1 + other, abs=0.03)
    assert not torch.isin(seen[hidden], torch.tensor([subwords.pad, subwords.cls, subwords.sep])).any()


def test_hidden_places_change_in_training_and_stay_in_validation() -> None:
    task = learn()
    batch = task.collate(task.encode(Language.read(TEXTS, task.options)))
    torch.manual_seed(0)
    first, again = (task._drawn(batch["input_ids"], batch["real"])[0] for _ in range(2))
    assert not torch.equal(first, again)
    assert torch.equal(batch["fixed"], task.collate(task.encode(Language.read(TEXTS, task.options)))["fixed"])
    assert batch["fixed"].any(1).all()  # one of each text at least
    assert not (batch["fixed"] & ~batch["real"]).any()


def test_padding_changes_no_loss() -> None:
    task = learn().eval()
    examples = task.encode(Language.read(TEXTS[:3], task.options))
    with torch.no_grad():
        together = task.loss(task.collate(examples))
        alone = [task.loss(task.collate([example])) for example in examples]
    assert int(together[1]) == sum(int(count) for _, count in alone)
    assert float(together[0]) == pytest.approx(sum(float(total) for total, _ in alone), rel=1e-5)


def test_scores_of_a_model_that_knows_nothing_are_those_of_chance() -> None:
    task = learn(["ant bee"] * 6, objective="causal").eval()
    for parameter in task.model.parameters():
        parameter.data.zero_()
    scores = task.evaluate(["ant bee"] * 3)
    assert scores.values["perplexity"] == pytest.approx(len(task.vocabulary))  # all tokens are as likely
    (unigram,) = scores.baselines.values()
    assert unigram["perplexity"] == pytest.approx(3)  # ant, bee and the end
    assert unigram["accuracy"] == pytest.approx(1 / 3)
    assert scores.count == 3


# --- Pieces -----------------------------------------------------------------------------------------------------------


def test_masked_pieces_are_of_one_document_and_hold_each_token_once() -> None:
    task = learn(block=8)
    subwords = task.subwords
    texts = ["the cat sat on the mat and the dog", "a dog"]
    pieces = task.pieces(texts)
    assert [len(piece) for piece in pieces] == [8, 5, 4]
    for piece in pieces:
        assert (piece[0], piece[-1]) == (subwords.cls, subwords.sep)
    found = [number for piece in pieces for number in piece[1:-1]]
    assert found == [number for each in subwords.pieces(texts) for number in each.ids]


def test_causal_pieces_have_each_token_to_find_once() -> None:
    task = learn(block=8, objective="causal")
    texts = ["the cat sat on the mat and the dog sat on the cat", "a dog"]
    whole = task.vocabulary.encode(texts)
    pieces = task.pieces(texts)
    assert [number for piece in pieces for number in piece[1:]] == [number for ids in whole for number in ids[1:]]
    assert max(map(len, pieces)) == 9


# --- Corpora ----------------------------------------------------------------------------------------------------------


def test_documents_are_what_blank_lines_part(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\nfirst line\nsecond line\n\n\nthird line\n \n", encoding="utf-8")
    data = read_corpus(path, "text")
    assert data.columns["text"] == ["first line\nsecond line", "third line"]
    assert data.numbers == [2, 6]
    assert data.unit == "line"
    (tmp_path / "corpus.txt.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_corpus(str(path) + ".gz", "text").columns == data.columns


def test_without_blank_lines_each_line_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("one\ntwo\nthree\n\n", encoding="utf-8")
    assert read_corpus(path, "text").columns["text"] == ["one", "two", "three"]


def test_tables_and_lists_are_corpora_too(tmp_path: Path) -> None:
    path = tmp_path / "corpus.csv"
    path.write_text('body,n\n"one, two",1\n,2\nthree,3\n', encoding="utf-8")
    data = read_corpus(path, "body")
    assert data.columns["text"] == ["one, two", "three"]
    assert data.left_out == ("1 row left out: no text (line 3)",)
    assert read_corpus(["one", "two"], "anything").columns["text"] == ["one", "two"]


# --- Answers ----------------------------------------------------------------------------------------------------------


def test_gaps_are_filled_in_the_text_as_it_is_written() -> None:
    assert _filled("A [MASK], two  [MASK]!", ["dog", "cats"]) == "A dog, two  cats!"
    assert _filled("walk [MASK] home", ["##ing"]) == "walking home"


def test_every_mask_is_filled_with_how_sure_that_is(masked: tuple[Language, Path]) -> None:
    task, _ = masked
    (found,) = task.predict("ant [MASK] bee cat ant dog [MASK] cat")
    assert found["filled"] == "ant dog bee cat ant dog bee cat"
    assert 0.5 < found["probability"] <= 1
    first, second = found["or"].split(" | ")
    assert len(first.split(", ")) == len(second.split(", ")) == 2
    assert set(first.split(", ")) < {*WORDS} | {task.subwords.name(i) for i in range(300)}


def test_a_continuation_is_the_same_with_and_without_cache(causal: tuple[Language, Path]) -> None:
    task, _ = causal
    ids = torch.tensor([task.tokenize("ant bee cat dog ant").ids[:-1]])
    cache = Cache()
    with torch.no_grad():
        whole = task.model(ids)
        steps = torch.cat([task.model(ids[:, i : i + 1], cache=cache) for i in range(ids.shape[1])], dim=1)
    torch.testing.assert_close(steps, whole, atol=1e-5, rtol=1e-5)


def test_drawn_continuations_are_the_same_for_the_same_place() -> None:
    task = learn(objective="causal", sample=True, write=5)
    first, other = task.predict(["the cat", "the cat"])
    assert task.predict(["the cat"]) == [first]
    assert first != other


# --- What cannot be done ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing to fill", r"expected a text with \[MASK\] where a token is to be found. Received: 'nothing to fill'"),
        ("word " * 40 + "[MASK]", r"The \[MASK\] at the end of this text is beyond the 16 tokens that are read"),
    ],
)
def test_a_text_without_a_mask_that_can_be_read(text: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        learn(block=16).predict([text])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mask_share": 0.0}, "mask_share: expected more than 0 and less than 1. Received: mask_share=0.0"),
        ({"objective": "causal", "model": "x"}, "model: expected None with objective=causal"),
        ({"dim": 30, "heads": 4}, "dim: expected an even multiple of heads=4. Received: dim=30"),
        ({"objective": "causal", "sample": True, "temperature": 0.0}, "temperature: expected a number above 0"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        learn(**options)


def test_a_checkpoint_of_another_architecture(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"expected a BERT encoder or .* Received: model_type='gpt2'"):
        learn(model=str(tmp_path))


def test_a_corpus_with_nothing_in_it(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\n \n", encoding="utf-8")
    with pytest.raises(ArgumentError, match="no row can be used: 1 row left out: no text"):
        read_corpus(path, "text")
