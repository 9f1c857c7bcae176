"""What the name of a module or parameter says about its role: `W_q`, `to_kv`, `unifyheads`, `heads.3.key`."""

from __future__ import annotations

import dataclasses
import re

from headwise.language import Sentence

PLURALS = {letter: Sentence(name) for letter, name in (("q", "queries"), ("k", "keys"), ("v", "values"))}
LETTERS = {
    "q": "q qs query queries quer que",
    "k": "k ks key keys",
    "v": "v vs value values val vals",
}
_OUTPUT = """
o os out outs output unify unifyheads merge merger combine combiner final last post concat recombine reproject aggregate
mix mixer back
"""
_FUSED = "in attn attention packed fused input all joint"
_FILLERS = """
w weight weights proj projs projection projections project linear linears lin fc dense to layer layers c matrix mat net
head heads kernel b bias transform map maps mapping self multi multihead mha ff module param my the for d
"""
OUTPUT, FUSED, FILLERS = (frozenset(words.split()) for words in (_OUTPUT, _FUSED, _FILLERS))
_WORDS = {word: letter for letter, words in LETTERS.items() for word in words.split()}
_BEFORE = ["linear", "proj", "bias", "compute", "get", "lin", "to", "fc", "w", "b", "c"]  # the longest first
_AFTER = ["projection", "linear", "weight", "layer", "proj", "bias", "lin", "fc"]


@dataclasses.dataclass(frozen=True)
class Named:
    """What a path says."""

    path: str
    letters: str  # what it computes, in its order: "q", "kv", "qkv"; "" if the name does not say
    is_output: bool
    is_fused: bool  # a name such as in_proj or c_attn: all three, in an unstated order
    parent: str  # the path of its parent, without indices of lists
    index: int | None  # its index in a list


def read_name(path: str, stated: str | None = None) -> Named:
    """Parse the path of a module or parameter; `stated` is its role as stated by hand ("q", "kv", "o")."""
    components = path.removesuffix(".weight").split(".")
    index = next((int(x) for x in reversed(components) if x.isdigit()), None)
    words = [x for x in components if not x.isdigit()]
    if stated is not None:
        letters, output = ("", True) if stated == "o" else (stated, False)
        return Named(path, letters, output, False, "", index)
    at, letters, output, fused = len(words) - 1, "", False, False
    while at >= 0:
        letters, output, is_fused, says_nothing = _read_word(words[at])
        if letters or output or (at == len(words) - 1 and not says_nothing):
            fused = is_fused
            break
        at -= 1
    if at < 0:  # only "proj" or "dense": the output, unless it is one of a list
        at, output = len(words) - 1, not components[-1].isdigit()
    return Named(path, letters, output, fused, ".".join(words[:at]), index)


def _read_word(word: str) -> tuple[str, bool, bool, bool]:
    """(letters, is it the output, is it fused, does it say nothing) of one component of a path."""
    letters, rest = "", []
    for token in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", word):
        token = token.lower()
        found = _letters(token)
        if found:
            letters += found
        elif token not in FILLERS:
            rest.append(token)
    letters = "".join(dict.fromkeys(letters))
    if letters and not any(token in OUTPUT for token in rest):
        return letters, False, False, False
    if any(token in OUTPUT or _core(token) in OUTPUT for token in rest):
        return "", True, False, False
    if any(token in FUSED for token in rest):
        return "", False, True, False
    return "", False, False, not rest


def _core(token: str) -> str:
    """ "queries" of "toqueries" or "queriesproj"."""
    for glued in _BEFORE:
        if token != glued and token.startswith(glued):
            token = token.removeprefix(glued)
            break
    return next((token.removesuffix(x) for x in _AFTER if token != x and token.endswith(x)), token)


def _letters(token: str) -> str:
    """ "q" for "wq", "toqueries" or "queries"; "qkv" for "wqkv"; "" for other words."""
    for form in (token, _core(token)):
        if form in _WORDS:
            return _WORDS[form]
        if len(form) > 1 and set(form) <= set("qkv") and len(set(form)) == len(form):
            return form
    return ""
