"""What the visits of the page's sentences share: a reader of the page, and the truth in float64."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.call import Scores
from headwise.records import AttentionRecord
from tests.language import numbered

from .browser import open_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

NEAR = 3e-4  # what a page in a file rounds, of a weight
PATIENCE = 10  # seconds
# What an element says, in one piece and with a space between its parts, and its tooltip and label.
TEXTS = """(all) => all.flatMap((one) => {
    const walk = document.createTreeWalker(one, NodeFilter.SHOW_TEXT);
    const parts = [];
    while (walk.nextNode()) parts.push(walk.currentNode.data);
    return [parts.join(""), parts.join(" "), one.title, one.ariaLabel].filter(Boolean);
})"""


class Reader:
    """Someone who reads a page, and compares its sentences with what is true."""

    def __init__(self, tab: Page, folder: Path, request: pytest.FixtureRequest) -> None:
        self.tab, self.folder, self.request = tab, folder, request
        self.patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        self.seen: Any = None  # what is shown
        self.read: set[str] = set()  # the templates that were compared

    def open(self, seen: Any, address: str, **given: Any) -> None:
        self.seen = seen
        open_page(self.tab, self.folder, seen, f"lang=en&{address}", **given)

    @contextlib.contextmanager
    def online(self) -> Iterator[Reader]:
        """The same reader, of a page that may ask a server."""
        browser = self.tab.context.browser
        assert browser
        other = Reader(browser.new_page(), self.folder, self.request)
        yield other
        other.tab.close()
        self.read |= other.read

    def go(self, **state: object) -> None:
        self.tab.evaluate("(state) => headwise.app.go(state)", state)

    def says(self, template: str, where: str, near: float = NEAR, **expected: Any) -> re.Match[str]:
        """Wait until an element says this (as its text, title or label), and compare its numbers."""
        end = time.monotonic() + PATIENCE
        while True:
            texts = self.tab.locator(where).evaluate_all(TEXTS)
            for text in texts:
                found = numbered.search(template, text, expected)
                if found and (numbered.wrong(found, expected, near) is None or time.monotonic() > end):
                    numbered.compare(template, text, expected, near)
                    self.read.add(template)
                    return found
            assert time.monotonic() < end, (template, expected, texts)
            self.tab.wait_for_timeout(50)


def made(q: Tensor, k: Tensor, allowed: Tensor | None = None, **options: Any) -> AttentionRecord:
    """The record of one example. q, k: [H, Q, D]; allowed: [Q, K] or [H, Q, K], True = may attend."""
    mask = None if allowed is None else masks.from_tensor(allowed if allowed.dim() == 2 else allowed[None])
    return headwise.attention(q[None], k[None], k[None], mask=mask, record=True, **options)[1]


def unread(heads: int, length: int) -> AttentionRecord:
    """A record of a long text whose attention nobody has computed yet."""
    return AttentionRecord(Scores(torch.randn(1, heads, length, 1), torch.randn(1, 1, length, 1)))


def truth(of: AttentionRecord, allowed: Tensor | None = None, sinks: Tensor | None = None) -> Tensor:
    """The weights [H, Q, K] in float64, from q and k alone; 0 in a row that may attend to nothing."""
    q, k = of.q[0].double(), of.k[0].double()
    k = k.repeat_interleave(len(q) // len(k), 0)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    if sinks is not None:
        extra = sinks.double()[:, None, None].expand(-1, q.shape[1], 1)
        return torch.cat([scores, extra], -1).softmax(-1)[..., :-1]
    return scores.softmax(-1).nan_to_num()


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def rollout(weights: list[Tensor]) -> Tensor:
    """The shares of the input tokens in the output tokens, of layers from the first."""
    found = torch.eye(weights[0].shape[-1], dtype=torch.double)
    for each in weights:
        found = (0.5 * each.mean(0) + 0.5 * torch.eye(len(found))) @ found
    return found


def small_llama(folder: Path, text: str) -> tuple[Any, Any]:
    """Two layers of two heads with random weights, and a tokenizer of the words of a text, in a folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {word: place for place, word in enumerate(["<end>", "<unknown>", *dict.fromkeys(text.split())])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unknown>", eos_token="<end>")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(words), initializer_range=1.0, bos_token_id=0, eos_token_id=0, **sizes)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer
