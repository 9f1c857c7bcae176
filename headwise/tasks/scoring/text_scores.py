"""Scores of generated texts against references. Chinese is compared by character."""

from __future__ import annotations

import re
from collections.abc import Sequence

HAN = "\u2e80-\u2fdf\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HAN = re.compile(f"[{HAN}]")
_KANA = re.compile("[\u3040-\u30ff]")
_WORD = re.compile(rf"[{HAN}\u3040-\u30ff]|[^\W_{HAN}\u3040-\u30ff]+")


def bleu(written: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Compute corpus BLEU, 0 to 100, by sacreBLEU (Papineni et al. 2002; Post 2018).

    Its signature is nrefs:…|case:mixed|eff:no|tok:13a|smooth:exp; tok:zh if the references are Chinese, tok:char if
    they are Japanese.

    Args:
        references: for each text, one or more true texts.
    """
    from sacrebleu.metrics import BLEU

    return float(BLEU(tokenize=bleu_tokenizer(references)).corpus_score(list(written), _streams(references)).score)


def bleu_tokenizer(references: Sequence[Sequence[str]]) -> str:
    """Return the tokenizer of sacreBLEU that suits the script of most of the references."""
    texts = [text for each in references for text in each]
    if 2 * sum(bool(_KANA.search(text)) for text in texts) > len(texts):
        return "char"
    return "zh" if 2 * sum(bool(_HAN.search(text)) for text in texts) > len(texts) else "13a"


def chrf(written: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Compute corpus chrF2, 0 to 100, by sacreBLEU: nrefs:…|case:mixed|eff:yes|nc:6|nw:0|space:no (Popović 2015)."""
    from sacrebleu.metrics import CHRF

    return float(CHRF().corpus_score(list(written), _streams(references)).score)


def rouge(written: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Compute ROUGE-1, ROUGE-2 and ROUGE-L: the mean of F1, 0 to 100 (Lin 2004), by torchmetrics.

    Words are compared without case and punctuation, not stemmed. With several references the best one counts,
    separately for each of the three scores.
    """
    from torchmetrics.functional.text.rouge import rouge_score

    found = {}
    for name in ("1", "2", "L"):
        scores = rouge_score(
            list(written),
            [list(each) for each in references],
            accumulate="best",
            normalizer=lambda text: text,
            tokenizer=words,
            rouge_keys=f"rouge{name}",
        )
        found[f"ROUGE-{name}"] = 100 * float(scores[f"rouge{name}_fmeasure"])
    return found


def distinct(written: Sequence[str], n: int) -> float:
    """Divide the number of different n-grams of words in all texts by the number of all n-grams (Li et al. 2016)."""
    every = [tuple(found[i : i + n]) for text in written for found in [words(text)] for i in range(len(found) - n + 1)]
    return len(set(every)) / len(every) if every else 0.0


def words(text: str) -> list[str]:
    """Split a text into lower-case words and numbers, without punctuation; Chinese and Japanese into characters."""
    return _WORD.findall(text.lower())


def first_words(text: str, count: int) -> str:
    """Return the text up to the end of its first `count` words."""
    for i, word in enumerate(_WORD.finditer(text), start=1):
        if i == count:
            return text[: word.end()]
    return text


def _streams(references: Sequence[Sequence[str]]) -> list[list[str]]:
    """Transpose references for sacreBLEU: all first references, all second references, …; "" where a text has fewer."""
    most = max(map(len, references))
    return [[each[i] if i < len(each) else "" for each in references] for i in range(most)]
