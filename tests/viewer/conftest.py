"""Records to show, and a reader of the page's data that knows the format but shares no code with the page."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import headwise
from headwise import masks
from headwise.cli.files import NamedText
from headwise.cli.live import live_causal
from headwise.records import AttentionRecord, Seen, Site
from headwise.text import Tokens
from headwise.viewer import facts, inputs_of, write_page
from headwise.viewer.changes import Asked
from headwise.viewer.live import Live
from headwise.viewer.server import serving_live

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext
    from playwright.sync_api import Page as Tab


def record(
    heads: int = 2,
    kv_heads: int | None = None,
    length: int = 9,
    dim: int = 4,
    *,
    keys: int | None = None,
    batch: int = 1,
    size: float = 1.0,
    **options: Any,
) -> AttentionRecord:
    q = size * torch.randn(batch, heads, length, dim)
    k = size * torch.randn(batch, kv_heads or heads, keys or length, dim)
    return headwise.attention(q, k, k, record=True, **options)[1]


def placed(record: AttentionRecord, name: str, layer: int = 0, *, kind: Any = "self", call: int = 0) -> AttentionRecord:
    """The record, as if a module of this path had made it."""
    _, heads, _, _ = record.shape
    record.site = Site(name, layer, kind, False, heads, record.k.shape[1], call)
    return record


def tokens(labels: list[str]) -> Tokens:
    """One token a label, with a space between any two."""
    starts = np.cumsum([0, *(len(label) + 1 for label in labels)])[:-1].tolist()
    offsets = tuple((start, start + len(label)) for start, label in zip(starts, labels, strict=True))
    no = (False,) * len(labels)
    return Tokens(tuple(range(len(labels))), tuple(labels), offsets, no, " ".join(labels), 0, no)


def look(*records: AttentionRecord, labels: list[str] | None = None) -> Seen:
    """The records as the layers of a model, over tokens w0, w1, … where no labels are given and Q = K."""
    seen = Seen([placed(each, f"layers.{i}", i) for i, each in enumerate(records)])
    batch, _, q_len, k_len = records[0].shape
    if q_len == k_len:
        seen.tokens = [tokens(labels or [f"w{i}" for i in range(q_len)])] * batch
    return seen


def write(path: Path, *seen: Seen, title: str = "A page") -> Page:
    """Write the page of one or several, and read it."""
    write_page(path, inputs_of(seen[0] if len(seen) == 1 else list(seen)), title=title)
    return Page.read(path)


def random_mask(*shape: int) -> masks.Mask:
    return masks.from_tensor(torch.rand(shape) < 0.5)


def few_large_rows() -> AttentionRecord:
    q, k = torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4)
    q[:, 1, 2:4] *= 20  # only head 1 needs many bits
    k[:, 1, 5] *= 10
    return headwise.attention(q, k, k, record=True)[1]


def scores_in_the_hundreds() -> AttentionRecord:
    q, k = 20 * torch.randn(1, 2, 9, 4).double(), 20 * torch.randn(1, 2, 9, 4).double()
    k[:, :, 4:8] = k[:, :, :4] + 0.01 * torch.randn(1, 2, 4, 4)  # which makes weights of all sizes
    return headwise.attention(q, k, k, record=True)[1]


def nan_in_a_padded_key() -> AttentionRecord:
    q, k = torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4)
    k[:, :, 8] = torch.nan
    return headwise.attention(q, k, torch.randn(1, 2, 9, 4), mask=masks.lengths(torch.tensor([8])), record=True)[1]


def nan_in_a_query_that_sees_nothing() -> AttentionRecord:
    seen = empty_row()
    q = seen.q.clone()
    q[:, :, 3] = torch.nan
    return headwise.attention(q, seen.k, seen.k, mask=seen.mask, record=True)[1]


def empty_row() -> AttentionRecord:
    allowed = torch.ones(9, 9, dtype=torch.bool)
    allowed[3] = False
    return record(mask=masks.from_tensor(allowed))


def distances(q_len: int, k_len: int) -> torch.Tensor:
    """j - i, with the last query at the last key."""
    return torch.arange(k_len) - torch.arange(k_len - q_len, k_len)[:, None]


def alibi(heads: int, q_len: int, k_len: int) -> torch.Tensor:
    return -torch.tensor([2.0**-i for i in range(heads)])[:, None, None] * distances(q_len, k_len).abs()


def learned_distances(heads: int, q_len: int, k_len: int) -> torch.Tensor:
    """What T5 adds: a number for each distance, but for far ones, which share theirs."""
    return torch.randn(heads, 7)[:, distances(q_len, k_len).clamp(-3, 3) + 3]


def forbidding_bias() -> torch.Tensor:
    bias = torch.randn(2, 9, 9)
    bias[:, 2:, 4] = -torch.inf
    bias[0, 5] = -torch.inf
    return bias


def row_bias() -> torch.Tensor:
    """Nothing that the softmax sees, but for a row that it forbids."""
    bias = torch.randn(1, 2, 9, 1)
    bias[0, 0, 3] = torch.finfo(torch.float32).min
    bias[0, 1, 6] = -torch.inf
    return bias


HOSTILE = [
    *("</script><img src=x onerror=alert(1)>", "<!--<script>", "a\u2028b", '"', "&lt;", "-->", "\\u003c", "{{", "🙂")
]

CASES: dict[str, Callable[[], AttentionRecord]] = {
    "plain": record,
    "one token": lambda: record(length=1),
    "causal": lambda: record(mask=masks.causal()),
    "window": lambda: record(mask=masks.window(2, 1)),
    "padding": lambda: record(mask=masks.lengths(torch.tensor([6]))),
    "documents": lambda: record(mask=masks.documents(torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2]))),
    "random mask": lambda: record(mask=random_mask(9, 9)),
    "a mask for each head": lambda: record(heads=4, mask=random_mask(1, 4, 9, 9)),
    "an empty row": empty_row,
    "NaN in a padded key": nan_in_a_padded_key,
    "NaN in a query that sees nothing": nan_in_a_query_that_sees_nothing,
    "grouped queries": lambda: record(heads=6, kv_heads=2, mask=masks.causal()),
    "scale and softcap": lambda: record(scale=2.0, softcap=3.0),
    "sinks": lambda: record(sinks=torch.tensor([0.5, 3.0])),
    "zeros": lambda: record(size=0.0),
    "a few large rows": few_large_rows,
    "large scores": lambda: record(length=64, dim=16, size=8.0),
    "scores in the hundreds": scores_in_the_hundreds,
    "more keys than queries": lambda: record(length=4, keys=11, mask=masks.causal()),
    "more queries than keys": lambda: record(length=11, keys=4),
    "a batch": lambda: record(batch=3, heads=4, mask=masks.lengths(torch.tensor([9, 4, 1])) & masks.causal()),
    "a mask for each example and head": lambda: record(batch=2, mask=random_mask(2, 2, 9, 9)),
    "a bias": lambda: record(bias=torch.randn(1, 2, 9, 9)),
    "a bias that forbids": lambda: record(bias=forbidding_bias()),
    "a bias for each example": lambda: record(batch=2, bias=torch.randn(2, 1, 9, 9)),
    "a bias of the keys": lambda: record(bias=torch.randn(9)),
    "a bias of the rows": lambda: record(bias=row_bias()),
    "a bias of the rows beside sinks": lambda: record(bias=torch.randn(1, 2, 9, 1), sinks=torch.tensor([0.5, 3.0])),
    "ALiBi": lambda: record(bias=alibi(2, 9, 9), mask=masks.causal()),
    "distances, more keys than queries": lambda: record(length=4, keys=11, bias=learned_distances(2, 4, 11)),
    "everything": lambda: record(
        *(4, 2, 9, 4),
        batch=2,
        bias=learned_distances(1, 9, 9),
        softcap=2.0,
        scale=1.5,
        sinks=torch.randn(4),
        mask=masks.lengths(torch.tensor([9, 6])),
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> AttentionRecord:
    torch.manual_seed(1)
    return CASES[request.param]()


@dataclass
class Page:
    source: str
    blocks: dict[str, bytes] = field(init=False)
    facts: dict[str, Any] = field(init=False)

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path.read_text(encoding="utf-8"))

    def __post_init__(self) -> None:
        found = re.findall(r'<script type="text/plain" id="(.+?)">(.*?)</script>', self.source)
        self.blocks = {name: base64.b64decode(data, validate=True) for name, data in found}
        data = re.search(r'<script type="application/json" id="facts">(.*?)</script>', self.source)
        self.facts = json.loads(data[1])

    def stack(self, input: int = 0, stack: int = 0) -> dict[str, Any]:
        return self.facts["inputs"][input]["stacks"][stack]

    def axes(self, input: int = 0, stack: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """The facts of the rows and of the columns."""
        facts = self.stack(input, stack)
        return self.facts["axes"][facts["rows"]], self.facts["axes"][facts["cols"]]

    def weights(self, input: int = 0, stack: int = 0, layer: int = 0) -> np.ndarray:
        """What the page will draw, [H, Q, K]."""
        facts = self.stack(input, stack)["layers"][layer]
        rows, cols = (len(axis["labels"]) for axis in self.axes(input, stack))
        dim, size = facts["dim"], facts["heads"] // facts["kvHeads"]
        bias = np.broadcast_to(self.bias(facts["bias"], rows, cols), (facts["heads"], rows, cols))
        heads = []
        for group in facts["groups"]:
            data, offset = self.blocks[group["block"]], 0

            def take(kind: str, *shape: int) -> np.ndarray:
                nonlocal offset
                array = np.frombuffer(data, kind, int(np.prod(shape)), offset)  # noqa: B023
                offset += array.nbytes
                return array.reshape(shape)

            lse = take("<f8" if group["wide"] else "<f4", size, rows, 1).astype(np.float64)
            scales = [(take("<u2", n).astype("<u4") << 16).view("<f4").astype(np.float64) for n in (size * rows, cols)]
            whole = unpacked(data[offset:], (size * rows + cols) * dim, group["bits"])
            q, k = np.split(whole.reshape(-1, dim) * np.concatenate(scales)[:, None], [size * rows])
            scores = q.reshape(size, rows, dim) @ k.T * facts["scale"]
            if facts["softcap"] is not None:
                scores = facts["softcap"] * np.tanh(scores / facts["softcap"])
            scores = scores + bias[len(heads) : len(heads) + size]
            heads.extend(np.exp(scores - np.where(np.isfinite(lse), lse, 0)))
        planes = facts["planes"] or []
        for head in range(len(heads) if planes else 0):
            heads[head] = np.where(self.plane(planes[head % len(planes)], rows, cols), heads[head], 0)
        return np.stack(heads)

    def bias(self, facts: dict[str, Any] | None, rows: int, cols: int) -> np.ndarray:
        if facts is None:
            return np.zeros((1, 1, 1))
        numbers = np.frombuffer(self.blocks[facts["block"]], "<f4").astype(np.float64).reshape(facts["shape"])
        if facts["kind"] == "dense":
            return numbers
        return numbers[:, np.arange(cols) - np.arange(rows)[:, None] + rows - 1]

    def plane(self, number: int, rows: int, cols: int) -> np.ndarray:
        numbers = np.frombuffer(self.blocks[f"plane{number}"], "<u4")
        allowed = np.zeros((rows, cols), bool)
        for row in range(rows):
            for first, past in numbers[rows + 1 :].reshape(-1, 2)[numbers[row] : numbers[row + 1]]:
                allowed[row, first:past] = True
        return allowed


class Elements(HTMLParser):
    """The elements of some HTML, each with its attributes, and the text around them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.found}

    def only(self, name: str) -> dict[str, str | None]:
        (attributes,) = (attributes for found, attributes in self.found if found == name)
        return attributes


