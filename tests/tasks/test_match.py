"""`Match`: what it reads and learns; that words attend to the patch that they are about; retrieval by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headwise import tasks, watch
from headwise.errors import ArgumentError, CheckpointError, DtypeError, FileError
from headwise.tasks.match import Match
from headwise.tasks.matching.contrast import contrastive, others, paired
from headwise.tasks.options.match import MatchOptions
from headwise.tasks.rows.pictures import read_picture
from headwise.tasks.scoring.retrieval import best_first, recall, recall_by_chance
from tests.tasks.problems import coloured_grids, coloured_patches

TINY: dict[str, Any] = {"dim": 32, "image_layers": 1, "text_layers": 1, "heads": 2, "shared_dim": 16, "vocab_size": 200}
TINY |= {"image_size": 8, "patch_size": 4, "dropout": 0.0, "monitor_every": 0, "batch_size": 48}


def pairs(rows: int, seed: int = 0) -> dict[str, list[Any]]:
    images, captions, _ = coloured_patches(rows, seed=seed)
    return {"image": images, "text": captions}


def learn(rows: dict[str, list[Any]] | None = None, **options: Any) -> Match:
    """A task before its first step."""
    chosen = MatchOptions(**{**TINY, **options})
    return Match.learn(Match.read(pairs(12) if rows is None else rows, chosen), chosen)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Match, Path]:
    """What colour is each of the four patches? A row for each patch of each image."""
    folder = tmp_path_factory.mktemp("match") / "run"
    options = {**TINY, "epochs": 60, "lr": 5e-3, "out": folder}
    return Match.fit(grids(60), validation=grids(8, seed=1), **options), folder


def grids(images: int, seed: int = 0) -> dict[str, list[Any]]:
    pictures, captions, _ = coloured_grids(images, seed=seed)
    return {"image": pictures, "text": captions}


# --- It learns, by looking where the answer is ------------------------------------------------------------------------


def test_it_learns_which_colour_is_where(trained: tuple[Match, Path]) -> None:
    task, _ = trained
    scores = task.evaluate(grids(15, seed=2))
    assert scores.values["text_to_image_recall@1"] >= 0.9
    assert scores.values["image_to_text_recall@1"] >= 0.9
    assert scores.values["matching_accuracy"] >= 0.95
    (chance,) = scores.baselines.values()
    assert chance["image_to_text_recall@1"] == pytest.approx(1 / 3)  # 4 of 12 texts are true of an image
    assert chance["matching_accuracy"] == 0.5


def test_its_record_shows_that_words_attend_to_the_patch_that_they_name(trained: tuple[Match, Path]) -> None:
    task, _ = trained
    images, captions, places = coloured_grids(6, seed=3)
    right = 0
    for image, caption, place in zip(images, captions, places, strict=True):
        (seen,) = task.look([{"image": image, "text": caption}])
        record = seen["fusion.layers.0.cross_attention"]
        colour, at, number = caption.split()
        assert seen.row_labels(record) == ("[CLS]", colour, at, number, "[SEP]")
        assert seen.col_labels(record) == ("(0, 0)", "(0, 1)", "(1, 0)", "(1, 1)")
        weights_HK = record.weights()[0].mean(1)  # of all words together
        right += float(weights_HK[:, place].max()) > 0.5
    assert right >= 20  # of 24


def test_the_run_folder_predicts_the_same(trained: tuple[Match, Path]) -> None:
    task, folder = trained
    again = tasks.load(folder)
    assert isinstance(again, Match)
    image = pairs(1, seed=4)["image"][0]
    asked = ["green at 2", image, {"image": image, "text": "red at 1"}]
    assert again.predict(asked) == task.predict(asked)
    assert (folder / "gallery.safetensors").is_file()


def test_a_text_finds_an_image_and_an_image_a_text_that_is_true(trained: tuple[Match, Path]) -> None:
    task, _ = trained
    images, captions, _ = coloured_grids(8, seed=5)
    true = {images[i].tobytes(): set(captions[i : i + 4]) for i in range(0, len(images), 4)}
    found = task.predict(images[::4])
    assert list(found[0]) == ["text", "match", "text 2", "match 2", "text 3", "match 3"]
    assert sum(row["text"] in true[image.tobytes()] for image, row in zip(images[::4], found, strict=True)) >= 7
    asked = ["red at 1", "blue at 2"]
    for text, row, picture in zip(asked, task.predict(asked), task.pictures(asked), strict=True):
        place = task.gallery.names.index(row["image"])
        assert np.array_equal(task.gallery.images[place], picture)
        assert task.predict([{"image": picture, "text": text}])[0]["match"] == pytest.approx(row["match"], abs=1e-4)
    red = (255, 0, 0)
    assert tuple(task.pictures(["red at 1"])[0][0, 4]) == red


# --- The loss ---------------------------------------------------------------------------------------------------------


def test_equal_texts_and_all_texts_of_an_image_belong_together() -> None:
    #                 image 0 has texts 5 and 7, image 1 has 7 alone
    found = paired(torch.tensor([[5, 7], [7, 0]]), torch.tensor([[5], [7]]))
    assert found.tolist() == [[True, True], [False, True]]


def test_the_contrastive_loss_by_hand() -> None:
    scores = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])
    one = torch.tensor([[False, True], [True, True]])
    # -log 3/4;  two are right, each of probability 1/2: -log 1/2
    assert contrastive(scores, one).tolist() == pytest.approx([math.log(4 / 3), math.log(2)])


def test_a_batch_has_each_image_and_each_text_once() -> None:
    image, other = (np.full((8, 8), shade, np.uint8) for shade in (0, 255))
    rows = {"image": [image, image, other], "text": ["dark", "black", "white"]}
    task = learn(rows)
    examples = task.encode(Match.read(rows, task.options))
    batch = task.collate(examples)
    assert batch["pixels"].shape == (2, 3, 8, 8)
    assert batch["input_ids"].shape[0] == 3
    assert batch["image_of"].tolist() == [0, 0, 1]
    assert batch["text_of"].tolist() == [0, 1, 2]
    assert paired(batch["texts_of_image"], batch["texts"]).tolist() == [[True, True, False], [False, False, True]]
    assert len({task.length(example) for example in examples}) == 1


def test_hard_negatives_do_not_belong_and_are_the_likest_where_nothing_is_learned() -> None:
    similarity = torch.tensor([[5.0, 3.0, 4.0], [0.0, 1.0, 2.0]])
    belong = torch.tensor([[True, False, False], [True, True, True]])
    chosen, there = others(similarity, belong, torch.tensor([0, 1, 0]), draw=False)
    assert chosen.tolist()[::2] == [2, 2]
    assert there.tolist() == [True, False, True]
    torch.manual_seed(0)
    drawn, _ = others(similarity, belong, torch.zeros(2000, dtype=torch.int64), draw=True)
    assert set(drawn.tolist()) == {1, 2}
    # Half by softmax of 4 and 3, half evenly.
    assert float((drawn == 2).float().mean()) == pytest.approx((math.e / (1 + math.e) + 1 / 2) / 2, abs=0.04)


def test_a_batch_in_which_all_belongs_together_has_a_finite_loss() -> None:
    rows = {"image": [np.zeros((8, 8), np.uint8)] * 2, "text": ["dark", "black"]}
    task = learn(rows)
    total, count = task.loss(task.collate(task.encode(Match.read(rows, task.options))))
    assert int(count) == 2
    assert bool(total.isfinite())


# --- Retrieval --------------------------------------------------------------------------------------------------------


def test_candidates_stand_in_the_order_of_the_costlier_score_where_they_are_near() -> None:
    similarity = torch.tensor([[0.9, 0.8, 0.7, 0.1]])

    def score(queries: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        assert queries.tolist() == [0] * len(candidates)
        return candidates.float()  # the last is the best

    assert best_first(similarity, score, 0, 3).tolist() == [[0, 1, 2]]
    assert best_first(similarity, score, 2, 3).tolist() == [[1, 0, 2]]
    assert best_first(similarity, score, 9, 9).tolist() == [[3, 2, 1, 0]]


def test_recall_by_hand() -> None:
    order = torch.tensor([[2, 0, 1], [0, 1, 2]])
    right = torch.tensor([[True, False, False], [True, False, False]])
    assert recall(order, right, 1) == 0.5
    assert recall(order, right, 2) == 1.0
    # One of three is right: 1/3 among the first, 2/3 among the first two.
    assert recall_by_chance(right, 1) == pytest.approx(1 / 3)
    assert recall_by_chance(right, 2) == pytest.approx(2 / 3)
    assert recall_by_chance(right, 10) == 1


# --- Images -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """pairs.csv beside four images: in colour, grey, one that is damaged, and one that is missing."""
    (tmp_path / "images").mkdir()
    colour = np.zeros((12, 6, 3), np.uint8)
    colour[..., 0] = 200
    Image.fromarray(colour).save(tmp_path / "images" / "red.png")
    Image.fromarray(np.full((8, 8), 100, np.uint8)).save(tmp_path / "images" / "grey.jpg")
    (tmp_path / "images" / "damaged.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    rows = ["path,caption", "images/red.png,red", "images/grey.jpg,grey", "images/damaged.png,green"]
    rows += ["images/missing.png,blue", ",nothing", "images/red.png,also red"]
    (tmp_path / "pairs.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return tmp_path


def test_images_are_read_from_beside_the_table_and_those_that_cannot_be_are_listed(folder: Path) -> None:
    data = Match.read(folder / "pairs.csv", MatchOptions(**{**TINY, "image": "path", "text": "caption"}))
    assert data.columns["name"] == ["images/red.png", "images/grey.jpg", "images/red.png"]
    assert data.columns["pixels"][0] is data.columns["pixels"][2]
    assert data.columns["pixels"][0].shape == (8, 8, 3)
    assert data.columns["pixels"][0][0, 0].tolist() == [200, 0, 0]
    assert data.columns["pixels"][1][0, 0].tolist() == pytest.approx([100] * 3, abs=2)
    assert data.left_out == (
        "1 row left out: an image that cannot be read (line 4)",
        "1 row left out: no such image (line 5)",
        "1 row left out: no image (line 6)",
    )


def test_a_table_is_answered_row_by_row(folder: Path) -> None:
    task = learn(image="path", text="caption", rows={"path": pairs(12)["image"], "caption": pairs(12)["text"]})
    (folder / "ask.csv").write_text("path,caption\nimages/red.png,red\nimages/grey.jpg,grey\n", encoding="utf-8")
    assert [list(row) for row in task.predict(folder / "ask.csv")] == [["match", "similarity"]] * 2
    (folder / "ask.csv").write_text("path\nimages/red.png\n", encoding="utf-8")
    assert list(task.predict(folder / "ask.csv")[0])[:2] == ["text", "match"]
    (folder / "ask.csv").write_text("title\nred\n", encoding="utf-8")
    with pytest.raises(ArgumentError, match="there is no column 'path' and no column 'caption'"):
        task.predict(folder / "ask.csv")


@pytest.mark.parametrize(
    "image",
    [
        np.full((4, 4), 51, np.uint8),
        np.full((4, 4, 1), 0.2),
        torch.full((4, 4, 3), 0.2),
        Image.fromarray(np.full((4, 4), 51, np.uint8)),
    ],
)
def test_arrays_tensors_and_images_of_pillow(image: Any) -> None:
    assert read_picture(image, 2, 3).tolist() == [[[51] * 3] * 2] * 2
    assert read_picture(image, 2, 1).tolist() == [[[51]] * 2] * 2


@pytest.mark.parametrize(
    ("image", "error", "said"),
    [
        (np.zeros((4, 4, 2), np.uint8), ArgumentError, r"expected \[H, W\] or \[H, W, 3\]. Received: \[4, 4, 2\]"),
        (np.full((4, 4), 255.0), ArgumentError, "expected floats from 0 to 1. Received: 255 to 255"),
        (np.zeros((4, 4), np.int64), DtypeError, "expected uint8, or floats from 0 to 1. Received: int64"),
        (7, DtypeError, "expected a path, an array or a PIL image. Received: int"),
        ("nowhere.png", FileError, "nowhere.png: no such image"),
    ],
)
def test_what_is_no_image(image: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        read_picture(image, 4, 3)


def test_an_image_is_never_in_both_parts() -> None:
    rows = pairs(40)
    data = Match.read(rows, MatchOptions(**TINY))
    learned, held = Match.split(data, MatchOptions(**TINY, validation_share=0.3))
    assert len(learned) + len(held) == 40
    assert len(held)
    assert not set(learned.columns["name"]) & set(held.columns["name"])


# --- What cannot be done ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"channels": 2}, r"channels: expected 1 \(grey\) or 3 \(colour\). Received: channels=2"),
        ({"patch_size": 3}, "patch_size: expected a divisor of image_size=8. Received: patch_size=3"),
        ({"dim": 33}, "dim: expected a multiple of heads=2. Received: dim=33"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        MatchOptions(**{**TINY, **options})


def test_texts_that_are_all_the_same() -> None:
    with pytest.raises(ArgumentError, match=r"expected at least two different texts. Received: only 'a'"):
        learn({"image": pairs(2)["image"], "text": ["a", "a"]})


def test_the_gallery_is_encoded_once_until_it_or_the_weights_change(monkeypatch: pytest.MonkeyPatch) -> None:
    task = learn().eval()
    encoded: list[int] = []
    encode = task.model.encode_text

    def counted(ids: torch.Tensor, real: torch.Tensor | None = None) -> Any:
        encoded.append(len(ids))
        return encode(ids, real)

    monkeypatch.setattr(task.model, "encode_text", counted)
    image = pairs(1, seed=4)["image"][0]
    first = task.predict([image])
    count = len(task.gallery.texts)
    assert task.predict([image]) == first
    assert encoded == [count]

    with torch.no_grad():
        task.model.text_projection.weight.neg_()  # as an optimizer does, in place
    assert task.predict([image]) != first
    assert encoded == [count, count]

    task.gallery = replace(task.gallery, texts=task.gallery.texts[:2])
    assert {"text", "text 2"} < task.predict([image])[0].keys()
    assert "text 3" not in task.predict([image])[0]
    assert encoded == [count, count, 2]

    with watch(task.model):  # which sees the gallery too
        task.predict([image])
    assert encoded == [count, count, 2, 2]


def test_a_run_without_a_gallery_scores_pairs_alone() -> None:
    task = learn(gallery=0)
    assert len(task.predict([{"image": pairs(1)["image"][0], "text": "red"}])) == 1
    with pytest.raises(ArgumentError, match="this run folder has no images to choose from"):
        task.predict(["red at 1"])


@pytest.mark.parametrize("asked", ["", {"caption": "x"}, []])
def test_questions_that_are_none(asked: Any) -> None:
    with pytest.raises(ArgumentError, match=r"expected (a text|image or text)"):
        learn().predict(asked if asked == [] else [asked])


def test_a_gallery_of_another_run(trained: tuple[Match, Path], tmp_path: Path) -> None:
    task, _ = trained
    task.save_files(tmp_path)
    (tmp_path / "gallery.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="the images of this run"):
        Match.restore(task.options, task.state(), tmp_path)
