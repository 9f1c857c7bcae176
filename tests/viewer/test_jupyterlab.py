"""In JupyterLab itself: the widgets, the tables and the colours of a light and a dark notebook.

JupyterLab is no dependency of headwise, not even of its tests, so this is skipped where there is none:

    python -m venv lab && lab/bin/pip install jupyterlab
    HEADWISE_JUPYTERLAB=lab/bin/jupyter-lab pytest tests/viewer/test_jupyterlab.py

Its kernel is the Python of the tests. With HEADWISE_PICTURES=folder each notebook is kept there as a picture.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LAB = os.environ.get("HEADWISE_JUPYTERLAB") or shutil.which("jupyter-lab")
TOKEN = "a-token-of-the-test"
STARTS = 90  # seconds
KERNEL = "headwise-tests"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(LAB is None, reason="no JupyterLab: HEADWISE_JUPYTERLAB=lab/bin/jupyter-lab"),
]

MAKE = """
import torch
import headwise
from headwise import masks

torch.manual_seed(0)
words = "The animal was tired , so it slept".split()
q, k = 2 * torch.randn(1, 4, 8, 8), torch.randn(1, 4, 8, 8)
record = headwise.attention(q, k, k, mask=masks.causal(), record=True)[1]
seen = headwise.Seen([record, headwise.attention(k, q, q, record=True)[1]])
seen.tokens = [words]
weights = record.weights()[0]
"""
CELLS = {
    "make": MAKE,
    "view": "headwise.view(seen)",
    "maps": "headwise.show(weights, heads=[0, 1, 3], tokens=words, row='it')",
    "lines": "headwise.show(headwise.Seen([record]), heads=[0, 2], kind='lines', tokens=words, row='it')",
    "summary": "seen.summary()",
    "statistics": "record.statistics()",
    "mask": "masks.causal() & masks.window(2, 0)",
    "plan": "headwise.plan(q, k, k)",
}


@pytest.fixture(scope="module", params=["Light", "Dark"])
def notebook(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, chromium: Browser
) -> Iterator[Page]:
    """The notebook, run from above to below in JupyterLab."""
    folder = tmp_path_factory.mktemp("lab")
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in CELLS.values()],
        metadata={"kernelspec": {"name": KERNEL, "display_name": KERNEL, "language": "python"}},
    )
    nbformat.write(book, folder / "book.ipynb")
    with server(folder, f"JupyterLab {request.param}") as address:
        tab = chromium.new_page(viewport={"width": 1280, "height": 5200})
        tab.set_default_timeout(STARTS * 1000)
        tab.goto(f"{address}/lab/tree/book.ipynb?token={TOKEN}")
        tab.locator(".jp-Notebook .jp-CodeCell").nth(len(CELLS) - 1).wait_for()
        tab.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()  # the kernel has started
        tab.get_by_role("menuitem", name="Run", exact=True).click()
        tab.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        output(tab, "plan").locator("pre").wait_for()
        yield tab
        if pictures := os.environ.get("HEADWISE_PICTURES"):
            tab.wait_for_timeout(2000)
            tab.locator(".jp-WindowedPanel-viewport").screenshot(path=Path(pictures) / f"lab-{request.param}.png")
        tab.close()


class server:  # noqa: N801 (used as a function)
    """JupyterLab in a folder, with this Python as its kernel and the widgets that are installed for it."""

    def __init__(self, folder: Path, theme: str) -> None:
        self.folder, settings = folder, folder / "settings" / "@jupyterlab" / "apputils-extension"
        kernel = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "language": "python"}
        written = {
            settings / "themes.jupyterlab-settings": {"theme": theme},
            settings / "notification.jupyterlab-settings": {"fetchNews": "false", "checkForUpdates": False},
            folder / "data" / "kernels" / KERNEL / "kernel.json": {**kernel, "display_name": KERNEL},
        }
        for path, content in written.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content), encoding="utf-8")

    def __enter__(self) -> str:
        own = {name: str(self.folder / name.lower()) for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
        own |= {"JUPYTERLAB_SETTINGS_DIR": str(self.folder / "settings"), "IPYTHONDIR": str(self.folder / "ipython")}
        widgets = Path(sys.prefix) / "share" / "jupyter"
        own |= {"JUPYTER_PATH": os.pathsep.join(map(str, (self.folder / "data", widgets)))}
        options = ["--no-browser", "--allow-root", "--ServerApp.port=0", f"--IdentityProvider.token={TOKEN}"]
        options.append(f"--ServerApp.root_dir={self.folder}")
        assert LAB is not None
        with (self.folder / "log").open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen([LAB, *options], env={**os.environ, **own}, stdout=log, stderr=log)
        for _ in range(10 * STARTS):
            for found in (self.folder / "jupyter_runtime_dir").glob("jpserver-*.json"):
                address = str(json.loads(found.read_text(encoding="utf-8"))["url"]).rstrip("/")
                if answers(f"{address}/api?token={TOKEN}"):
                    return address
            time.sleep(0.1)
        self.__exit__()
        raise AssertionError(f"JupyterLab does not start:\n{(self.folder / 'log').read_text(encoding='utf-8')[-2000:]}")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def output(tab: Page, cell: str) -> Any:
    place = list(CELLS).index(cell)
    return tab.locator(".jp-Notebook .jp-CodeCell").nth(place).locator(".jp-OutputArea-output")


def is_dark(tab: Page) -> bool:
    return bool(tab.evaluate("document.body.dataset.jpThemeLight") == "false")


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(MAKE, names)
    return names


def test_the_page_is_in_the_cell_and_as_dark_as_the_notebook(notebook: Page) -> None:
    at = output(notebook, "view")
    at.scroll_into_view_if_needed()
    at.locator("[role=tab]").first.wait_for()
    theme = "dark" if is_dark(notebook) else "light"
    assert at.locator("[data-theme]").first.get_attribute("data-theme") == theme
    assert not Path("attention.html").exists()


def test_maps_of_plain_weights_show_these_weights(notebook: Page, here: dict[str, Any]) -> None:
    at = output(notebook, "maps")
    at.scroll_into_view_if_needed()
    assert at.locator("figcaption").all_text_contents() == ["head 0", "head 1", "head 3"]
    assert at.locator("[role=tab]").count() == 0
    map_of_head_3 = at.locator("figure canvas").nth(2)
    map_of_head_3.focus()
    for key in ("ArrowDown", "ArrowLeft"):  # from the pinned query, "it", to the one after it
        notebook.keyboard.press(key)
    cell = at.locator("#cell[data-weight]")
    cell.wait_for()
    row, col = map(int, str(cell.get_attribute("data-cell")).split(","))
    expected = float(here["weights"][3, row, col])
    assert float(str(cell.get_attribute("data-weight"))) == pytest.approx(expected, abs=1e-4)
    assert cell.locator(".place").inner_text() == "head 3"


def test_lines_begin_at_the_query(notebook: Page) -> None:
    at = output(notebook, "lines")
    at.scroll_into_view_if_needed()
    at.locator("canvas").first.wait_for()
    assert "it" in at.locator(".attention-caption").inner_text()


def test_tables_take_the_colours_of_the_notebook(notebook: Page) -> None:
    rows = output(notebook, "summary").locator("table tbody tr")
    assert rows.count() == 2 * 4
    assert output(notebook, "statistics").locator("table").count() == 1
    assert output(notebook, "mask").locator("svg rect").count() > 8
    ink = rows.first.locator("td").first.evaluate("(x) => getComputedStyle(x).color.match(/\\d+/g)[0]")
    assert (int(ink) > 128) == is_dark(notebook)


def test_nothing_went_wrong_in_the_cells(notebook: Page) -> None:
    assert notebook.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']").count() == 0
