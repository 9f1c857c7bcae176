"""Finds the kind of a head by rules, such as "previous token", so that a list of heads can be sorted and filtered."""

from __future__ import annotations

from collections.abc import Mapping

#: The name of each kind -> its rule.
KINDS = {
    "previous token": "at least 0.3 of its weight lies on the token before, where there is one",
    "next token": "at least 0.3 of its weight on the text lies on the token after",
    "itself": "at least 0.3 of its weight on the text lies on the query itself",
    "same token": "at least 0.3 of its weight on the text lies on the same token elsewhere, where there is one",
    "induction": "at least 0.4 of its weight lies on what followed the same token before, where there is such, and "
    "twice as much as if even",
    "punctuation": "at least 0.4 of its weight on the text lies on punctuation, and 1.5 times as much as if even",
    "neighbours": "at least 0.5 of its weight on the text lies 1 to 3 tokens away",
    "special tokens": "at least 0.5 of all its weight lies on special tokens, such as [CLS] and [SEP]",
    "even": "its entropy is at least 0.85 of the largest possible",
    "mixed": "the rule of no other kind holds; its number is the largest share of the weight on the token before or "
    "after, itself or the same token",
}

CLEAR, TIMES = 0.4, 2  # a pattern is clear from this score, and this multiple of what even attention scores


def choose_kind(
    shares: Mapping[str, float], even: Mapping[str, float], special: float, relative_entropy: float
) -> tuple[str, float]:
    """Choose the kind of a head; return it with the share or number that decided it.

    Of the first five kinds of `KINDS` whose rules hold, it is the kind with the largest share. If there is none, it is
    the first of the other kinds whose rule holds.

    Args:
        shares: shares of the weight, by name: the first five kinds, "punctuation" and "neighbours".
        even: the shares of "punctuation" and "induction" if attention were even; NaN = not known.
        special: the share of all weight that lies on special tokens.
        relative_entropy: the mean entropy divided by the mean of the largest possible entropy.
    """
    least = dict.fromkeys(list(KINDS)[:4], 0.3)
    nearest = max(least, key=lambda name: shares[name])
    if shares["induction"] >= CLEAR and shares["induction"] >= TIMES * even["induction"]:
        least["induction"] = CLEAR
    first = max(least, key=lambda name: shares[name])
    if shares[first] >= least[first]:
        return first, shares[first]
    if shares["punctuation"] >= max(0.4, 1.5 * even["punctuation"]):
        return "punctuation", shares["punctuation"]
    if shares["neighbours"] >= 0.5:
        return "neighbours", shares["neighbours"]
    if special >= 0.5:
        return "special tokens", special
    if relative_entropy >= 0.85:
        return "even", relative_entropy
    return "mixed", shares[nearest]
