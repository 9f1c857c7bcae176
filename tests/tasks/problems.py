"""Small problems that cannot be solved without attending to the right place, and where that place is.

Each gives rows as a task reads them, drawn at random and the same for the same seed. Nothing but the place tells the
answer: words are drawn evenly and mean nothing, so a model that does not look there can only guess.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")

Columns = dict[str, list[str]]


def copied(rows: int, *, lengths: tuple[int, int] = (3, 6), words: Sequence[str] = WORDS, seed: int = 0) -> Columns:
    """Columns "source" (words) and "target" (the same). While target word i is written, look at source word i."""
    draw = random.Random(seed)
    source = [" ".join(draw.choices(words, k=draw.randint(*lengths))) for _ in range(rows)]
    return {"source": source, "target": list(source)}


def reversed_words(
    rows: int, *, lengths: tuple[int, int] = (3, 6), words: Sequence[str] = WORDS, seed: int = 0
) -> Columns:
    """Columns "source" (words) and "target" (last to first). For target word i of n, look at source word n - 1 - i."""
    source = copied(rows, lengths=lengths, words=words, seed=seed)["source"]
    return {"source": source, "target": [" ".join(text.split()[::-1]) for text in source]}


def said(rows: int, *, length: int = 6, words: Sequence[str] = WORDS, seed: int = 0) -> dict[str, list]:
    """Columns "source" (words, and "say" before one of them), "target" (that word) and "place" (its, from 0)."""
    draw = random.Random(seed)
    columns: dict[str, list] = {"source": [], "target": [], "place": []}
    for _ in range(rows):
        text, place = draw.choices(words, k=length), draw.randrange(length)
        columns["target"].append(text[place])
        columns["place"].append(place + 1)
        columns["source"].append(" ".join([*text[:place], "say", *text[place:]]))
    return columns


def marked(rows: int, *, length: int = 6, words: Sequence[str] = WORDS[:4], seed: int = 0) -> dict[str, list]:
    """Columns "text" (words, one with an x behind it: "antx"), "label" (that word: "ant") and "place" (which, from 0).

    To name the label, look at the marked word: how often the others occur says nothing.
    """
    draw = random.Random(seed)
    columns: dict[str, list] = {"text": [], "label": [], "place": []}
    for _ in range(rows):
        text, place = draw.choices(words, k=length), draw.randrange(length)
        columns["label"].append(text[place])
        columns["place"].append(place)
        text[place] += "x"
        columns["text"].append(" ".join(text))
    return columns


def looked_up(
    rows: int, *, pairs: int = 3, keys: Sequence[str] = WORDS, values: Sequence[str] = ("red", "blue"), seed: int = 0
) -> dict[str, list]:
    """Columns "text" ("ant red bee blue fox red"), "question" ("fox"), "label" ("red") and "place" (its word, from 0).

    Keys are not repeated within a row, and each value is as likely as another: look at the one after the key that is
    asked for. As one text it is f"{text} {question}".
    """
    draw = random.Random(seed)
    columns: dict[str, list] = {"text": [], "question": [], "label": [], "place": []}
    for _ in range(rows):
        chosen, given = draw.sample(keys, pairs), draw.choices(values, k=pairs)
        asked = draw.randrange(pairs)
        columns["text"].append(" ".join(f"{key} {value}" for key, value in zip(chosen, given, strict=True)))
        columns["question"].append(chosen[asked])
        columns["label"].append(given[asked])
        columns["place"].append(2 * asked + 1)
    return columns


def spans(rows: int, *, length: int = 8, words: Sequence[str] = WORDS, seed: int = 0) -> list[dict]:
    """Rows of "context" (different words), "question" (one of them), "answer" (the same word) and its first character.

    To find where it stands, the question has to look into the context, or each word of the context at the question.
    """
    draw = random.Random(seed)
    found = []
    for _ in range(rows):
        context = draw.sample(words, min(length, len(words)))
        place = draw.randrange(len(context))
        start = len(" ".join([*context[:place], ""]))
        found.append(
            {"context": " ".join(context), "question": context[place], "answer": context[place], "start": start}
        )
    return found


def squad(rows: Sequence[dict]) -> dict:
    """Those rows as a SQuAD file has them, one paragraph each."""
    paragraphs = [
        {
            "context": row["context"],
            "qas": [
                {
                    "id": str(number),
                    "question": row["question"],
                    "answers": [{"text": row["answer"], "answer_start": row["start"]}],
                }
            ],
        }
        for number, row in enumerate(rows)
    ]
    return {"version": "1.1", "data": [{"title": "words", "paragraphs": paragraphs}]}


def twice(rows: int, *, length: int = 4, words: Sequence[str] = WORDS, seed: int = 0) -> list[str]:
    """Lines in which `length` words come twice, in the same order: "ant fox bee ant fox bee".

    A masked word can only be known from its twin, `length` places away. A causal model can only guess the first half;
    in the second it knows the next word from that word's twin, `length - 1` places back.
    """
    draw = random.Random(seed)
    lines = (draw.choices(words, k=length) for _ in range(rows))
    return [" ".join([*line, *line]) for line in lines]


def lagged(length: int, *, lag: int, keep: float = 0.95, seed: int = 0) -> np.ndarray:
    """A series [length] of variance 1 in which x[t] = keep · x[t - lag] + noise, and nothing else is related.

    The best forecast of up to `lag` steps looks `lag` steps back, with mean squared error 1 - keep²; whatever does not
    look there has at least 1, and the last value about 2.
    """
    noise = np.random.default_rng(seed).standard_normal(length)
    series = noise.copy()
    for t in range(lag, length):
        series[t] = keep * series[t - lag] + (1 - keep**2) ** 0.5 * noise[t]
    return series


def coloured_patches(
    rows: int, *, patch: int = 4, side: int = 2, seed: int = 0
) -> tuple[list[np.ndarray], list[str], list[int]]:
    """Images [side · patch, side · patch, 3] of uint8, captions such as "red at 3", and each image's only lit patch.

    The patches are counted as one reads. To tell which image a caption is of, look at the coloured patch.
    """
    colours = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
    draw = random.Random(seed)
    images, captions, places = [], [], []
    for _ in range(rows):
        colour, place = draw.choice(list(colours)), draw.randrange(side * side)
        image = np.zeros((side * patch, side * patch, 3), np.uint8)
        down, across = divmod(place, side)
        image[down * patch : (down + 1) * patch, across * patch : (across + 1) * patch] = colours[colour]
        images.append(image)
        captions.append(f"{colour} at {place}")
        places.append(place)
    return images, captions, places


def coloured_grids(
    images: int, *, patch: int = 4, side: int = 2, seed: int = 0
) -> tuple[list[np.ndarray], list[str], list[int]]:
    """Images of patches each in a colour, and for each patch a row: the image, "red at 3", and which patch that is.

    The patches are counted as one reads. Whether a text is true of an image is told by the one patch that it names.
    """
    colours = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
    draw = random.Random(seed)
    found: list[np.ndarray] = []
    captions, places = [], []
    for _ in range(images):
        chosen = draw.choices(list(colours), k=side * side)
        cells = np.array([colours[colour] for colour in chosen], np.uint8).reshape(side, side, 3)
        image = cells.repeat(patch, 0).repeat(patch, 1)
        for place, colour in enumerate(chosen):
            found.append(image)
            captions.append(f"{colour} at {place}")
            places.append(place)
    return found, captions, places
