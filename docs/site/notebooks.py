"""Notebooks as pages: executed when the site is built, their outputs below their code."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

TIMEOUT = 120  # seconds a cell


def execute(path: Path) -> Any:
    """The notebook with the outputs of a run now, in its own folder; an error in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    began = time.perf_counter()
    NotebookClient(book, timeout=TIMEOUT, resources={"metadata": {"path": path.parent}}).execute()
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
        for output in cell.get("outputs", []):
            parts.append(_output(output, name, files))
    return "\n\n".join(parts) + "\n", files


def _output(output: Any, name: str, files: dict[str, bytes]) -> str:
    if output["output_type"] == "error":
        raise ValueError(f"{name}: a cell ended with {output['ename']}: {output['evalue']}")
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "text/html" in data:
        file = f"{name}-{len(files)}.html"
        files[file] = _joined(data["text/html"]).encode()
        return f'<iframe class="live" loading="lazy" src="{file}" title="What the cell shows"></iframe>'
    if "image/png" in data:
        file = f"{name}-{len(files)}.png"
        files[file] = base64.b64decode(_joined(data["image/png"]))
        return f"![What the cell shows]({file})"
    text = _joined(data["text/plain"]).rstrip()
    return f'```{{.text .output}}\n{text}\n```'


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