def tags(source: str) -> list[str]:
    return [name for name, _ in Elements(source).found]


def unpacked(data: bytes, count: int, bits: int) -> np.ndarray:
    """Signed numbers of so many bits each, the first in the lowest bits."""
    assert len(data) == -(-count * bits // 8)
    each = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: count * bits].reshape(count, bits)
    places = 2.0 ** np.arange(bits)
    places[-1] *= -1  # two's complement
    return each @ places


@pytest.fixture(scope="session")
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """Offline. All tests share it: to make one takes longer than to open a page, and the pages store nothing."""
    context = chromium.new_context(offline=True, viewport={"width": 1280, "height": 860}, has_touch=True)
    yield context
    context.close()


@pytest.fixture(scope="session")
def open_context(chromium: Browser) -> Iterator[BrowserContext]:
    """Its pages may run code that is no part of them, such as axe."""
    context = chromium.new_context(bypass_csp=True, viewport={"width": 1280, "height": 860})
    yield context
    context.close()


@pytest.fixture
def axe_tab(open_context: BrowserContext) -> Iterator[Tab]:
    """A tab for `check_with_axe`."""
    tab = open_context.new_page()
    yield tab
    tab.close()


@pytest.fixture
def trouble() -> list[str]:
    """What went wrong in the browser; a test empties it of what it expects."""
    return []


