"""Displays a record or a `Seen` in a notebook, if it is the last expression of a cell.

With anywidget (extra `notebook`) it is displayed as a widget, which gets its numbers from the kernel as bytes; without,
as the whole page in a frame. In addition, or alone if there is too much data, there is a still picture of all heads,
which also shows where no script runs. The notebook chooses among these by MIME type.
"""

from __future__ import annotations

import functools
import html
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

from headwise.errors import HeadwiseError
from headwise.extras import install
from headwise.records import AttentionRecord, Seen
from headwise.records.names import name_of
from headwise.registry import Bundle
from headwise.viewer.bundle import assemble
from headwise.viewer.encoding import TOLERANCE
from headwise.viewer.facts import facts_of
from headwise.viewer.inputs import Input, Layer, inputs_of, make_title
from headwise.viewer.page import blocks_of, page_of
from headwise.viewer.picture import overview

Blocks = Mapping[str, bytes]

WIDGET_BYTES = 64e6  # largest data of a widget
FRAME_BYTES = 18e6  # largest data of a page in a frame; the notebook saves it as text, which is a third longer
FRAME_HEIGHT = 640  # pixels
LINE = 20  # pixels of a token in a small output with lines
ESTIMATED_ROWS = 256  # rows for estimating statistics of long inputs, so that a cell is fast

_shown: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # displayed object -> its last widget


