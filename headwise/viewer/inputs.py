"""Finds the inputs of a page (a text, an example of a batch, one of two checkpoints), each with stacks of layers.

A stack holds the layers of one forward pass whose queries are the same tokens and whose keys are the same tokens.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from headwise.errors import ArgumentError, DtypeError, RecordError
from headwise.records import AttentionRecord, Seen
from headwise.records.names import name_of
from headwise.text import Tokens
from headwise.viewer.images import Image, Normalisation, Picture, each_image, picture

BEGINNING = 60  # characters of a text that serve as its name
LONGEST = 120  # characters of a title that names its inputs
LONG = 2**17  # with more tokens, a page has only labels: no words, no sentences, no suggestions

Shown = Seen | AttentionRecord
Many = Shown | Sequence[Shown] | Mapping[str, Shown]
Images = Image | Sequence[Image | None] | Mapping[str, Any] | None


@dataclass(frozen=True)
class Axis:
    """The tokens of the rows (queries) or of the columns (keys) of a stack of layers."""

    tokens: Tokens
    generated: int | None = None  # the first token that the model generated; None = none or unknown
    image: Picture | None = None  # if the tokens are patches of an image


@dataclass(frozen=True)
class Layer:
    """One layer on the page: one example of one record."""

    name: str
    number: int  # its index in seen.layers
    record: AttentionRecord
    example: int
    expression: str  # the Python code of this record, given `seen`


@dataclass(frozen=True)
class Stack:
    """Layers of one forward pass that have the same tokens in rows and the same tokens in columns."""

    name: str
    kind: Literal["self", "cross"]
    rows: Axis
    cols: Axis
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Input:
    """One input of a model (such as a text), with the stacks of layers that read it; see `Stack`."""

    name: str
    stacks: tuple[Stack, ...]
    pixels: Image | None = None  # the image that the model read, if `headwise.watch` saw it
    model: str = ""  # the name or the class of the model; "" = unknown


def inputs_of(
    seen: Many,
    *,
    images: Images = None,
    processor: Normalisation = None,
    generated: int | Sequence[int | None] | None = None,
    layers: Collection[int] | None = None,
) -> list[Input]:
    """Find the inputs that a page of `seen` shows.

    Args:
        seen: a `Seen`, a record, or several of them: a list, or a mapping from names. Every example of a
            batch is an input.
        images: if tokens are patches, the image: a path, a PIL image, pixels [H, W], [H, W, 3] or [3, H, W]; or one for
            each input: a list, a batch [B, 3, H, W], or the output of an image processor. None = the images that the
            model read, if `headwise.watch` saw them.
        processor: the image processor, or (mean, std), whose normalisation is removed from floats.
        generated: if the model generated a part, the number of tokens in the prompt; or a list with one number for each
            input.
        layers: indices into `seen.layers`; None = all.

    Raises:
        RecordError: no attention was recorded.
        ArgumentError: images or prompts do not fit the inputs.
        DtypeError: `seen` has another type.
    """
    found = [_only(each, layers) for name, shown, python in _named(seen) for each in _examples(name, shown, python)]
    pictures = _pictures(images, processor, found)
    prompts = one_each("generated", generated, len(found))
    given = zip(_distinct([each.name for each in found]), found, pictures, prompts, strict=True)
    return [_completed(replace(each, name=name, pixels=None), image, prompt) for name, each, image, prompt in given]


def _pictures(images: Images, processor: Normalisation, found: Sequence[Input]) -> list[Picture | None]:
    """Return the image of each input, encoded for the page; None for an input without image."""
    if images is None:
        given = [each.pixels if any(map(_has_patches, each.stacks)) else None for each in found]
    else:
        images = each_image(images)
        if isinstance(images, list) and len(images) < len(found) and len(found) % len(images or "?") == 0:
            raise ArgumentError(
                f"images: expected one for each of the {len(found)} inputs. Received: {len(images)}. If the model "
                "attends in windows, as Swin does, each window is an input: give the part of the image in each window, "
                "and set seen.tokens = headwise.text.Patches(rows, cols, prefix=()) for the patches of a window"
            )
        given = one_each("images", images, len(found))
    return [None if image is None else picture(image, processor) for image in given]


def _has_patches(stack: Stack) -> bool:
    return any(axis.tokens.patches is not None for axis in (stack.rows, stack.cols))


def _named(seen: Many) -> Iterator[tuple[str | None, Shown, str]]:
    """Yield (name or None, object, its Python code) for each of one or several objects."""
    several: list[tuple[str | None, Any, str]]
    if isinstance(seen, Mapping):
        several = [
            (str(name), each, f"seen[{json.dumps(str(name), ensure_ascii=False)}]") for name, each in seen.items()
        ]
    elif isinstance(seen, (list, tuple)):
        several = [(None, each, f"seen[{place}]") for place, each in enumerate(seen)]
    else:
        several = [(None, seen, "seen")]
    if not several:
        raise ArgumentError("view: expected at least one Seen or record. Received: an empty collection")
    for name, each, python in several:
        if not isinstance(each, (Seen, AttentionRecord)):
            raise DtypeError(
                "view: expected a Seen of headwise.watch, a record, or a list or mapping of these. "
                f"Received: {type(each).__name__}"
            )
        yield name, each, python


def _examples(name: str | None, shown: Shown, python: str) -> Iterator[Input]:
    """Yield an input for each example of the batch, still without images and prompts."""
    if isinstance(shown, AttentionRecord):
        seen, own = Seen([shown]), "record" if python == "seen" else python
        places = [replace(place, name=name_of(shown), expression=own) for place in _places(seen, "")]
    else:
        seen = shown
        if not seen.records:
            seen.only(0)  # raises with the reason why nothing was recorded
        places = list(_places(seen, python))
    batch = max(record.shape[0] for record in seen.records)
    for example in range(batch):
        base = name or _beginning(seen, example) or "input"
        stacks = tuple(_stacks(seen, places, example))
        pixels = None if seen.pixel_values is None else seen.pixel_values[example]
        yield Input(base if batch == 1 else f"{base} · {example + 1} of {batch}", stacks, pixels, seen.model)


@dataclass(frozen=True)
class _Place:
    """A record, with what finds it in a `Seen`: the layer's name and number, the call, the Python expression."""

    record: AttentionRecord
    name: str
    number: int
    call: int
    expression: str


