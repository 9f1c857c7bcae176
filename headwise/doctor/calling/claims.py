"""What a module's names, docstrings and comments say about its masks: their polarity and their shapes.

Only the statements are read here. The facts are found by trial, and a check compares the two.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from torch import nn

from headwise.doctor.calling import names
from headwise.doctor.calling.mask_input import Form
from headwise.doctor.source import source_of

_YES = r"(?:\btrue\b|\b1(?:\.0)?s?\b|\bones\b|\bone(?= (?:where|for|means|if|is|at)\b| ?=)|\bnon-?zeros?\b)"
_NO = r"(?:\bfalse\b|\b0(?:\.0)?s?\b|(?<!non-)\bzeros?\b(?![- ]padd))"
_MAY = "|".join(
    (
        r"^[\s=:(\-]*may\b",
        r"not (?:be )?(?:masked|ignored|padd\w*|hidden|blocked)",
        r"non-?pad\w*|no(?:t a)? pad\w*|un-?masked",
        r"(?:may|can) (?:be )?(?:attend|look|see)\w*",
        r"to (?:be )?(?:attend\w*|kept?|keep)|\battend(?:ed|s|able)?\b|takes? part|participat\w*",
        r"(?:below|under) the (?:main )?diagonal|lower[- ]triang\w*",
        r"allow\w*|permit\w*|\bkeep|\bkept|visible|\bvalid|\breal\b|\bexists?\b|\bseen?\b|usable|\bused?\b|\blook",
    )
)
_MAY_NOT = "|".join(
    (
        r"not (?:be )?(?:attend\w*|allow\w*|visible|valid|seen?|used|real|permit\w*)",
        r"(?:may|can|must|should|do|does|will) ?not (?:be )?(?:attend\w*|look\w*|see\w*|exist\w*)|can't|cannot",
        r"\bmasked\b(?: out)?|\bmask out|\bto mask\b|^[\s=:(\-]*mask[\s)]*$",
        r"(?:above|over) the (?:main )?diagonal|upper[- ]triang\w*",
        r"ignor\w*|padd?(?:ing|ed|s)?\b|forbid\w*|block\w*|hid(?:e|den)|exclud\w*|disallow\w*|prevent\w*",
        r"illegal|invalid|future|drop(?:ped)?\b|suppress\w*|no attention|unattend\w*|inf\b",
    )
)
_ADDED = re.compile(
    r"\badd(?:ed|itive|s)?\b.*\b(?:scores?|logits?|attention|softmax|mask|bias)|additive"
    r"|float\(.-inf.\)|negative|-\s*inf|smallest|lowest|minus infinity|-1e\d|(?<![\w.])-\d{2,}|finfo",
    re.I,
)
# The beginnings of a line of code; every other line is text.
_CODE = re.compile(
    r"(def|class|return|if|elif|else|for|while|import|from|with|raise|assert|self\.|super\()\b"
    r"|[\w.\[\], ]+\s*[-+*/|&]?=[^=]|(?!forward\()[\w.]+\(|\)"
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
    """What is said about the polarity of a mask argument: the words, and the form they mean. `others`: the names of the
    other arguments, about which the same sentence may speak.
    """
    about = _about(name, text, sole, others)
    for sentence in about:
        form = polarity(re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "it", sentence))  # its name says less than its text
        if form is not None:
            return sentence, form
    if any(_LIKEWISE.search(sentence) for sentence in about):
        for other in (x for x in others if "mask" in x):
            for sentence in _about(other, text, False, [x for x in (name, *others) if x != other]):
                if (form := polarity(sentence)) is not None:
                    return sentence, form
    form = polarity(annotation) if annotation else None
    if form is not None:
        return annotation, form
    if name == "attention_mask" and "input_ids" in others:  # what a tokenizer returns
        return "attention_mask beside input_ids", "allowed"
    return _by_name(name)


_LIKEWISE = re.compile(r"\b(the|is) same\b|\bsame (as|for|form|convention|polarity)\b|\blikewise\b|\bditto\b", re.I)


def by_keras(name: str, module: nn.Module) -> tuple[str, Form | None]:
    """What Keras passes itself: the mask of the one input of a layer, True = a real token."""
    outside = hasattr(module, "runs_on") or any(cls.__module__.startswith("keras.") for cls in type(module).__mro__)
    if name != "mask" or not outside:
        return "", None
    if getattr(module, "supports_masking", False):
        return "supports_masking=True", "allowed"
    return "the name mask, under which Keras passes its own masks,", "allowed"


_ZERO_OR_MINUS_INF = re.compile(
    r"\b0(\.0)?`*\s*(/|,|&|\band\b|\bor\b)\s*`*(-\s*(inf|1e\d|\d{4})|minus infinity|float\(.-inf)", re.IGNORECASE
)
# "Rows without any valid frame come out as zero attention": what the output is, and no value of the mask.
_OF_OUTPUTS = re.compile(
    r"[^.;]*\b(come out|output|outputs|return|returns|returned|receive|receives|get|gets|give|gives|are|is)\b"
    r"[^.;]*\bzeros? (attention|outputs?|weights?|vectors?|rows?)\b",
    re.IGNORECASE,
)


def polarity(sentence: str) -> Form | None:
    """The polarity that a sentence such as "1 for tokens that are not masked" states."""
    votes: list[Form] = []
    if re.search(r"<\s*0\b", sentence) and re.search(r">\s*0\b", sentence):
        return "additive"  # Longformer's: below 0 is hidden, 0 is visible, above 0 is another kind of token
    if _ZERO_OR_MINUS_INF.search(sentence):
        return "additive"
    sentence = _OF_OUTPUTS.sub("", sentence)
    sentence = re.sub(r"\s*\([a-z]+\)", "", sentence)  # "where the query (row) may see the key"
    sentence = re.sub(r"\b([01])\.0+\b", r"\1", sentence)  # its point ends no clause
    sentence = re.sub(r"\b(on|at) (and|or) (?=below|above|under|over)", "", sentence)  # the diagonal
    for clause in re.split(r"[,;.()\n]|\band\b|\bor\b|\bwhile\b|\belse\b|\botherwise\b", sentence.lower()):
        yes, no = re.search(_YES, clause), re.search(_NO, clause)
        if bool(yes) == bool(no):
            continue
        rest = re.sub(_YES if yes else _NO, " ", clause)
        negative = re.search(_MAY_NOT, rest)
        positive = re.search(_MAY, rest)
        if positive and negative:  # "not masked" contains "masked": the longer match wins
            contains = positive.start() <= negative.start() and negative.end() <= positive.end()
            within = negative.start() <= positive.start() and positive.end() <= negative.end()
            if contains == within:
                continue
            positive, negative = (positive, None) if contains else (None, negative)
        if positive or negative:
            votes.append("allowed" if bool(positive) == bool(yes) else "forbidden")
    one = len(set(votes)) == 1
    if _ADDED.search(sentence) and (not one or votes[0] == "forbidden"):
        return "additive"  # "0 to attend, -inf elsewhere"; but "0: filled with -inf" says that 1 = may attend
    return votes[0] if one else None


_LETTERS = (
    ("(BH)", r"(b|batch\w*|bsz|n)\s*[*·x×]\s*(h|n?_?heads?\w*|num_heads)"),
    ("1", r"1"),
    ("B", r"b|bs|bsz|batch\w*|batch size|n_batch|num_batch"),
    ("H", r"h|heads?|n_?heads?|num_heads|nh"),
    ("Q", r"q|lq|tq|n_?q|t_?q|l_?q|q\w*len\w*|len_q|seq_q|quer\w*.*|tgt\w*.*|trg\w*.*|target.*|t_out|n_tgt"),
    (
        "K",
        r"k|lk|tk|n_?k|t_?k|l_?k|k\w*len\w*|len_k|seq_k|keys?\b.*|key_\w+|src\w*.*|source.*|context.*|memory.*|n_src|s",
    ),
    ("N", r"n|t|l|len\w*|seq\w*.*|sequence.*|tokens?|time\w*|length"),
)


def shape_of(sentence: str) -> str | None:
    """The mask shape that a sentence states, in letters ("[batch, 1, 1, keys]" is B11K), or None."""
    for group in re.findall(r"[\[(]([^\[\]]*?,[^\[\]]*?)[\])]", sentence):
        parts = [part.strip(" `'\"").lower() for part in group.split(",")]
        letters = []
        for i, part in enumerate(parts):
            fits = [letter for letter, pattern in _LETTERS if re.fullmatch(pattern, part)]
            if i == 0 and part == "n" and len(parts) > 1:
                fits = ["B"] if len(parts) > 2 else fits
            if not fits:
                break
            letters.append(fits[0])
        else:
            if letters[-2:] in (["N", "N"], ["Q", "Q"], ["K", "K"], ["Q", "N"], ["N", "K"]):
                letters[-2:] = ["Q", "K"]
            stated = "".join(letters).replace("N", "K")
            if 2 <= len(letters) <= 4 and stated.endswith("K"):
                return stated
    return None


_INVERTS = re.compile(r"\s*\w+\s*=\s*(~|torch\.logical_not\(|1(\.0)?\s*-)[^#]*#")


def _about(name: str, text: str, sole: bool, others: Sequence[str]) -> list[str]:
    """The docstring and comment text about this argument: its line, the lines indented below it, and the end of its
    sentence.
    """
    lines = text.splitlines()
    found = []
    other = "|".join(re.escape(x) for x in sorted(others, key=len, reverse=True)) or "(?!)"
    begins = re.compile(rf"(?<![\w.(])`{{0,2}}({other})`{{0,2}}(?=\s*(?:[:(\[]|is\b|says\b|holds\b))")
    for i, line in enumerate(lines):
        said = _said(line)
        named = re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", line)
        if said is None or not (named or (sole and re.search(r"\bmask", said, re.I))):
            continue
        if (not named and begins.search(said)) or _INVERTS.match(line):
            continue  # about another argument, or about its opposite
        if "#" in line and _of_another_mask(lines, i, name):
            continue
        block = [said]
        if named and ("#" not in line):
            depth = len(line) - len(line.lstrip())
            for after in lines[i + 1 : i + 5]:
                if not after.strip() or len(after) - len(after.lstrip()) <= depth:
                    break
                block.append(after.strip())
            for after in lines[i + 1 : i + 3] if len(block) == 1 else ():
                prose = _said(after) is not None and '"""' not in after and len(after) - len(after.lstrip()) == depth
                if not prose or block[-1].endswith((".", '"""')) or re.match(r"\s*`*\w+`*\s*[:(\[]", after):
                    break
                block.append(after.strip())
        found.append(_own_part(" ".join(block).strip(), name, begins))
    return found


