"""Writes the page of `headwise view` for the effects of a patching experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwise.cli.files import check_writable, finish_page
from headwise.errors import ArgumentError
from headwise.files import check_page, check_there

PAGE = Path("patching.html")


def patching_among(texts: Sequence[str], others: dict[str, Any]) -> Path | None:
    """Return the path of the file that `Patching.save` wrote, or None. ArgumentError for anything beside it.

    `others`: the options that such a file does not take, by their names.
    """
    candidates = [Path(text) for text in texts if text.endswith(".hw")]
    for each in candidates:
        check_there(each)  # before torch is imported
    if not candidates:
        return None
    from headwise.experiments.saved import is_patching

    found = next(filter(is_patching, candidates), None)
    beside = [text for text in texts if found is None or Path(text) != found] + [
        name for name in others if others[name]
    ]
    if found is not None and beside:
        raise ArgumentError(
            "{found} is a file of patching: expected only --out and --open beside it. Received: {other}",
            found=found,
            other=beside[0],
        )
    return found


def view_patching(path: Path, out: Path | None, *, open_page: bool) -> None:
    """Write the page of a patching experiment. FileError if the file is damaged or the page cannot be written."""
    from headwise.experiments import Patching
    from headwise.viewer.patched import write_patching_page

    target = out or PAGE
    check_writable(target, "--out", [path], "the file of patching")
    check_page(target)
    write_patching_page(target, Patching.load(path), title=path.name)
    finish_page(target, open_page=open_page)
