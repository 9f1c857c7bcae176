"""`headwise.view`: write the page of recorded attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.errors import ArgumentError, DtypeError
from headwise.language import LANGUAGES, echo, known, said
from headwise.viewer.images import Normalisation
from headwise.viewer.inputs import Images, Many, inputs_of, make_title
from headwise.viewer.notebook import Inline, in_notebook
from headwise.viewer.page import write_page

if TYPE_CHECKING:
    from headwise.experiments import Patching

PAGE = Path("attention.html")


def view(
    seen: Many | Patching,
    out: Path | str | None = None,
    *,
    title: str | None = None,
    images: Images = None,
    processor: Normalisation = None,
    generated: int | Sequence[int | None] | None = None,
    language: str | None = None,
) -> Path | Inline:
    """Show an interactive page of every layer and head: in a notebook below the cell, else in one offline file.

        with headwise.watch(model, tokens=tokens) as seen:
            model(**inputs)
        headwise.view(seen)                                         in a notebook; in a script, attention.html
        headwise.view({"before": first, "after": second}, "tuning.html")    two inputs to compare

    The page holds queries and keys instead of weights, so its size is linear in the length. Its weights are within 1e-4
    of `record.weights()`; this is checked while it is written. For inputs too long for a file: `headwise view --serve`.

    Args:
        seen: a `Seen` of `headwise.watch` or `headwise.load`, a record, or several of them: a list, or a mapping from
            names. The page offers every example of a batch. Or what `headwise.experiments.patching` found over heads or
            positions: its page is a map of the effects.
        out: the file to write. None = no file in a notebook, where the page is shown below the cell; elsewhere
            attention.html, with a line on standard error.
        title: the title of the page; None = the first words of the texts.
        images: if tokens are patches of an image, the image: a path of a PNG or JPEG, a PIL image, or pixels [H, W],
            [H, W, 3] or [3, H, W] (uint8, or floats). Or one for each input: a list, a batch [B, 3, H, W], or what an
            image processor returned. None = the images that the model read, if `headwise.watch` saw them.
        processor: the image processor of the model, or (mean, std): its normalisation is removed from pixels that are
            floats. None = floats beyond 0 to 1 are spread from black to white, and the page says so.
        generated: if the model generated a part, the number of tokens in the prompt; or a list with one number for each
            input.
        language: the language of the page, "en" or "zh"; None = the language of each reader's browser. The page has a
            switch.

    Returns:
        The path of the file; in a notebook without `out`, an object that displays the page as the last expression of
        a cell.

    Raises:
        RecordError: no attention was recorded, or the page cannot show a record within its tolerance.
        ArgumentError: an image or a number does not fit, or headwise does not speak the language.
        DtypeError: `seen` or `out` has another type.
        FileError: the file cannot be written. No partial file is left behind.
    """
    if out is not None and not isinstance(out, (str, Path)):
        told = f"view: out must be a path. Received: {type(out).__name__}. The order is view(seen, path)"
        raise DtypeError(told)
    if language is not None and known(language) is None:
        raise ArgumentError(f"view: language must be one of {', '.join(LANGUAGES)}. Received: language={language!r}")
    from headwise.experiments import Patching

    path = PAGE if out is None else Path(out)
    if isinstance(seen, Patching):
        from headwise.viewer.patched import write_patching_page

        write_patching_page(path, seen, title=title or "patching", language=language)
        return path
    inputs = inputs_of(seen, images=images, processor=processor, generated=generated)
    title = make_title(inputs) if title is None else title
    if out is None and in_notebook():
        return Inline(inputs, title, write='headwise.view(…, "page.html")', language=language)
    write_page(path, inputs, title=title, language=language)
    if out is None:
        echo(said("headwise: wrote {path}: open it in a browser; it needs no network", path=path), err=True)
    return path
