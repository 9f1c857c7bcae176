"""`Reply`: generates the next turn of a dialogue."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headwise.errors import ArgumentError
from headwise.tasks.columns import Columns, Row, take_text
from headwise.tasks.options.reply import ReplyOptions
from headwise.tasks.rows.tables import Data, read_table
from headwise.tasks.scoring.text_scores import distinct
from headwise.tasks.text_to_text import Example, Pairs, TextToText, Values
from headwise.text.tokenizer import Encoded


class Reply(TextToText[ReplyOptions]):
    """An encoder-decoder, trained from scratch, with one vocabulary. If a source is too long, only its end is read.

    With the option `dialogue`, each row is a dialogue, one turn per line. Each turn except the first is a target; its
    source is all turns before it.

    >>> task = Reply.fit("chat.csv", source="message", target="reply")
    >>> task = Reply.fit("dialogues.jsonl", dialogue="dialogue")
    >>> task.predict(["How are you?"])
    [{'reply': 'Fine, thanks.', 'score': -1.9}]
    """

    name = "reply"
    options_type = ReplyOptions
    compared_by = (("perplexity", "min"),)
    reads, writes = "the dialogue so far", "reply"
    keep = "end"

    learned = ("commonest",)
    commonest = ""  #: the most common reply of the training data

    @classmethod
    def read(cls, source: Any, options: ReplyOptions, *, targets: bool = True) -> Data:
        if isinstance(source, Data):
            return source
        columns = (
            {"dialogue": str(options.dialogue)} if options.dialogue is not None else {"source": str(options.source)}
        )
        if targets and options.dialogue is None:
            columns["target"] = str(options.target)
        data = read_table(source, columns, texts=tuple(columns), turns=("dialogue",))
        if targets and options.dialogue is not None:
            turns = map(_turns, data.columns["dialogue"])
            data = data.without({i: "a single turn, and no reply" for i, each in enumerate(turns) if len(each) < 2})
        return data

    @classmethod
    def pairs(cls, data: Data, options: ReplyOptions, *, targets: bool = True) -> Pairs:
        if options.dialogue is None:
            references = [[text] for text in data.columns["target"]] if targets else []
            return Pairs(data.columns["source"], references)
        dialogues = [_turns(text) for text in data.columns["dialogue"]]
        if not targets:
            return Pairs(["\n".join(turns) for turns in dialogues], [])
        places = [(turns, i) for turns in dialogues for i in range(1, len(turns))]
        return Pairs(["\n".join(turns[:i]) for turns, i in places], [[turns[i]] for turns, i in places])

    @classmethod
    def list_rows(cls, data: Data, options: ReplyOptions) -> Sequence[int]:
        if options.dialogue is None:
            return super().list_rows(data, options)
        return [row for row, text in enumerate(data.columns["dialogue"]) for _ in _turns(text)[1:]]

    def columns(self) -> Columns:
        found = super().columns()
        if self.options.dialogue is None:
            return found
        (text,) = found.inputs
        return replace(found, inputs=(replace(text, says=f"{text.says}; a dialogue has one turn per line"),))

    def read_row(self, row: Row) -> Encoded:
        """Read the text of a request; a dialogue without its empty lines."""
        text = take_text(row, "text")
        return self.source_vocabulary.read(text if self.options.dialogue is None else "\n".join(_turns(text)))

    def look_over(self, pairs: Pairs) -> None:
        counts = Counter(each[0] for each in pairs.references)
        self.commonest = max(counts, key=lambda text: (counts[text], text))

    def score(self, pairs: Pairs, written: list[str], examples: list[Example]) -> tuple[Values, dict[str, Values]]:
        """Return perplexity per token of the true replies, and the diversity (distinct-n) of the generated replies.

        Baselines: a model that knows only the frequency of each token in these replies (the best model without
            context), and the most common reply of the training data as every answer.
        """
        scored = [each for each in examples if len(each.target) > 1]
        if not scored:
            raise ArgumentError("expected at least one reply to score")
        values = {"perplexity": math.exp(min(self.mean_loss(scored), 700.0)), **_variety(written)}
        return values, {
            "how often each token occurs": {"perplexity": _unigram_perplexity(scored)},
            "always the commonest reply": _variety([self.commonest] * len(written)),
        }


def _turns(dialogue: str) -> list[str]:
    return [line.strip() for line in dialogue.splitlines() if line.strip()]


def _variety(written: list[str]) -> dict[str, float]:
    return {f"distinct-{n}": distinct(written, n) for n in (1, 2)}


def _unigram_perplexity(examples: list[Example]) -> float:
    """Compute the perplexity of the best model without context: exp of the entropy of the target tokens."""
    counts = Counter(token for each in examples for token in each.target[1:])
    total = sum(counts.values())
    return math.exp(-sum(count / total * math.log(count / total) for count in counts.values()))
