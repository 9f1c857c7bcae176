"""Notebooks as pages: executed when the site is built, their outputs below their code."""

from __future__ import annotations

import base64
import json
import tempfile
import time
from pathlib import Path
from typing import Any

TIMEOUT = 300  # seconds a cell


def execute(path: Path) -> Any:
    """The notebook with the outputs of a run now, in an empty folder; an error in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        quiet = ["--IPKernelApp.log_level=ERROR"]
        NotebookClient(book, timeout=TIMEOUT, extra_arguments=quiet, resources={"metadata": {"path": folder}}).execute()
    print(f"scripts/docs: {path.name} took {time.perf_counter() - began:.0f} s", flush=True)
    return book


def read(path: Path) -> Any:
    """The notebook with the outputs it was saved with."""
    return json.loads(path.read_text(encoding="utf-8"))


def page(book: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and the files beside it, by name: pictures, and what is HTML, which stands in a frame."""
    parts: list[str] = []
    files: dict[str, bytes] = {}
    for cell in book["cells"]:
        source = _joined(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif source:
            parts.append(f"```python\n{source}\n```")
        text = ""  # texts that follow one another are one
        for output in cell.get("outputs", []):
            shown = _shown(output, name, files)
            if shown is None:
                text += _text(output)
            else:
                parts += [*_block(text), shown]
                text = ""
        parts += _block(text)
    return "\n\n".join(parts) + "\n", files


def _shown(output: Any, name: str, files: dict[str, bytes]) -> str | None:
    """A picture, or a page in a frame; None if the output is text. Coloured text is HTML too, without a script."""
    data = output.get("data", {})
    if "<script" in _joined(data.get("text/html", "")):
        file = f"{name}-{len(files)}.html"
        files[file] = _joined(data["text/html"]).encode()
        return f'<iframe class="live" loading="lazy" src="{file}" title="What the cell shows"></iframe>'
    if "image/png" in data:
        file = f"{name}-{len(files)}.png"
        files[file] = base64.b64decode(_joined(data["image/png"]))
        return f"![What the cell shows]({file})"
    return None


def _text(output: Any) -> str:
    if output["output_type"] == "error":
        raise ValueError(f"a cell ended with {output['ename']}: {output['evalue']}")
    text = output["text"] if "text" in output else output["data"]["text/plain"]
    return _joined(text).rstrip("\n") + "\n"


def _block(text: str) -> list[str]:
    return [f"```{{.text .output}}\n{text}```"] if text.strip() else []


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