def _places(seen: Seen, python: str) -> Iterator[_Place]:
    """Yield a `_Place` for each record of `seen`; `python` is the Python code of `seen`."""
    numbers = {name: number for number, name in enumerate(seen.layers)}
    times = Counter(name_of(record) for record in seen.records)
    layers_of_call = functools.cache(lambda call: seen.call(call).layers)
    for i, record in enumerate(seen.records):
        name, site = name_of(record), record.site
        if site is None:
            yield _Place(record, f"{name} {i}", i, 0, f"{python}.records[{i}]")
        elif times[name] == 1:
            yield _Place(record, name, numbers[name], site.call, f"{python}[{numbers[name]}]")
        else:
            within = layers_of_call(site.call).index(name)
            yield _Place(record, name, numbers[name], site.call, f"{python}.call({site.call})[{within}]")


def _beginning(seen: Seen, example: int) -> str | None:
    """Return the first words of the text that the model read, as a name of the input; None if it is unknown."""
    for side in (seen.source_tokens, seen.tokens):
        if side is not None and example < len(side) and side[example].text.strip():
            words = " ".join(side[example].text[:200].split())
            return words if len(words) <= BEGINNING else f"{words[:BEGINNING]}…"
    return None


def _stacks(seen: Seen, places: Sequence[_Place], example: int) -> Iterator[Stack]:
    """Group the layers of one example into stacks (the same tokens in rows and in columns), and yield the stacks.

    They come in the order in which their first layers were computed.
    """
    groups: dict[tuple[object, ...], list[_Place]] = {}
    for place in places:
        batch, _, q_len, k_len = place.record.shape
        if not q_len or not k_len:
            raise RecordError(f"{place.name}: nothing to show for Q = {q_len} queries and K = {k_len} keys")
        if example < batch:
            sides = seen.axes(place.record)
            key = (place.call, *map(id, sides), _kind(seen, place.record), q_len, k_len)
            groups.setdefault(key, []).append(place)
    calls = len({place.call for place in places}) > 1
    crosses = any(_kind(seen, place.record) == "cross" for place in places)
    names = [_stack_name(group[0], crosses, calls, _kind(seen, group[0].record)) for group in groups.values()]
    if len(set(names)) < len(names):  # towers of different lengths
        names = [
            f"{name} · {' × '.join(map(str, group[0].record.shape[2:]))}" if names.count(name) > 1 else name
            for name, group in zip(names, groups.values(), strict=True)
        ]
    for name, group in zip(_distinct(names), groups.values(), strict=True):
        rows, cols = _axes(seen, group[0].record, example)
        layers = tuple(Layer(each.name, each.number, each.record, example, each.expression) for each in group)
        yield Stack(name, _kind(seen, group[0].record), rows, cols, layers)