@dataclass(frozen=True)
class Small:
    """A small output of `headwise.show`: a few heads of one layer, without the rest of the page."""

    kind: Literal["map", "lines"]
    heads: tuple[int, ...]
    row: int | None = None  # the query that is marked first
    unnamed: bool = False  # its layer has no number

    def height(self, tokens: int) -> int:
        """Return the height in pixels of the frame for it, if 800 wide: a frame does not grow with its content."""
        if self.kind == "lines":
            return 300 + LINE * tokens
        return 110 + (400 if len(self.heads) == 1 else 310 * -(-len(self.heads) // 3))


class Inline:
    """The result of `headwise.view` and `headwise.show` in a notebook, displayed as the last expression of a cell."""

    def __init__(
        self,
        inputs: Sequence[Input],
        title: str,
        *,
        write: str,
        save: str = "seen",
        small: Small | None = None,
        language: str | None = None,
    ) -> None:
        self.inputs, self.title, self.write, self.save, self.small = inputs, title, write, save, small
        self.language = language

    def __repr__(self) -> str:
        what = "page"
        if self.small is not None:
            heads = self.small.heads
            what = f"{self.small.kind} of head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}"
        return f"<{what} of {self.title!r}, displayed in a notebook; {self.write} writes a file>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[Bundle, Bundle]:
        return _bundle(self, lambda: self)


def in_notebook() -> bool:
    """Return whether the caller's cells can show more than text: True in IPython with a kernel."""
    return hasattr(_shell(), "kernel")


def mimebundle(shown: Seen | AttentionRecord) -> tuple[Bundle, Bundle]:
    """Return (the MIME bundle with which a notebook displays the object, its metadata).

    For an object that cannot be shown, the bundle has a sentence that says why; no error is raised.
    """

    def page() -> Inline:
        inputs = inputs_of(shown)
        if isinstance(shown, Seen):
            return Inline(inputs, make_title(inputs), write='headwise.view(seen, "page.html")')
        record = "headwise.Seen([record])"
        return Inline(inputs, name_of(shown), write='headwise.view(record, "page.html")', save=record)

    return _bundle(shown, page)


def _bundle(shown: Any, page: Callable[[], Inline]) -> tuple[Bundle, Bundle]:
    shell = _shell()
    plain: Bundle = {}
    try:
        plain = {"text/plain": repr(shown)}
        if shell is not None and not hasattr(shell, "kernel"):  # IPython in a terminal shows only text
            return plain, {}
        rich, metadata = _rich(shown, page(), kernel=shell is not None)
        return {**rich, **plain}, metadata
    except HeadwiseError as error:
        sentence = f"This {type(shown).__name__} cannot be shown: {error}"
        return {"text/html": f"<p>{_escaped(sentence)}</p>", "text/plain": sentence, **plain}, {}


def _shell() -> Any:
    """Return the calling IPython shell; None outside IPython."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _rich(shown: Any, page: Inline, *, kernel: bool) -> tuple[Bundle, Bundle]:
    widgets = kernel and _widget_class() is not None
    facts, blocks = _carried(page, WIDGET_BYTES if widgets else FRAME_BYTES)
    write = f"<code>{_escaped(page.write)}</code> writes a {'page' if page.small is None else 'figure'}"
    if blocks is not None and widgets:
        rich, metadata = _widget(shown, facts, blocks)._repr_mimebundle_()
        return {**rich, **_still(page, f"Run the cell for the interactive view; {write}.")}, metadata
    if blocks is not None:
        tokens = max(max(layer.record.shape[2:]) for layer in _layers(page.inputs))
        height = FRAME_HEIGHT if page.small is None else page.small.height(tokens)
        return _frame("".join(page_of(facts, blocks.items())), page.title, height), {}
    if not widgets and sum(map(_least_bytes, _layers(page.inputs))) <= WIDGET_BYTES:
        ways = f"<code>{_escaped(install('notebook'))}</code> enables the interactive view; {write}"
    else:
        ways = f'<code>{page.save}.save("run.hw")</code>, then <code>headwise view run.hw --serve</code>'
    return _still(page, f"The interactive view is too large for this output: {ways}."), {}


def _carried(page: Inline, size: float) -> tuple[dict[str, Any], Blocks | None]:
    """Collect the data of a page: (facts, as JSON data; q and k as bytes, or None if larger than `size` bytes)."""
    inputs, small = page.inputs, page.small
    if sum(map(_least_bytes, _layers(inputs))) > size:  # skip encoding
        return {}, None
    told = facts_of(inputs, title=page.title, rows=ESTIMATED_ROWS, language=page.language)
    facts = {**told, "source": "embedded", "tolerance": TOLERANCE}
    facts["small"] = small and asdict(small)
    blocks, total = {}, 0
    for name, data in blocks_of(inputs, facts):
        blocks[name] = data
        total += len(data)
        if total > size:
            return facts, None
    return facts, blocks


def _layers(inputs: Sequence[Input]) -> list[Layer]:
    return [layer for each in inputs for stack in each.stacks for layer in stack.layers]


def _least_bytes(layer: Layer) -> int:
    """Return the smallest possible size of a layer's queries and keys in bytes: 12 bits per number."""
    _, heads, q_len, k_len = layer.record.shape
    return layer.record.q.shape[3] * (heads * q_len + layer.record.k.shape[1] * k_len) * 12 // 8


# The three kinds of output.


def _widget(shown: Any, facts: Mapping[str, Any], blocks: Blocks) -> Any:
    """Return the widget that displays an object.

    ipywidgets frees no widget while the kernel runs, so an unchanged object gets its last widget again.
    """
    places, past = {}, 0
    for name, data in blocks.items():
        places[name] = [past, past := past + len(data)]
    state = {"facts": json.dumps(facts, allow_nan=False), "places": places, "blocks": b"".join(blocks.values())}
    known = _shown.get(shown)
    if known is None or known.comm is None or any(getattr(known, name) != value for name, value in state.items()):
        known = _shown[shown] = _widget_class()(**state)
    return known


def _widget_class() -> Any:
    """Return the class of widgets; None if anywidget is not installed."""
    try:
        import anywidget  # noqa: F401
    except ImportError:
        return None
    return _viewer()


@functools.cache
def _viewer() -> Any:
    import anywidget
    import traitlets

    class Viewer(anywidget.AnyWidget):
        _esm = assemble("widget.js") + "\nexport default { render: $widget_js.render };\n"
        facts = traitlets.Unicode().tag(sync=True)
        places = traitlets.Dict().tag(sync=True)  # start and end of each block in `blocks`
        blocks = traitlets.Bytes().tag(sync=True)  # sent as bytes, not as text

    return Viewer


def _frame(page: str, title: str, height: int) -> Bundle:
    """Return the page as HTML of a sandboxed frame, which may only run its script and save pictures."""
    rights = 'sandbox="allow-scripts allow-downloads" allow="clipboard-write"'
    size = f'width="100%" height="{height}" style="border: 0" loading="lazy"'
    frame = f'<iframe srcdoc="{html.escape(page)}" title="{_escaped(title)}" {rights} {size}></iframe>'
    return {"text/html": frame}


def _still(page: Inline, more: str) -> Bundle:
    """Return a picture of the first input as HTML, and the sentence `more` (HTML), which says how to see more."""
    inputs = page.inputs
    picture = overview(inputs[0], None if page.small is None else page.small.heads)
    about = picture.about if len(inputs) == 1 else f"{picture.about} This is the first of {len(inputs)} inputs."
    size = f'width="{picture.width}" height="{picture.height}"'
    image = f'<img src="{picture.uri}" {size} alt="{_escaped(about)}">'
    return {"text/html": f"<p>{image}</p>\n<p>{_escaped(about)} {more}</p>"}


def _escaped(text: str) -> str:
    """Escape text for HTML, also within quotes; a lone surrogate, which files cannot hold, becomes a question mark."""
    return html.escape(text.encode("utf-8", "replace").decode())
