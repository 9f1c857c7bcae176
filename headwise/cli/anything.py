"""Makes the content of the page of `headwise view --model`: any transformers model that reads texts or images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.cli.files import NamedText, encoded
from headwise.cli.layers import LayerRange, choose_layers
from headwise.cli.loading import tell_missing
from headwise.cli.looking import named_inputs
from headwise.cli.output import Say
from headwise.errors import ArgumentError, FileError
from headwise.language import Sentence, echo, said

if TYPE_CHECKING:
    from headwise.capture.pretrained import Pretrained
    from headwise.records import Seen
    from headwise.records.coverage import Coverage
    from headwise.viewer import Input

WRITTEN = 20  # tokens that an encoder-decoder generates at most, so that the page shows its decoder, too


def view_texts(
    named: Sequence[NamedText], model: str, ranges: Sequence[LayerRange] | None, say: Say
) -> tuple[list[Input], Coverage]:
    """Run a model on each text alone, unpadded; return the inputs of the page, and what was recorded.

    An encoder-decoder reads the text and writes up to `WRITTEN` tokens.
    """
    from headwise.capture.pretrained import load_pretrained, what_it_reads, writes_apart
    from headwise.models.checkpoint import located

    name = located(model)
    reads = what_it_reads(name)
    if reads != "texts":
        way = "--image FILE" if reads == "images" else "with headwise.watch(model) in Python: docs/watch.md"
        raise ArgumentError(
            "--model {model}: it reads {reads}, not texts. Show it {way}", model=model, reads=reads, way=way
        )
    pretrained = load_pretrained(name, generates=writes_apart(name))
    tell_missing(pretrained)
    seen = []
    for number, each in enumerate(named, start=1):
        say(reading(each.name, number, len(named)))
        seen.append(_look(pretrained, each))
    return _shown(seen, [each.title for each in named], ranges)


def reading(name: object, number: int, count: int) -> Sentence:
    """Say which of several inputs is being read."""
    return Sentence("reading {name} ({number} of {count})").format(name=name, number=number, count=count)


def _look(pretrained: Pretrained, named: NamedText) -> Seen:
    import torch

    from headwise.capture.context import watch

    tokens = encoded(named, pretrained.encode, pretrained.max_length)
    with torch.no_grad(), watch(pretrained.model) as seen:
        if pretrained.writes_apart:
            names: Any = pretrained.generate([tokens], WRITTEN, lambda: None)
        else:
            names = {"target": pretrained.read([tokens])}
    if seen.records:
        seen.tokens = names
    return seen


def view_images(
    paths: Sequence[Path], model: str, ranges: Sequence[LayerRange] | None, say: Say
) -> tuple[list[Input], Coverage]:
    """Run a model on each image; return the inputs of the page, and what was recorded."""
    import torch

    from headwise.capture.context import watch
    from headwise.capture.pretrained import load_pictured
    from headwise.models.checkpoint import located

    for path in paths:
        if not path.is_file():
            received = Sentence("a folder" if path.is_dir() else "no such file")
            raise FileError(
                "--image {path}: expected an image file. Received: {received}", path=path, received=received
            )
    pictured = load_pictured(located(model))
    tell_missing(pictured)
    seen = []
    for number, path in enumerate(paths, start=1):
        say(reading(path, number, len(paths)))
        with torch.no_grad(), watch(pictured.model) as one:
            pictured.read(path)
        seen.append(one)
    if all(each.tokens is None and each.source_tokens is None for each in seen):
        echo(said("note: which tokens are which patches is not known, so the page shows no image"), err=True)
    return _shown(seen, [path.name for path in paths], ranges, processor=pictured.processor)


def _shown(
    seen: Sequence[Seen], titles: Sequence[str], ranges: Sequence[LayerRange] | None, **given: Any
) -> tuple[list[Input], Coverage]:
    for each in seen:
        if not each.records:
            each.only(0)  # raises with the reason why nothing was recorded
    return named_inputs(seen, titles, choose_layers(ranges, len(seen[0].layers)), **given), seen[0].coverage()
