"""How a notebook displays a record or a `Seen` that is the last expression of a cell.

With anywidget (extra `notebook`): the page as a widget, which gets its numbers from the kernel as bytes. Without it:
the whole page in a frame. In addition, or if there is too much data, a still picture of all heads, which also shows
where no script runs. The notebook chooses among these by MIME type.
"""

from __future__ import annotations

import functools
import html
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from headwise.errors import HeadwiseError
from headwise.records import AttentionRecord, Seen
from headwise.records.seen import name_of
from headwise.registry import Bundle
from headwise.viewer.bundle import assemble
from headwise.viewer.encoding import TOLERANCE
from headwise.viewer.facts import facts_of
from headwise.viewer.inputs import Input, Layer, inputs_of
from headwise.viewer.page import blocks_of, page_of
from headwise.viewer.picture import overview
from headwise.viewer.view import title_of

Shown = Seen | AttentionRecord
Blocks = Mapping[str, bytes]

WIDGET_BYTES = 64e6  # largest data of a widget
FRAME_BYTES = 18e6  # largest data of a page in a frame; as text, a third longer, it is saved in the notebook
FRAME_HEIGHT = 640  # pixels
ESTIMATED_ROWS = 256  # rows for estimating statistics of long inputs, so that a cell is fast

_shown: WeakKeyDictionary[Shown, Any] = WeakKeyDictionary()  # the last widget of each object


def mimebundle(shown: Shown) -> tuple[Bundle, Bundle]:
    """The MIME bundle of a cell and its metadata. An object that cannot be shown gives a sentence, never an error."""
    shell = _shell()
    plain: Bundle = {}
    try:
        plain = {"text/plain": repr(shown)}
        if shell is not None and not hasattr(shell, "kernel"):  # IPython in a terminal shows only text
            return plain, {}
        rich, metadata = _rich(shown, kernel=shell is not None)
        return {**rich, **plain}, metadata
    except HeadwiseError as error:
        sentence = f"This {type(shown).__name__} cannot be shown: {error}"
        return {"text/html": f"<p>{_escaped(sentence)}</p>", "text/plain": sentence, **plain}, {}


def _shell() -> Any:
    """The calling IPython shell; None outside IPython."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _rich(shown: Shown, *, kernel: bool) -> tuple[Bundle, Bundle]:
    inputs = inputs_of(shown)
    if isinstance(shown, Seen):
        name, file, title = "seen", "seen", title_of(inputs)
    else:
        name, file, title = "record", "headwise.Seen([record])", name_of(shown)
    widgets = kernel and _widget_class() is not None
    facts, blocks = _carried(inputs, title, WIDGET_BYTES if widgets else FRAME_BYTES)
    page = f"<code>headwise.view({name})</code> writes a page"
    if blocks is not None and widgets:
        rich, metadata = _widget(shown, facts, blocks)._repr_mimebundle_()
        return {**rich, **_still(inputs, f"Run the cell for the interactive view; {page}.")}, metadata
    if blocks is not None:
        return _frame("".join(page_of(facts, blocks.items())), title), {}
    if not widgets and sum(map(_least_bytes, _layers(inputs))) <= WIDGET_BYTES:
        ways = f'<code>pip install "headwise[notebook]"</code> enables the interactive view; {page}'
    else:
        ways = f'<code>{file}.save("run.hw")</code>, then <code>headwise view run.hw --serve</code>'
    return _still(inputs, f"The interactive view is too large for this output: {ways}."), {}


def _carried(inputs: Sequence[Input], title: str, size: float) -> tuple[dict[str, Any], Blocks | None]:
    """The facts and the numbers of a page; None instead of numbers that take more than `size` bytes."""
    if sum(map(_least_bytes, _layers(inputs))) > size:  # skip encoding
        return {}, None
    facts = {**facts_of(inputs, title=title, rows=ESTIMATED_ROWS), "source": "embedded", "tolerance": TOLERANCE}
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
    """The size of a layer's queries and keys at 12 bits per number."""
    _, heads, q_len, k_len = layer.record.shape
    return layer.record.q.shape[3] * (heads * q_len + layer.record.k.shape[1] * k_len) * 12 // 8


# The three kinds of output.


def _widget(shown: Shown, facts: Mapping[str, Any], blocks: Blocks) -> Any:
    """ipywidgets never frees a widget while the kernel runs, so an unchanged object reuses its widget."""
    places, past = {}, 0
    for name, data in blocks.items():
        places[name] = [past, past := past + len(data)]
    state = {"facts": json.dumps(facts, allow_nan=False), "places": places, "blocks": b"".join(blocks.values())}
    known = _shown.get(shown)
    if known is None or known.comm is None or any(getattr(known, name) != value for name, value in state.items()):
        known = _shown[shown] = _widget_class()(**state)
    return known


def _widget_class() -> Any:
    """The widget class; None if anywidget is not installed."""
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


def _frame(page: str, title: str) -> Bundle:
    """The page in a sandboxed frame that may only run its script and save pictures."""
    rights = 'sandbox="allow-scripts allow-downloads" allow="clipboard-write"'
    size = f'width="100%" height="{FRAME_HEIGHT}" style="border: 0" loading="lazy"'
    frame = f'<iframe srcdoc="{html.escape(page)}" title="{_escaped(title)}" {rights} {size}></iframe>'
    return {"text/html": frame}


def _still(inputs: Sequence[Input], more: str) -> Bundle:
    """A picture of the first input, and a sentence (HTML) on how to see more."""
    picture = overview(inputs[0])
    about = picture.about if len(inputs) == 1 else f"{picture.about} This is the first of {len(inputs)} inputs."
    size = f'width="{picture.width}" height="{picture.height}"'
    image = f'<img src="{picture.uri}" {size} alt="{_escaped(about)}">'
    return {"text/html": f"<p>{image}</p>\n<p>{_escaped(about)} {more}</p>"}


def _escaped(text: str) -> str:
    """Text as HTML, also within quotes; a lone surrogate, which a file cannot hold, becomes a question mark."""
    return html.escape(text.encode("utf-8", "replace").decode())