@pytest.fixture
def tab(context: BrowserContext, trouble: list[str]) -> Iterator[Tab]:
    """A tab that is offline; at its end nothing but files was asked for, and nothing went wrong on the console."""
    tab = context.new_page()
    own = ("file:", "data:", "blob:", "about:")
    tab.on("request", lambda request: request.url.startswith(own) or trouble.append(request.url))
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    yield tab
    tab.close()
    assert trouble == []


PROMPT = "cat owl pig ant fox cat owl pig"  # the copying model goes on with "ant"
ANT, PIG = 3, 7  # where "ant" and the last "pig" stand


@pytest.fixture(scope="session")
def live(copying_model: Path) -> Live:
    return live_causal(str(copying_model), NamedText("TEXT", PROMPT, PROMPT), None)


@pytest.fixture(scope="session")
def live_url(live: Live) -> Iterator[str]:
    with serving_live(live, PROMPT) as url:
        yield url


@pytest.fixture(scope="session")
def induction(live: Live) -> int:
    """The head of the second layer that looks at what followed."""
    first = live.facts(Asked(PROMPT))["live"]["run"]
    return int(live.shown(first).inputs[0].stacks[0].layers[1].record.weights()[0, :, PIG, ANT].argmax())


@pytest.fixture(autouse=True)
def _plain_opening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages open on the first head with nothing pinned, as most tests expect, unless a test is marked `opening`."""
    if not request.node.get_closest_marker("opening"):
        monkeypatch.setattr(facts, "find_pairs", lambda stacks: [[] for _ in stacks])