def _kind(seen: Seen, record: AttentionRecord) -> Literal["self", "cross"]:
    if record.site is not None:
        return record.site.kind
    rows, cols = seen.axes(record)
    return "self" if rows is cols and record.shape[2] == record.shape[3] else "cross"


def _only(given: Input, layers: Collection[int] | None) -> Input:
    if layers is None:
        return given
    stacks = [replace(s, layers=tuple(each for each in s.layers if each.number in layers)) for s in given.stacks]
    return replace(given, stacks=tuple(stack for stack in stacks if stack.layers))


def _stack_name(place: _Place, crosses: bool, calls: bool, kind: str) -> str:
    if place.record.row_names and place.record.row_names == place.record.col_names:
        kind = "latents"
    elif kind == "self" and crosses:
        kind = "encoder" if "encoder" in place.name.lower().split(".") else "decoder"
    return f"{kind} · call {place.call}" if calls else kind


def _axes(seen: Seen, record: AttentionRecord, example: int) -> tuple[Axis, Axis]:
    """Return the tokens of the rows and of the columns of a record; numbers as names if they are unknown."""
    _, _, q_len, k_len = record.shape
    rows, cols = seen.axes(record)
    first = max(0, k_len - q_len) if _kind(seen, record) == "self" else 0  # the last query is at the last key
    return (
        Axis(rows[example] if rows else _numbers(first, q_len)),
        Axis(cols[example] if cols else _numbers(0, k_len)),
    )


@functools.lru_cache(2)  # one object for all layers: one for the rows and one for the columns
def _numbers(first: int, count: int) -> Tokens:
    return Tokens.of_names([str(first + i) for i in range(count)])


def is_long(tokens: Tokens) -> bool:
    """Return whether there are too many tokens to show as texts, so that a page shows only maps."""
    return len(tokens.labels) > LONG


def make_title(inputs: Sequence[Input]) -> str:
    """Make the default title of a page, from the names of its inputs."""
    names = " · ".join(each.name for each in inputs)
    half = LONGEST // 2  # cut in the middle: a name of a file says most at its ends
    return names if len(names) <= LONGEST else f"{names[:half]}…{names[-half:]}"


def one_each(name: str, given: Any, count: int) -> list[Any]:
    """Return a list of `count` values, one for each input: `given` itself if it is a list, else `given` for all."""
    if not isinstance(given, (list, tuple)):
        return [given] * count
    if len(given) != count:
        raise ArgumentError(f"{name}: expected one for each of the {count} inputs. Received: {len(given)}")
    return list(given)


def _completed(given: Input, image: Picture | None, prompt: int | None) -> Input:
    """Return the input with its image and its prompt on its axes.

    The image is set on axes of patches. The prompt's end is marked on axes that begin with the prompt.
    """
    if prompt is not None and (type(prompt) is not int or prompt < 0):
        raise ArgumentError(f"generated: expected the number of tokens in the prompt. Received: {prompt!r}")
    stacks = []
    for stack in given.stacks:
        wrote_rows = stack.kind == "cross" or not stack.name.startswith("encoder")
        wrote_cols = wrote_rows and stack.kind == "self"
        rows = _completed_axis(stack.rows, image, prompt if wrote_rows else None)
        cols = _completed_axis(stack.cols, image, prompt if wrote_cols else None)
        stacks.append(replace(stack, rows=rows, cols=cols))
    axes = [axis for stack in stacks for axis in (stack.rows, stack.cols)]
    if image is not None and all(axis.image is None for axis in axes):
        raise ArgumentError(
            f"images: {given.name} has no tokens that are patches of an image. If the model reads patches, set "
            "seen.tokens = headwise.text.Patches(rows, cols, prefix=(…)), with the names of the tokens before them"
        )
    if prompt is not None and all(axis.generated is None for axis in axes):
        lengths = sorted({len(axis.tokens.labels) for axis in axes})
        raise ArgumentError(
            f"generated: expected fewer tokens in the prompt than {given.name} has. "
            f"Received: {prompt} of {' or '.join(map(str, lengths))}"
        )
    return replace(given, stacks=tuple(stacks))


def _completed_axis(axis: Axis, image: Picture | None, prompt: int | None) -> Axis:
    begins = prompt is not None and prompt < len(axis.tokens.labels)
    return replace(axis, image=image if axis.tokens.patches else None, generated=prompt if begins else None)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names, with numbers appended if several names are the same."""
    count: Counter[str] = Counter()
    found = []
    for name in names:
        count[name] += 1
        found.append(f"{name} ({count[name]})" if names.count(name) > 1 else name)
    return found
