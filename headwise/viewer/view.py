"""`headwise.view`: the page of whatever was seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headwise.viewer.inputs import Images, Input, Many, inputs_of
from headwise.viewer.page import write_page

LONGEST = 120  # characters of a title that names its inputs


def view(
    seen: Many,
    out: Path | str = "attention.html",
    *,
    title: str | None = None,
    images: Images = None,
    generated: int | Sequence[int | None] | None = None,
) -> Path:
    """Write a page, one file that needs no network, in which every layer and head can be looked at.

        with headwise.watch(model, tokens=tokens) as seen:
            model(**inputs)
        headwise.view(seen)                                         attention.html
        headwise.view({"before": first, "after": second}, "tuning.html")    two that can be compared

    The page carries queries and keys, not weights, so its size is linear in the length; what it shows is within 1e-4 of
    `record.weights()`, which is compared while it is written. For inputs too long for a file: `headwise view --serve`.

    Args:
        seen: what `headwise.watch` saw or `headwise.load` read, a record, or several of them: a list, or a mapping from
            what to call them. Every example of a batch can be chosen in the page.
        out: the file to write.
        title: of the page; None = how the texts begin.
        images: where tokens are patches of an image, the image: a path of a PNG or JPEG, an array or tensor [H, W, 3]
            or [H, W] (uint8, or floats from 0 to 1), a PIL image; a list has one for each input.
        generated: how many of the tokens were the prompt, where the model wrote the others; a list has one for each
            input.

    Returns:
        The path of the file.

    Raises:
        RecordError: nothing was seen, or a record that the page cannot show within its tolerance.
        ArgumentError: an image or a number that does not fit.
        DtypeError: `seen` is nothing that was seen.
        FileError: the file cannot be written. Nothing half-written is left behind.
    """
    inputs = inputs_of(seen, images=images, generated=generated)
    write_page(out, inputs, title=title_of(inputs) if title is None else title)
    return Path(out)


def title_of(inputs: Sequence[Input]) -> str:
    """What a page is called by whoever does not say."""
    names = " · ".join(each.name for each in inputs)
    return names if len(names) <= LONGEST else f"{names[:LONGEST]}…"