def _of_another_mask(lines: Sequence[str], i: int, name: str) -> bool:
    """Whether the statement that ends with a comment, or stands below it, makes a mask of another name without this
    one: `index_mask = scores.new_ones(...)  # True = masked`.
    """
    codes = [line.split("#", 1)[0] for line in lines]
    last = next((at for at in range(i, len(lines)) if codes[at].strip()), i)
    start, depth = last, 0
    for start in range(last, -1, -1):
        depth += sum(map(codes[start].count, ")]}")) - sum(map(codes[start].count, "([{"))
        if depth <= 0:
            break
    made = re.match(r"\s*(\w*mask\w*)\s*=(?!=)", codes[start])
    if made is None or made[1] == name:
        return False
    end, depth = start, 0
    for end in range(start, len(lines)):
        depth += sum(map(codes[end].count, "([{")) - sum(map(codes[end].count, ")]}"))
        if depth <= 0:
            break
    return not re.search(rf"\b{re.escape(name)}\b", " ".join(codes[start : end + 1]))


def _own_part(said: str, name: str, begins: re.Pattern[str]) -> str:
    """The part of a text that is about this argument, where it also describes others."""
    sentence = re.search(
        rf"(?<=[.;] )`{{0,2}}{re.escape(name)}`{{0,2}}(?= (?:is|are|has|holds|says|works|does)\b)", said
    )
    said = said[0 if sentence is None else sentence.start() :]  # what stands before it is about another one
    named = said.find(name)
    others = (m.start() for m in begins.finditer(said) if re.search(r"[.;]\s+$", said[: m.start()]))
    said = said[: min((x for x in others if x > named >= 0), default=len(said))].strip()
    own = re.search(rf"(?<![\w.]){re.escape(name)}(?=`{{0,2}}\s*[:(\[])", said)
    starts = [m.start() for m in begins.finditer(said)]
    if own is None or not starts:
        return said
    first = max((x for x in starts if x < own.start()), default=0)
    last = min((x for x in starts if x > own.start()), default=len(said))
    return said[own.start() if first else 0 : last].strip()


def _said(line: str) -> str | None:
    """The text of a line: its comment, or the whole line if it is not code."""
    if "#" in line:
        return line.split("#", 1)[1].strip()
    stripped = line.strip()
    return None if _CODE.match(stripped) or not stripped else stripped


def _by_name(name: str) -> tuple[str, Form | None]:
    word = names.simple(name)
    if re.search(r"non_?pad|not_pad|valid|visible|allowed|keep|attend_|(^|_)real(_|$)", word):
        return f"the name {name}", "allowed"
    if re.search(r"pad(ding)?_?mask|(^|_)is_pad|forbidden|blocked|ignore|masked_|_masked$", word):
        return f"the name {name}", "forbidden"
    if re.search(r"additive|_bias$|^bias$", word):
        return f"the name {name}", "additive"
    return "", None
