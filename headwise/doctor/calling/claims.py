"""What a module's names, docstrings and comments say about its masks: whether 1 lets a key in, or hides it.

Only plain statements count, such as "True = may attend", "0 = padding" and "0 / -inf, added". What is so is found by
trial, and a check compares the two.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from torch import nn

from headwise.doctor.calling import names
from headwise.doctor.calling.mask_input import Form
from headwise.doctor.lines import source_of

_ONE, _ZERO = ("true", "1", "ones"), ("false", "0", "zeros")
_IN = ("attend", "keep", "kept", "allow", "visible", "valid", "real", "see", "look", "exist", "unmask", "part")
_OUT = ("masked", "ignor", "pad", "hid", "block", "forb", "exclud", "invalid", "disallow", "future")
_NOT = ("not", "no", "non", "nobody", "never", "cannot", "without")
_ADDED = re.compile(r"additive|\badded\b|-\s*inf\b|negative|-1e\d|-\d\d")
_CLAUSES = re.compile(r"\d[)\]]|[,;./]|\b(?:and|or|while|else|otherwise)\b")
# The beginnings of a line of code; every other line is text.
_CODE = re.compile(
    r"(def|class|return|if|elif|else|for|while|import|from|with|raise|assert|self\.|super\()\b"
    r"|(?![Tt]rue\b|[Ff]alse\b|\d|`)[\w.\[\], ]+\s*[-+*/|&]?=[^=]|(?!forward\()[\w.]+\(|\)"
)
# Where a text begins to speak of one argument: `mask (B, K): ...`, `mask: ...`, "mask is ...".
_ENTRY = re.compile(
    r"(?:^|(?<=[.;] )|(?<=\"\"\"))[ `*-]*(?::param )?(?!true\b|false\b)([a-z]\w*)`*"
    r"(?=\s?[:(\[]|(?:(?<=`)|(?<=mask))\s(?:is|holds|says)\b)",
    re.IGNORECASE | re.MULTILINE,
)


def text_of(module: nn.Module) -> str:
    """Docstrings, comments and code of a module's class and its base classes, except torch's own."""
    parts = []
    for cls in type(module).__mro__:
        if cls in (nn.Module, object) or cls.__module__.startswith(("torch.", "keras.")):
            continue
        source = source_of(cls)
        if source is not None:
            parts.append(textwrap.dedent(source.text))
        else:
            parts += [doc for doc in (cls.__doc__, getattr(getattr(cls, "forward", None), "__doc__", None)) if doc]
    return "\n".join(parts)


def text_of_all(module: nn.Module) -> str:
    """The same of the module and all its parts, each class once."""
    parts = {type(part): part for part in module.modules()}
    return "\n".join(text_of(part) for part in parts.values())


def of_mask(
    name: str, annotation: str, text: str, *, sole: bool, others: Sequence[str] = ()
) -> tuple[str, Form | None]:
    """What is said about the polarity of a mask argument: the words, and the form they mean.

    Args:
        sole: there is no other mask, so a text about "the mask" is about this one.
        others: the names of the other arguments.
    """
    for said in (*_about(name, text, sole), annotation):
        form = polarity(re.sub(rf"\b{re.escape(name)}\b", "it", said))  # its name says less than its text
        if form is not None:
            return said, form
    if name == "attention_mask" and "input_ids" in others:  # what a tokenizer returns
        return "attention_mask beside input_ids", "allowed"
    return _by_name(name)


def by_keras(name: str, module: nn.Module) -> tuple[str, Form | None]:
    """What Keras passes itself: the mask of the one input of a layer, True = a real token."""
    outside = hasattr(module, "runs_on") or any(cls.__module__.startswith("keras.") for cls in type(module).__mro__)
    if name != "mask" or not outside:
        return "", None
    if getattr(module, "supports_masking", False):
        return "supports_masking=True", "allowed"
    return "the name mask, under which Keras passes its own masks,", "allowed"


def polarity(said: str) -> Form | None:
    """The polarity that a text such as "1 for tokens that are not masked" states; None if it is not plain."""
    text = said.lower().replace(".0", "").replace("non-zero", "1").replace("nonzero", "1")
    votes = {vote for clause in _CLAUSES.split(text) if (vote := _vote(re.findall(r"[a-z]+|\b[01]\b", clause)))}
    if _ADDED.search(text) and votes != {"allowed"}:
        return "additive"  # "0 to attend, -inf elsewhere"; but "0: filled with -inf" says that 1 = may attend
    return votes.pop() if len(votes) == 1 else None


def _vote(words: list[str]) -> Form | None:
    """The polarity that one clause states, if it names one value of the mask and says one thing of it."""
    one, zero = (any(word in values for word in words) for values in (_ONE, _ZERO))
    meant = set()
    for i, word in enumerate(words):
        if word.startswith((*_IN, *_OUT)):
            turned = any(before in _NOT for before in words[max(i - 3, 0) : i])
            meant.add(word.startswith(_IN) != turned)
    if one == zero or len(meant) != 1:
        return None
    return "allowed" if meant.pop() == one else "forbidden"


def _about(name: str, text: str, sole: bool) -> Iterator[str]:
    """What docstrings and comments say about this argument: its own entries, or else texts that name it."""
    own = re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)")
    for said in _paragraphs(text, own):
        entries = [*_ENTRY.finditer(said)]
        ends = (*(x.start() for x in entries[1:]), len(said))
        mine = [said[x.start() : end] for x, end in zip(entries, ends, strict=False) if x[1] == name]
        of_others = any("mask" in x[1] for x in entries)
        if not mine and not of_others and (own.search(said) or (sole and "mask" in said.lower())):
            mine = [said]
        yield from (" ".join(x.replace('"', " ").split()) for x in mine)


def _paragraphs(text: str, own: re.Pattern[str]) -> Iterator[str]:
    """Lines of text that stand together, and comments: alone in their line, or beside an argument of a function."""
    together: list[str] = []
    for line in (*text.splitlines(), ""):
        code, comment = line.partition("#")[::2]
        if comment and not code.strip():
            yield comment.strip()
        elif comment and code.rstrip().endswith((",", ":", "(")):
            of_one = own.match(code.strip()) and not own.search(comment)
            yield f"{code.partition(':')[0].strip()}: {comment.strip()}" if of_one else comment.strip()
        elif line.strip() and not comment and not _CODE.match(line.strip()):
            together.append(line.strip())
            continue
        if together:
            yield "\n".join(together)
            together = []


def _by_name(name: str) -> tuple[str, Form | None]:
    word = names.simple(name)
    if re.search(r"non_?pad|not_pad|valid|visible|allowed|keep|attend_|(^|_)real(_|$)", word):
        return f"the name {name}", "allowed"
    if re.search(r"pad(ding)?_?mask|(^|_)is_pad|forbidden|blocked|ignore|masked_|_masked$", word):
        return f"the name {name}", "forbidden"
    if re.search(r"additive|_bias$|^bias$", word):
        return f"the name {name}", "additive"
    return "", None
