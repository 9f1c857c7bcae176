"""What a module's names, docstrings and code say about whether it is causal.

Only the statements are read here. The facts are found by trial, and a check compares the two.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from headwise.doctor.calling.claims import text_of
from headwise.errors import shortened

_CAUSAL = (
    r"\b(causal\w*|autoregressive|decoder-only|look[- ]ahead|the future|future (?:tokens|positions)|later tokens)\b"
)
_UNLESS = r"\b(if|optional\w*|non-?causal|not|no|when|whether|or|may|can|unless|with|without|either)\b"
# "Causal self-attention with rotary embeddings": no words that follow make it depend on anything.
_IS_CAUSAL = (
    r"^\W*((?!{0})[\w-]+ ){{0,3}}causal(,? (?!{0})[\w-]+){{0,4}}? (self-?)?attention\b(?!,? (if|when|unless|mask)\b)"
    r"|^\W*causal\W*$"
).format(r"non-?\b|not\b|no\b|if\b|optional|with\b|without\b|or\b|and\b|when\b|may\b|can\b|cross")
_IF_NO_MASK = (
    r"\b(none|not given|no mask|omitted|absent|without (a|one|it))\b[^.;]*\bcausal\b(?! mask (is|are) (not|in))"
    r"|\bcausal\b[^.;]*\b(if|when|unless)\b[^.;]*\b(none|given|omitted|missing|passed)\b"
)
IF_NO_MASK = "if no mask is given"
# SegGPT is a model of images; masked, prefix and diffusion models see later tokens; XLM and MLM are no names of it.
_LANGUAGE_MODEL = (
    r"(?i:masked_?(self|multi|att)|(?<!seg)gpt|languagemodel)"
    r"|[a-z](?<!Mask)(?<!Masked)(?<!Bert)(?<!Prefix)(?<!Diffusion)(?<!Fi)LM(Head)?(Model)?$"
)
_MASKED_MODEL = r"(?i:\bmasked[- ](language|token|item|frame|image)|bidirectional (encoder|attention|self))|\bMLM\b"
_HELPER = r"\w*(subsequent|look_?ahead|causal)_?mask\("  # a call of a function whose code is not read
_TRIANGLE = (
    r"\b(tril\(|tril_indices|is_causal\s*=\s*True|triu\(\s*(?:diagonal\s*=\s*)?1\s*\)"
    r"|triu\([^()]*(?:\([^()]*\)[^()]*)*,\s*(?:diagonal\s*=\s*)?1\s*\))"
)

_OPTIONS = ("is_causal", "causal", "autoregressive", "use_causal_mask", "_use_causal_mask", "_causal", "masked")
_CONDITION = re.compile(r"\s*(?:el)?if (.*?):\s*(?:#.*)?")
_OPTION = re.compile(r"(not )?(self\.)?(\w+)(?: is True| == True)?")


def claim(module: nn.Module, flags: dict[str, bool], *, cells: bool, given: bool, keys: bool) -> str:
    """Why a module should be causal by itself, or "".

    Args:
        flags: the boolean options of forward, with their defaults.
        cells: whether forward takes a mask of cells: the documentation may then describe that mask, and is ignored.
        given: whether every caller must pass that mask: then a name such as CausalSelfAttention may speak of it.
        keys: whether forward takes a mask of keys: then "masked attention" may be attention with that mask.
    """
    if any(hasattr(part.__dict__.get("config"), "_attn_implementation") for part in module.modules()):
        return ""  # the model around it makes the mask
    for name in _OPTIONS:
        value = getattr(module, name, flags.get(name))
        if isinstance(value, bool):
            return f"{name}=True" if value else ""
    kind = type(module).__name__
    if _named_causal(kind) and not given:
        return f"class {kind}"
    for path, buffer in module.named_buffers():
        if _is_triangle(buffer):
            return f"buffer {path}"
    if type(module).__module__.startswith(("torch.", "keras.")):
        return ""
    if cells:
        return _if_no_mask(module)
    text = text_of(module)
    if re.search(_LANGUAGE_MODEL, kind) and not (
        re.search(_MASKED_MODEL, text) or (keys and re.search(r"masked_?att", kind, re.I))
    ):
        return f"class {kind}"
    return _documented(module) or _in_code(module, text, flags) or _of_parts(module)


def _named_causal(kind: str) -> bool:
    return bool(re.search(r"causal|autoregress", kind, re.I)) and not re.search(r"non_?causal", kind, re.I)


def _if_no_mask(module: nn.Module) -> str:
    """The docstring that says that it is causal where no mask is given."""
    for doc in (type(module).__doc__, module.forward.__doc__):
        for sentence in re.split(r"(?<=[.;])\s", " ".join((doc or "").split())):
            if re.search(_IF_NO_MASK, sentence, re.I) and not re.search(
                r"\b(no|not|non)[- ]?causal|^\W*causal\W", sentence, re.I
            ):
                return f'docstring "{shortened(sentence, 80)}", {IF_NO_MASK}'
    return ""


def _documented(module: nn.Module) -> str:
    """The first paragraph of a docstring, or the one word "Causal." later."""
    for doc in (inspect.getdoc(type(module)), module.forward.__doc__):
        first, *later = re.split(r"\n\s*\n|>>>", inspect.cleandoc(doc or ""))
        for sentence in re.split(r"(?<=[.;:])\s", " ".join(first.split())):
            unless = re.search(_UNLESS, sentence, re.I) and not re.search(_IS_CAUSAL, sentence, re.I)
            if re.search(_CAUSAL, sentence, re.I) and not unless:
                return f'docstring "{shortened(sentence, 80)}"'
        if re.search(r"(?<=[.;] )causal\.(?=\s|$)", " ".join(" ".join(later).split()), re.I):
            return 'docstring "Causal."'
    return ""


def _value(module: nn.Module, option: re.Match[str], flags: Mapping[str, bool]) -> object:
    """The value of an option: of an attribute, or the default of an argument of forward; if unknown, what lets in."""
    unknown = not option[1]
    return getattr(module, option[3], unknown) if option[2] else flags.get(option[3], unknown)


def _in_code(module: nn.Module, text: str, flags: Mapping[str, bool]) -> str:
    """A comment, or a line that makes a triangle, in no branch of an option that is off."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        code, _, comment = line.partition("#")
        below = () if code.strip() else lines[i + 1 : i + 2]  # a comment may stand above its option
        conditions = [x[1] for x in map(_CONDITION.fullmatch, (*_around(lines, i), *below)) if x]
        options = [_OPTION.fullmatch(x) for condition in conditions for x in condition.split(" and ")]
        if any(x and bool(_value(module, x, flags)) == bool(x[1]) for x in options):
            continue
        if re.search(_CAUSAL, comment, re.I) and not re.search(_UNLESS, comment, re.I):
            return f'comment "{shortened(comment.strip(), 80)}"'
        helped = re.search(_HELPER, code) and not re.search(r"^\s*def\b|\bif\b", code)
        on_both_sides = "tril" in code and "triu" in code  # a window
        if (helped or re.search(_TRIANGLE, code)) and not on_both_sides:
            return f'code "{shortened(code.strip(), 80)}"'
    return ""


