"""`Classify`: what it reads, learns, says and refuses; that it attends to the word that tells the label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise import tasks
from headwise.errors import ArgumentError, CheckpointError
from headwise.models import Bert
from headwise.tasks.classify import UNSEEN, Classify
from headwise.tasks.options.classify import ClassifyOptions
from headwise.tasks.text.cuts import cut_longer
from tests.tasks.problems import looked_up, marked

TINY: dict[str, Any] = {"model": "scratch", "dim": 32, "layers": 1, "heads": 2, "vocab_size": 200, "dropout": 0.0}
TINY |= {"word_dropout": 0.0, "monitor_every": 0}
REVIEWS = {"text": ["a good film", "a bad film", "so good", "so bad"] * 3, "label": ["+", "-"] * 6}


def learn(rows: dict[str, list[Any]] = REVIEWS, **options: Any) -> Classify:
    """A task before its first step."""
    chosen = ClassifyOptions(**{**TINY, **options})
    return Classify.learn(Classify.read(rows, chosen), chosen)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Classify, Path]:
    folder = tmp_path_factory.mktemp("classify") / "run"
    options = {**TINY, "epochs": 4, "lr": 1e-2, "out": folder}
    return Classify.fit(marked(300), validation=marked(60, seed=2), **options), folder


# --- It learns, by looking where the answer is ------------------------------------------------------------------------


def test_it_learns_which_word_is_marked(trained: tuple[Classify, Path]) -> None:
    task, _ = trained
    scores = task.evaluate(marked(100, seed=1))
    assert scores.values["accuracy"] >= 0.97
    assert scores.values["macro_f1"] >= 0.97
    assert all(found["accuracy"] < 0.4 for found in scores.baselines.values())


def test_its_record_shows_that_it_attends_to_the_marked_word(trained: tuple[Classify, Path]) -> None:
    task, _ = trained
    rows = marked(10, seed=3)
    for seen, place in zip(task.look(rows["text"]), rows["place"], strict=True):
        weights_K = seen[0].weights()[0].mean((0, 1))  # what each token is given, by all tokens and heads
        assert seen.tokens[0].labels[place + 1].endswith("x")
        assert int(weights_K.argmax()) == place + 1


def test_the_run_folder_predicts_the_same(trained: tuple[Classify, Path]) -> None:
    task, folder = trained
    texts = marked(20, seed=4)["text"]
    again = tasks.load(folder)
    assert isinstance(again, Classify)
    assert again.predict(texts) == task.predict(texts)
    assert again.scores is None or task.scores is not None


def test_latents_learn_it_too_and_their_record_names_them() -> None:
    options = {**TINY, "model": "latent", "latents": 4, "epochs": 3, "lr": 5e-3}
    task = Classify.fit(marked(200), validation=marked(40, seed=2), **options)
    assert task.evaluate(marked(50, seed=1)).values["accuracy"] >= 0.97
    rows = marked(5, seed=3)
    for seen, place in zip(task.look(rows["text"]), rows["place"], strict=True):
        record = seen[0]
        assert record.row_names == tuple(f"latent {i}" for i in range(4))
        assert int(record.weights()[0].mean((0, 1)).argmax()) == place + 1


def test_latents_read_texts_of_any_length_and_a_bert_their_beginning() -> None:
    long = {"text": ["word " * 700 + "good", "word " * 700 + "bad"] * 2, "label": ["+", "-"] * 2}
    latent, bert = learn(long, model="latent"), learn(long)
    assert latent.encode(Classify.read(long, latent.options))[0].ids.__len__() == 703
    assert bert.encode(Classify.read(long, bert.options))[0].ids.__len__() == 512
    assert latent.evaluate(long).left_out == ()
    said = "4 rows read in part: more than 512 tokens, the rest was cut (rows 0, 1, 2, 3)"
    assert bert.evaluate(long).left_out == (said,)


def test_two_texts_are_told_apart() -> None:
    rows = looked_up(400, pairs=2)
    options = {**TINY, "layers": 2, "text_pair": "question", "epochs": 1}
    task = Classify.fit(rows, **options)
    example = task.encode(Classify.read(rows, task.options))[0]
    words = rows["text"][0].split()
    assert example.types == [0] * (len(words) + 2) + [1, 1]  # [CLS] text [SEP] question [SEP]
    first, second = zip(rows["text"], rows["question"], strict=True), task.predict(rows)
    assert task.predict(list(first)) == second
    (seen,) = task.look([f"{rows['text'][0]} [SEP] {rows['question'][0]}"])
    assert list(seen.tokens[0].ids) == example.ids


# --- What it reads ----------------------------------------------------------------------------------------------------


def test_labels_are_in_one_order_whatever_that_of_the_rows() -> None:
    rows = {"text": list("abcdefgh"), "label": [10, 2, "x", 10, 2, "x", 2, 10]}
    assert learn(rows).labels == {"2": 3, "10": 3, "x": 2}


def test_a_number_is_the_label_that_training_knows_however_it_is_written() -> None:
    texts = ["good", "bad"] * 2
    for labels, others in (
        ([1, 0], ["1.0", "0.0"]),
        ([1.0, 0.0], ["1", "0"]),
        (["1.0", "0.0"], [1, 0]),
        (["1.0", "?"], ["1.0", "1"]),  # of training a column of texts, later one of numbers
    ):
        task = learn({"text": texts, "label": labels * 2})
        read = Classify.read({"text": texts[:2], "label": others}, task.options)
        assert UNSEEN not in [example.label for example in task.encode(read)]
        assert task.evaluate(read).left_out == ()


def test_one_class_only_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"at least two different labels .* only '\+', in 2 rows"):
        learn({"text": ["a", "b"], "label": ["+", "+"]})


def test_a_column_where_every_row_differs_is_not_taken_for_labels() -> None:
    rows = {"text": [f"text {i}" for i in range(10)], "label": [i / 7 for i in range(10)]}
    with pytest.raises(ArgumentError, match="10 different labels in 10 rows"):
        learn(rows)


def test_a_missing_column_is_named_with_those_there_are() -> None:
    with pytest.raises(ArgumentError, match=r"no column 'sentiment'.*'text', 'label'"):
        learn(label="sentiment")


def test_more_tokens_than_the_checkpoint_reads_are_refused(tiny_bert: Path) -> None:
    with pytest.raises(ArgumentError, match=r"max_length: .* reads at most"):
        learn(model=str(tiny_bert), max_length=100_000)


def test_fine_tuning_and_training_from_scratch_have_their_own_defaults() -> None:
    tuned, scratch = ClassifyOptions(), ClassifyOptions(model="scratch", lr=0.5)
    assert (tuned.lr, tuned.epochs, tuned.dropout, tuned.word_dropout) == (5e-5, 3, 0.1, 0.0)
    assert scratch.lr == 0.5
    assert scratch.epochs > 3
    assert scratch.word_dropout > 0


# --- What it says -----------------------------------------------------------------------------------------------------


def test_probabilities_are_of_each_label_and_sum_to_one() -> None:
    found = learn().predict("so good")
    assert len(found) == 1
    assert set(found[0]) == {"label", "probability", "probability of +", "probability of -"}
    assert found[0]["probability of +"] + found[0]["probability of -"] == pytest.approx(1)
    assert found[0]["probability"] == found[0][f"probability of {found[0]['label']}"]


def test_predictions_come_in_the_order_of_the_inputs_whatever_their_lengths() -> None:
    task = learn()
    texts = ["good", "a bad film so bad", "so good", "bad", "film film film film good"]
    alone = [task.predict([text])[0]["probability of +"] for text in texts]
    together = [found["probability of +"] for found in task.predict(texts)]
    assert together == pytest.approx(alone, abs=1e-6)


def test_a_label_that_training_did_not_have_counts_as_wrong_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    task = learn()
    monkeypatch.setattr(task, "_probabilities", lambda examples: torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1]]))
    rows = {"text": ["x", "y", "z"], "label": ["+", "-", "?"]}
    scores = task.evaluate(rows)
    assert scores.values["accuracy"] == pytest.approx(2 / 3, abs=1e-6)
    # F1: of + 2/(1 + 2) since ? was called + too, of - 1, of ? 0.
    assert scores.values["macro_f1"] == pytest.approx((2 / 3 + 1 + 0) / 3, abs=1e-6)
    assert scores.labels == ("+", "-", "?")
    assert scores.confusion == ((1, 0, 0), (0, 1, 0), (1, 0, 0))
    assert scores.left_out == ("1 row has a label that the training data did not have, counted as wrong: '?' (1)",)
    assert scores.baselines == {
        "always '+', the commonest in training": {
            "accuracy": pytest.approx(1 / 3, abs=1e-6),
            "macro_f1": pytest.approx(0.5 / 3, abs=1e-6),
        }
    }


def test_a_label_that_is_nearly_one_of_the_training_data_is_said() -> None:
    *_, said = learn().evaluate({"text": ["x", "y"], "label": ["+", "＋"]}).left_out
    assert said == "'+' and '＋' count as different labels: write them alike if they mean the same"


def test_the_loss_leaves_out_labels_that_training_did_not_have() -> None:
    task = learn()
    examples = task.encode(Classify.read({"text": ["good", "bad"], "label": ["+", "?"]}, task.options))
    assert [example.label for example in examples] == [0, UNSEEN]
    task.eval()
    total, count = task.loss(task.collate(examples))
    alone, one = task.loss(task.collate(examples[:1]))
    assert int(count) == int(one) == 1
    assert float(total.detach()) == pytest.approx(float(alone.detach()), rel=1e-5)


def test_a_text_alone_where_two_are_expected_is_refused() -> None:
    rows = {**REVIEWS, "other": ["x"] * 12}
    with pytest.raises(ArgumentError, match=r"expected two texts for each input. Received: 1"):
        learn(rows, text_pair="other").predict(["good"])


# --- What is cut ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "longest", "kept"),
    [((9,), 4, (4,)), ((9, 2), 6, (4, 2)), ((2, 9), 6, (2, 4)), ((9, 9), 7, (4, 3)), ((2, 3), 6, (2, 3))],
)
def test_what_is_longer_is_cut_first(lengths: Any, longest: int, kept: Any) -> None:
    found = cut_longer([[1] * length for length in lengths], longest)
    assert tuple(map(len, found)) == kept


@given(first=st.integers(0, 40), second=st.integers(0, 40), longest=st.integers(3, 60))
def test_a_cut_pair_fits_and_wastes_nothing(first: int, second: int, longest: int) -> None:
    one, two = cut_longer([[1] * first, [2] * second], longest)
    assert len(one) + len(two) == min(longest, first + second)


# --- A checkpoint -----------------------------------------------------------------------------------------------------


def test_characters_that_a_checkpoint_does_not_know_get_tokens(tiny_bert: Path) -> None:
    rows = {"text": ["好 cat", "坏 cat"] * 6, "label": ["+", "-"] * 6}
    plain, extended = (learn(rows, model=str(tiny_bert), new_characters=new, lr=1e-4) for new in (False, True))
    assert plain.subwords.unknown in plain.subwords.pieces(["好"])[0].ids
    ids = extended.subwords.pieces(["好坏"])[0].ids
    assert extended.subwords.unknown not in ids
    assert len(extended.subwords) == len(plain.subwords) + 2
    assert max(ids) == len(extended.subwords) - 1
    assert isinstance(extended.model.encoder, Bert)
    words = extended.model.encoder.embeddings.word.weight
    assert len(words) == len(extended.subwords)
    begun = [int((words[:-2] == row).all(-1).nonzero()) for row in words[-2:]]  # with the embeddings of words
    assert len(set(begun)) == 2
    assert all(extended.subwords.name(number).isalpha() for number in begun)
    assert extended.look(["好 cat"])[0].tokens[0].labels[1] == "好"


def test_training_goes_on_from_the_bert_of_another_run(tiny_bert: Path, tmp_path: Path) -> None:
    rows = {"text": ["好 cat", "坏 cat"] * 6, "label": ["+", "-"] * 6}
    task = Classify.fit(rows, model=str(tiny_bert), lr=1e-2, epochs=1, monitor_every=0, out=tmp_path / "run")
    assert isinstance(task.model.encoder, Bert)
    again = learn({"text": ["美 cat"] * 12, "label": ["+", "-"] * 6}, model=str(tmp_path / "run"), dropout=0.3)
    assert isinstance(again.model.encoder, Bert)
    assert again.model.encoder.config.dropout == 0.3
    assert len(again.subwords) == len(task.subwords) + 1
    before, after = task.model.encoder.state_dict(), again.model.encoder.state_dict()
    words = len(task.subwords)
    assert all(torch.equal(before[name][:words], after[name][:words]) for name in before)
    Classify.fit(rows, model="scratch", epochs=1, monitor_every=0, out=tmp_path / "small")
    with pytest.raises(CheckpointError, match="small is a run without a BERT"):
        learn(rows, model=str(tmp_path / "small"))
