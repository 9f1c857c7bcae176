"""The real data as the commands take them: pairs side by side, pictures as files, splits that are always the same."""

from __future__ import annotations

import csv
import gzip
import json
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

ETTH1_MONTH = 30 * 24  # hours; the published split counts months of 30 days
SHARE = 0.8  # of the paragraphs of XQuAD, to learn from


def sst2(data: Path, folder: Path) -> None:
    """train.tsv, dev.tsv and test.tsv as they are; they have no header."""
    for name in ("train.tsv", "dev.tsv", "test.tsv"):
        shutil.copyfile(data / "sst2" / name, folder / name)


def multi30k(data: Path, folder: Path) -> None:
    """train.tsv, val.tsv and test.tsv, English beside German."""
    for name, stem in (("train", "train"), ("val", "val"), ("test", "test_2016_flickr")):
        sides = [
            text_lines(gzip.decompress((data / "multi30k" / f"{stem}.{side}.gz").read_bytes())) for side in ("en", "de")
        ]
        table(folder / f"{name}.tsv", ("en", "de"), zip(*sides, strict=True))


def etth1(data: Path, folder: Path, *, past: int) -> None:
    """train.csv (12 months), val.csv and test.csv (4 months each, after the hours that their first window reads)."""
    lines = text_lines((data / "etth1" / "ETTh1.csv").read_bytes())
    header, rows = lines[0], lines[1:]
    ends = [12 * ETTH1_MONTH, 16 * ETTH1_MONTH, 20 * ETTH1_MONTH]
    parts = {"train": (0, ends[0]), "val": (ends[0] - past, ends[1]), "test": (ends[1] - past, ends[2])}
    for name, (first, end) in parts.items():
        (folder / f"{name}.csv").write_text("\n".join([header, *rows[first:end], ""]), encoding="utf-8")


def xquad(data: Path, folder: Path, language: str) -> None:
    """train.json and test.json: paragraphs drawn with one seed, the same ones in every language."""
    given = json.loads((data / "xquad" / f"xquad.{language}.json").read_text(encoding="utf-8"))
    places = [(i, j) for i, article in enumerate(given["data"]) for j in range(len(article["paragraphs"]))]
    random.Random(0).shuffle(places)
    learned = set(places[: round(SHARE * len(places))])
    for name, wanted in (("train", True), ("test", False)):
        articles = [
            {**article, "paragraphs": [p for j, p in enumerate(article["paragraphs"]) if ((i, j) in learned) == wanted]}
            for i, article in enumerate(given["data"])
        ]
        kept = [article for article in articles if article["paragraphs"]]
        text = json.dumps({**given, "data": kept}, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def dialogsum(data: Path, folder: Path) -> None:
    """dev.jsonl (a summary each) and test.jsonl (three), as they are."""
    for name in ("dev.jsonl", "test.jsonl"):
        shutil.copyfile(data / "dialogsum" / name, folder / name)


def digits(folder: Path) -> None:
    """scikit-learn's 1,797 digits as PNG files; train.csv and test.csv describe each in two languages."""
    from PIL import Image
    from sklearn.datasets import load_digits

    english = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    chinese = "零一二三四五六七八九"
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    found = load_digits()
    order = list(range(len(found.images)))
    random.Random(0).shuffle(order)
    end = round(SHARE * len(order))
    for name, chosen in (("train", order[:end]), ("test", order[end:])):
        rows = []
        for i in chosen:
            path, digit = images / f"{i:04}.png", int(found.target[i])
            Image.fromarray((found.images[i] * 255 / 16).round().astype("uint8")).save(path)
            rows.append(
                (f"images/{path.name}", f"the handwritten digit {english[digit]}", f"手写的数字{chinese[digit]}")
            )
        table(folder / f"{name}.csv", ("image", "english", "chinese"), rows)


def shorten(folder: Path, rows: int) -> None:
    """Keep the first rows of every table, and the first articles of a SQuAD file: to see that everything runs."""
    for path in folder.iterdir():
        if path.suffix in (".csv", ".tsv", ".jsonl"):
            path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[: rows + 1]) + b"\n")
        elif path.suffix == ".json":
            given = json.loads(path.read_text(encoding="utf-8"))
            if "data" not in given:
                continue  # not SQuAD's
            path.write_text(json.dumps({**given, "data": given["data"][: rows // 20]}), encoding="utf-8")


def table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A CSV or TSV file, quoted where a cell needs it."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
        writer.writerows([header, *rows])


def text_lines(content: bytes) -> list[str]:
    """Lines as wc counts them: `splitlines` also ends one at U+2028, which can stand inside a sentence."""
    return content.decode().removesuffix("\n").split("\n")
