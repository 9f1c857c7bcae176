"""Makes the pictures in this folder: masks by `headwise.plot.mask`, and every view of the page, opened in headless
Chromium, of what MiniLM saw."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from playwright.sync_api import sync_playwright

import headwise
from headwise import masks
from headwise.cli import command
from headwise.masks import Mask
from headwise.models.checkpoint import default_model
from headwise.records import Seen
from headwise.text import Tokenizer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "site"))

import gallery  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell")
SIZE = {"width": 1200, "height": 720}
LARGE = 200_000  # bytes
SETTLED = 4000  # milliseconds until even the small pictures of the heads are there
TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."

# name of the picture -> page, the part of its address after the #, light or dark
PICTURES = {
    "head": ("readme", "", "light"),
    "model": ("long", "view=model&stat=entropy&layer=1&head=4", "light"),
    "text": ("long", "view=text&layer=5&head=11&row=40&col=22&pinrow=40&scale=linear", "light"),
    "lines": ("short", "view=lines&layer=4&head=11&heads=4.9,4.7&pinrow=10&hints=false", "dark"),
    "neuron": ("short", "view=neuron&layer=4&head=11&row=10&col=2&hints=false", "light"),
    "surface": ("short", "view=surface&layer=4&head=11&row=10&col=2&hints=false", "light"),
    "compare": ("short", "view=compare&layer=5&head=9&compare=difference&row=10&col=13", "light"),
    "flow": ("short", "view=flow&row=10&pinrow=10&sink=true", "dark"),
}

# name of a page of the gallery -> the part of its address after the #
GALLERY = {
    "minilm": "view=head&layer=3&head=1&row=10&col=2&edits=off.3.1,off.4.7,off.5.all&hints=false",
    "bert": "view=head&layer=5&head=11&row=10&col=2",
    "induction": "view=head&layer=1&head=0&row=7&col=3",
    "cross": "view=head&layer=0&head=0&row=1&col=3",
    "patches": "view=image&layer=0&head=0&row=0",
    "profile": "",
}

# name of a view -> page, the part of its address: each in SHEET, on one sheet views-….png
VIEWS = {
    "model": ("short", "view=model&stat=entropy&layer=3&head=1"),
    "head": ("short", "view=head&layer=3&head=1&row=10&col=2"),
    "lines": ("short", "view=lines&layer=3&head=1&heads=3.5&pinrow=10"),
    "text": ("short", "view=text&layer=3&head=1&pinrow=10"),
    "neuron": ("short", "view=neuron&layer=3&head=1&row=10&col=2"),
    "surface": ("short", "view=surface&layer=3&head=1&row=10&col=2"),
    "compare": ("short", "view=compare&layer=3&head=1&compare=difference"),
    "flow": ("short", "view=flow&row=10&pinrow=10&sink=true"),
    "image": ("patches", "view=image&layer=0&head=0&row=5"),
}
WIDTH, GAP = 600, 12  # of a page on the sheet, and around it
PHONE = {"width": 400, "height": 240 * 4}
SHEET = [
    (SIZE, "light", "en"),
    (SIZE, "dark", "en"),
    (SIZE, "light", "zh"),
    (PHONE, "light", "en"),
    (PHONE, "dark", "zh"),
]

REAL = torch.tensor([[False] * 3 + [True] * 5])
LATENTS = [f"latent {i}" for i in range(4)]
FULL = masks.window(None, None)
# name of the picture, mask-….png -> mask, its lengths, what else `plot.mask` is told
MASKS: dict[str, tuple[Mask, tuple[int, ...], dict[str, Any]]] = {
    "none": (FULL, (8,), {"title": "no mask"}),
    "cross": (masks.lengths(6), (4, 8), {}),
    "causal": (masks.causal(), (8,), {}),
    "step": (masks.causal(), (2, 8), {"title": "causal(), 2 queries after 6"}),
    "left-padding": (masks.causal() & masks.padding(REAL), (8,), {"title": "causal() & padding(real)"}),
    "prefix": (masks.prefix(4), (8,), {}),
    "documents": (
        masks.documents([0, 0, 0, 1, 1, 2, 2, 2]) & masks.causal(),
        (8,),
        {"title": "documents(ids) & causal()"},
    ),
    "window": (masks.window(2, 2), (16,), {}),
    "window-causal": (masks.window(4, 0), (16,), {}),
    "window-global": (masks.window(2, 2) | masks.global_tokens([0]), (16,), {}),
    "longformer": (masks.window(128, 128) | masks.global_tokens([0]), (512,), {}),
    "big-bird": (masks.big_bird(512, block_size=16), (512,), {"title": "big_bird(512, block_size=16)"}),
    "dilated": (masks.dilated(3) & masks.window(6, 6), (16,), {}),
    "strided": (masks.strided(4), (16,), {"title": "strided(4)"}),
    "latent-read": (masks.lengths(20), (4, 24), {"title": "each read", "row_labels": LATENTS}),
    "latent-self": (FULL, (4,), {"title": "among the latents", "row_labels": LATENTS, "col_labels": LATENTS}),
    "latent-read-out": (FULL, (6, 4), {"title": "read out", "col_labels": LATENTS}),
}


def main() -> None:
    for name, (mask, lengths, options) in MASKS.items():
        headwise.plot.mask(mask, *lengths, **options, out=HERE / f"mask-{name}.png")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages = {name: Path(folder) / f"{name}.html" for name in ("readme", "long", "short")}
        command([*first_view(), "--out", str(pages["readme"])], standalone_mode=False)
        headwise.view(read((ROOT / "examples" / "attention.txt").read_text("utf-8")), pages["long"], title="Attention")
        headwise.view({"tired": read(TIRED), "wide": read(WIDE)}, pages["short"], title="What is “it”?")
        gallery.main(Path(folder) / "gallery")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shots = {name: (pages[page], address, scheme) for name, (page, address, scheme) in PICTURES.items()}
        for name, address in GALLERY.items():
            shots[f"gallery-{name}"] = (Path(folder) / "gallery" / f"{name}.html", address, "light")
        for name, (path, address, scheme) in shots.items():
            tab = browser.new_page(viewport=SIZE, color_scheme=scheme)
            tab.goto(f"{path.as_uri()}#{address}")
            tab.wait_for_timeout(SETTLED)
            save(Image.open(io.BytesIO(tab.screenshot())).convert("RGB"), HERE / f"{name}.png")
            tab.close()
        pages["patches"] = Path(folder) / "gallery" / "patches.html"
        for name, (page, address) in VIEWS.items():
            save(sheet(browser, f"{pages[page].as_uri()}#{address}"), HERE / f"views-{name}.png")
        browser.close()


def first_view() -> list[str]:
    """The first `headwise view TEXT --open` of the README, without --open: "head" is the page that it opens."""
    found = re.search(r"^headwise (view .*) --open$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert found
    return shlex.split(found[1])


def read(text: str) -> Seen:
    folder = default_model()
    model = headwise.Bert.from_pretrained(folder)
    tokens = Tokenizer.from_pretrained(folder).encode(text, max_length=model.config.max_positions)
    with torch.no_grad(), headwise.watch(model, tokens=[tokens]) as seen:
        model(torch.tensor([tokens.ids]))
    return seen


def sheet(browser: Any, address: str) -> Image.Image:
    """A page in light, in dark and in Chinese, one below the other, and beside them on phones."""
    shots = []
    for size, scheme, language in SHEET:
        tab = browser.new_page(viewport=size, color_scheme=scheme)
        tab.goto(f"{address}&lang={language}")
        tab.wait_for_timeout(SETTLED)
        shots.append(Image.open(io.BytesIO(tab.screenshot())).convert("RGB"))
        tab.close()
    height = WIDTH * SIZE["height"] // SIZE["width"]
    tall = (3 * height + GAP) // 2  # of a phone
    whole = Image.new("RGB", (WIDTH + tall * PHONE["width"] // PHONE["height"] + 3 * GAP, 3 * height + 4 * GAP), "#888")
    for at, shot in enumerate(shots):
        if at < 3:
            whole.paste(shot.resize((WIDTH, height), Image.Resampling.LANCZOS), (GAP, GAP + at * (height + GAP)))
        else:
            small = shot.resize((tall * PHONE["width"] // PHONE["height"], tall), Image.Resampling.LANCZOS)
            whole.paste(small, (WIDTH + 2 * GAP, GAP + (at - 3) * (tall + GAP)))
    return whole


def save(picture: Image.Image, path: Path) -> None:
    """As it is, or with 256 colours where that would be large."""
    picture.save(path, optimize=True)
    if path.stat().st_size > LARGE:
        picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