def _of_parts(module: nn.Module) -> str:
    """The class of its attentions, where each is named causal."""
    kinds = sorted({name for x in module.modules() if re.search("attention|attn", name := type(x).__name__, re.I)})
    return f"class {kinds[0]}" if kinds and all(map(_named_causal, kinds)) else ""


def _around(lines: Sequence[str], i: int) -> Iterator[str]:
    """The first lines of the blocks that a line stands in, the innermost first."""
    depth = len(lines[i]) - len(lines[i].lstrip())
    for line in reversed(lines[:i]):
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent < depth:
            depth = indent
            yield line


_TAUGHT = re.compile(r"teacher|<(sos|bos|start|go|s)>|\bnext (token|word|item)|\[:, 1:\]", re.IGNORECASE)


def is_taught(module: nn.Module) -> bool:
    """Whether it says that its first token only starts the decoding: it then returns one row fewer than tokens."""
    return any(_TAUGHT.search(doc or "") for doc in (type(module).__doc__, module.forward.__doc__))


def draws_triangle(module: nn.Module) -> bool:
    """Whether the code of one of its parts makes a causal mask, and none speaks of tokens ahead that are seen."""
    texts = [text_of(part) for part in module.modules()]
    ahead = re.search(
        r"look[_ -]?ahead|right_(context|window)|future_(context|frames)|chunk|prefix|block_?size", "".join(texts)
    )
    return ahead is None and any(re.search(_TRIANGLE, text) for text in texts)


def _is_triangle(buffer: torch.Tensor) -> bool:
    """Whether a buffer is a causal mask: square, one value above the diagonal, and another value below."""
    size = buffer.shape[-1] if buffer.ndim > 1 else 0
    if size < 2 or buffer.shape[-2] != size or buffer.numel() != size**2:
        return False
    square = buffer.detach().reshape(size, size).float()
    upper = torch.ones(size, size, dtype=torch.bool, device=square.device).triu(1)
    high, low = square[upper], square[~upper]
    return bool((high == high[0]).all() and (low == low[0]).all() and high[0] != low[0])
