"""Makes docs/attention.png of the page that scripts/demo writes: opens it in headless Chromium and points at a cell."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
LAYER, HEAD, IT, ANIMAL = 5, 11, 40, 22  # where this head reads what "it" is

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1200, "height": 640}, color_scheme="light")
    page.goto((ROOT / "attention.html").as_uri())
    page.get_by_label(f"layer {LAYER}, head {HEAD}", exact=True).click()
    for _ in range(6):
        page.keyboard.press("+")  # larger cells; the arrows then bring the cell into view
    page.locator("#words span").nth(IT).hover()
    beyond = 5  # cells to show on either side: walk past the cell and back
    walk = {"ArrowUp": beyond, "ArrowDown": beyond, "ArrowLeft": IT - ANIMAL + beyond, "ArrowRight": beyond}
    for key, times in walk.items():
        for _ in range(times):
            page.keyboard.press(key)
    page.locator("#heads button[data-ready]").nth(6 * 12 - 1).wait_for()  # every small map is drawn
    page.locator(f'#cell[data-cell="{IT},{ANIMAL}"]').wait_for()
    page.screenshot(path=ROOT / "docs" / "attention.png")
    browser.close()
