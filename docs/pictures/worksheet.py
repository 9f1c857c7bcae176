"""Makes docs/pictures/worksheet-*.png: two sheets of the workbook, drawn by LibreOffice, and the page in Chromium."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image, ImageChops
from playwright.sync_api import sync_playwright

from headwise import masks
from headwise.worksheet import Worksheet, demo

HERE = Path(__file__).parent
TOKENS = ["I", "drink", "and", "know", "things"]
SHEETS = ("Compress keys and values", "Attention weights")
STEP = "Attention weights"
SIZE = {"width": 1100, "height": 640}
DPI, EDGE, GAP = 110, 16, 40
COLOURS = 128


def main() -> None:
    sheet = demo.demo("mla", TOKENS, mask=masks.causal())
    with tempfile.TemporaryDirectory() as folder:
        draw_workbook(sheet, Path(folder))
        draw_page(sheet, Path(folder))


def draw_workbook(sheet: Worksheet, folder: Path) -> None:
    """Some sheets as they are printed, below one another."""
    sheet.write(folder / "attention.xlsx")
    profile = f"-env:UserInstallation={(folder / 'profile').as_uri()}"
    office = ["soffice", profile, "--headless", "--convert-to", "pdf", "--outdir", folder, folder / "attention.xlsx"]
    subprocess.run(office, check=True, capture_output=True)
    subprocess.run(["pdftoppm", "-r", str(DPI), "-png", folder / "attention.pdf", folder / "print"], check=True)
    pages = sorted(folder.glob("print-*.png"))
    steps = pages[len(pages) - len(sheet) :]  # before them the overview, and each step is one page
    titles = [step.title for step in sheet]
    pictures = [trimmed(Image.open(steps[titles.index(title)]).convert("RGB")) for title in SHEETS]
    width = max(picture.width for picture in pictures)
    height = sum(picture.height for picture in pictures) + GAP * (len(pictures) - 1)
    whole = Image.new("RGB", (width, height), "white")
    top = 0
    for picture in pictures:
        whole.paste(picture, (0, top))
        top += picture.height + GAP
    save(whole, HERE / "worksheet-workbook.png")


def draw_page(sheet: Worksheet, folder: Path) -> None:
    sheet.write(folder / "steps.html")
    number = [step.title for step in sheet].index(STEP) + 1
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE, color_scheme="dark")
        tab.goto(f"{(folder / 'steps.html').as_uri()}#step-{number}")
        tab.screenshot(path=folder / "page.png")
        browser.close()
    save(Image.open(folder / "page.png").convert("RGB"), HERE / "worksheet-page.png")


def trimmed(picture: Image.Image) -> Image.Image:
    """Without the margins and the footer."""
    above = picture.crop((0, 0, picture.width, int(picture.height * 0.92)))
    left, top, right, bottom = ImageChops.invert(above).getbbox()
    return above.crop((max(0, left - EDGE), max(0, top - EDGE), right + EDGE, bottom + EDGE))


def save(picture: Image.Image, path: Path) -> None:
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
