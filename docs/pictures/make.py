"""Makes the pictures in this folder: every view of the page, opened in headless Chromium, of what MiniLM saw."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

import torch
from PIL import Image
from playwright.sync_api import sync_playwright

import headwise
from headwise.models.checkpoint import default_model
from headwise.records import Seen
from headwise.text import Tokenizer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SIZE = {"width": 1200, "height": 720}
LARGE = 200_000  # bytes
SETTLED = 4000  # milliseconds until even the small pictures of the heads are there
TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."

# name of the picture -> page, the part of its address after the #, light or dark
PICTURES = {
    "head": ("long", "view=head&layer=5&head=11&row=40&col=22&sight=30,54,10,50", "light"),
    "model": ("long", "view=model&stat=entropy&layer=1&head=4", "light"),
    "text": ("long", "view=text&layer=5&head=11&row=40&col=22&pinrow=40&scale=linear", "light"),
    "lines": ("short", "view=text&layer=4&head=9&row=9&form=lines", "dark"),
    "compare": ("short", "view=compare&layer=5&head=9&compare=difference&row=10&col=13", "light"),
    "flow": ("short", "view=flow&row=10&pinrow=10&sink=true", "dark"),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages = {name: Path(folder) / f"{name}.html" for name in ("long", "short")}
        headwise.view(read((ROOT / "examples" / "attention.txt").read_text("utf-8")), pages["long"], title="Attention")
        headwise.view({"tired": read(TIRED), "wide": read(WIDE)}, pages["short"], title="What is “it”?")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (page, address, scheme) in PICTURES.items():
            tab = browser.new_page(viewport=SIZE, color_scheme=scheme)
            tab.goto(f"{pages[page].as_uri()}#{address}")
            tab.wait_for_function("() => window.headwise?.app")
            tab.wait_for_timeout(SETTLED)
            save(tab.screenshot(), HERE / f"{name}.png")
            tab.close()
        browser.close()


def read(text: str) -> Seen:
    folder = default_model()
    model = headwise.Bert.from_pretrained(folder)
    tokens = Tokenizer.from_pretrained(folder).encode(text, max_length=model.config.max_positions)
    with torch.no_grad(), headwise.watch(model, tokens=[tokens]) as seen:
        model(torch.tensor([tokens.ids]))
    return seen


def save(screenshot: bytes, path: Path) -> None:
    """As it is, or with 256 colours where that would be large."""
    picture = Image.open(io.BytesIO(screenshot)).convert("RGB")
    picture.save(path, optimize=True)
    if path.stat().st_size > LARGE:
        picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
