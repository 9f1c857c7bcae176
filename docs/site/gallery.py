"""Writes the live pages of the gallery: `python docs/site/gallery.py FOLDER`. Each is a page as headwise writes it."""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import headwise
from headwise import cli
from headwise.models.checkpoint import default_model
from headwise.records import Seen
from headwise.text import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."


def minilm(out: Path) -> None:
    """The page carries the model."""
    assert cli.main(["view", TIRED, "--with-model", "--out", str(out)]) == 0


def bert(out: Path) -> None:
    headwise.view(read(TIRED), out, title="A BERT reads a sentence")


def compare(out: Path) -> None:
    headwise.view({"tired": read(TIRED), "wide": read(WIDE)}, out, title="What is “it”?")


def induction(out: Path) -> None:
    """The model of the notebook, which learns to go on with lists."""
    cells = json.loads((EXAMPLES / "induction_head.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    found: dict[str, Any] = {}
    exec("\n".join(code[: next(i for i, cell in enumerate(code) if cell.startswith("scores"))]), found)
    with torch.no_grad(), headwise.watch(found["model"], tokens=found["words"]) as seen:
        found["model"](found["prompt"])
    headwise.view(seen, out, title="A small GPT with induction heads")


def cross(out: Path) -> None:
    """Words attend to the patches of a picture."""
    found = runpy.run_path(str(EXAMPLES / "cross_modal.py"))
    patches, _, _ = found["pictures"](1)
    _, record = found["look"](found["text"].weight[None], found["see"](patches), record=True)
    record.row_names = found["WORDS"]
    record.col_names = [place.removeprefix("at the ") for place in found["PLACES"]]
    headwise.view(record, out, title="Cross-attention: words look at a picture")


def patches(out: Path) -> None:
    """Two latents find two shapes among the patches of an image."""
    found = runpy.run_path(str(EXAMPLES / "image_patches.py"))
    image, _ = found["images"](1)
    inputs = found["see"](image).flatten(2).mT + found["where"](torch.arange(16))
    _, seen = found["read"](inputs, record=True)
    seen.tokens = found["Patches"](4, 4, prefix=())
    shown = image[0, 0] - image.min()
    headwise.view(seen, out, images=(shown / shown.max()).numpy(), title="Patches of an image")


def profile(out: Path) -> None:
    """What every head does over a thousand sentences."""
    with tempfile.TemporaryDirectory() as folder:
        kept = f"{folder}/profile.hw"
        corpus = ["--file", str(EXAMPLES / "reviews.csv"), "--column", "sentence"]
        assert cli.main(["profile", *corpus, "--out", kept]) == 0
        assert cli.main(["view", kept, "--out", str(out)]) == 0


def read(text: str) -> Seen:
    folder = default_model()
    model = headwise.Bert.from_pretrained(folder)
    tokens = Tokenizer.from_pretrained(folder).encode(text)
    with torch.no_grad(), headwise.watch(model, tokens=tokens) as seen:
        model(torch.tensor([tokens.ids]))
    return seen


PAGES: tuple[Callable[[Path], None], ...] = (minilm, bert, induction, cross, patches, profile, compare)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        page(folder / f"{page.__name__}.html")


if __name__ == "__main__":
    main(Path(os.path.abspath(sys.argv[1])))
