"""What a module says of itself: whether 1 in a mask lets a key in or hides it, and whether it is causal by itself.

Of a mask, names, docstrings and comments count, as far as they are plain: "True = may attend", "0 = padding", "0 / -inf
is added". Of causality, only options, names, buffers and what a plain call draws count: a docstring claims nothing, and
neither does an option whose default is False. What is so is found by trial; laws compare the two.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise.doctor.calling import names
from headwise.doctor.calling.mask_input import Form
from headwise.doctor.lines import source_of
from headwise.language import Sentence

_OPTIONS = ("is_causal", "causal", "autoregressive", "use_causal_mask", "_use_causal_mask", "_causal", "masked")
# SegGPT is a model of images. LM is no such name: masked and prefix language models see later tokens.
_LANGUAGE_MODEL = re.compile(r"(?<!seg)gpt|(?<!masked)languagemodel", re.IGNORECASE)
_ONE, _ZERO = ("true", "1", "ones"), ("false", "0", "zeros")
_IN = ("attend", "keep", "kept", "allow", "visible", "valid", "real", "see", "look", "exist", "unmask", "part")
_OUT = ("masked", "ignor", "pad", "hid", "block", "forb", "exclud", "invalid", "disallow", "future")
_NOT = ("not", "no", "non", "nobody", "never", "cannot", "without")
# Chinese words for English ones; what is left of a Chinese text says nothing.
_CHINESE = {
    **{"see": "可以看 能看 看到", "visible": "可见", "attend": "关注", "part": "参与", "keep": "保留", "allow": "允许"},
    **{"valid": "有效", "real": "真实 实际", "invalid": "无效", "masked": "屏蔽 掩盖 被mask 需要mask mask掉"},
    **{"mask": "掩码 遮罩", "hidden": "遮 隐藏", "ignored": "忽略", "padding": "填充 补齐", "forbidden": "禁止"},
    **{"excluded": "排除", "future": "未来", "added": "加到", "-inf": "负无穷", "true": "为真", "false": "为假"},
    **{"else": "否则 其余", "not": "没有 不 非 未", ",": "， 、", ".": "。", ";": "；"},
}
_ENGLISH = {each: word for word, chinese in _CHINESE.items() for each in chinese.split()}
_CHINESE_WORD = re.compile("|".join(sorted(_ENGLISH, key=len, reverse=True)))  # the longest that fits
_ADDED = re.compile(r"additive|\badded\b|-\s*inf\b|negative|-1e\d|-\d\d")
_CLAUSES = re.compile(r"\d[)\]]|[,;./]|\b(?:and|or|while|else|otherwise)\b")
_THE_MASK = re.compile(r"\bmask\b|掩码|遮罩", re.IGNORECASE | re.ASCII)
# Where a text begins to speak of one argument: `mask (B, K): ...`, `mask: ...`, "mask is ...".
_ENTRY = re.compile(
    r"(?:^|(?<=[.;] )|(?<=[。；]))[ `*-]*(?::param )?(?!true\b|false\b)([a-z]\w*)`*"
    r"(?=\s?[:(\[：（]|(?:(?<=`)|(?<=mask))\s(?:is|holds|says)\b)",
    re.IGNORECASE | re.MULTILINE | re.ASCII,
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
        form = polarity(re.sub(rf"\b{re.escape(name)}\b", "it", _in_english(said)))  # its name says less than its text
        if form is not None:
            return said, form
    if name == "attention_mask" and "input_ids" in others:  # what a tokenizer returns
        return Sentence("attention_mask beside input_ids"), "allowed"
    return _by_name(name)


def by_keras(name: str, module: nn.Module) -> tuple[str, Form | None]:
    """What Keras passes itself: the mask of the one input of a layer, True = a real token."""
    of_keras = hasattr(module, "runs_on") or any(cls.__module__.startswith("keras.") for cls in type(module).__mro__)
    if name != "mask" or not of_keras:
        return "", None
    asked = getattr(module, "supports_masking", False)  # a plain statement, where the name alone is none
    return "supports_masking=True" if asked else Sentence(
        "the name mask, under which Keras passes its own masks,"
    ), "allowed"


def polarity(said: str) -> Form | None:
    """The polarity that a text such as "1 for tokens that are not masked" states; None if it is not plain."""
    text = said.lower().replace(".0", "").replace("non-zero", "1").replace("nonzero", "1")
    votes = {vote for clause in _CLAUSES.split(text) if (vote := _vote(re.findall(r"[a-z]+|\b[01]\b", clause)))}
    if _ADDED.search(text) and votes != {"allowed"}:
        return "additive"  # "0 to attend, -inf elsewhere"; but "0: filled with -inf" says that 1 = may attend
    return votes.pop() if len(votes) == 1 else None


def _in_english(text: str) -> str:
    """Replace the Chinese words that say something of a mask by English ones, and other letters by blanks."""
    together = re.sub(r"(?<=[被要]) +(?=mask)|(?<=mask) +(?=掉)", "", text)
    return re.sub(r"[^\0-\x7f]+", " ", _CHINESE_WORD.sub(lambda found: f" {_ENGLISH[found[0]]} ", together))


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
    own = re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)", re.ASCII)
    for said in _paragraphs(text, own):
        entries = [*_ENTRY.finditer(said)]
        ends = (*(x.start() for x in entries[1:]), len(said))
        mine = [said[x.start() : end] for x, end in zip(entries, ends, strict=False) if x[1] == name]
        of_others = any("mask" in x[1] for x in entries)
        if not mine and not of_others and (own.search(said) or (sole and _THE_MASK.search(said))):
            mine = [said]
        yield from (" ".join(x.split()) for x in mine)


def _paragraphs(text: str, own: re.Pattern[str]) -> Iterator[str]:
    """Paragraphs of docstrings, and comments: alone in their line, or beside an argument of a function."""
    try:
        nodes = [x for x in ast.walk(ast.parse(text)) if isinstance(x, (ast.ClassDef, ast.FunctionDef))]
    except SyntaxError:
        nodes = []
    for said in [ast.get_docstring(x) or "" for x in nodes] or [text]:  # a text without code is one itself
        yield from re.split(r"\n\s*\n", said)
    for token in tokenize.generate_tokens(io.StringIO(text).readline) if nodes else ():
        code, comment = token.line[: token.start[1]].strip(), token.string.lstrip("# ")
        if token.type != tokenize.COMMENT or not (code.endswith((",", ":", "(")) or not code):
            continue
        of_one = own.match(code) and not own.search(comment)
        yield f"{code.partition(':')[0]}: {comment}" if of_one else comment


def _by_name(name: str) -> tuple[str, Form | None]:
    word = names.simple(name)
    if re.search(r"non_?pad|not_pad|valid|visible|allowed|keep|attend_|(^|_)real(_|$)", word):
        return Sentence("the name {name}").format(name=name), "allowed"
    if re.search(r"pad(ding)?_?mask|(^|_)is_pad|forbidden|blocked|ignore|masked_|_masked$", word):
        return Sentence("the name {name}").format(name=name), "forbidden"
    if re.search(r"additive|_bias$|^bias$", word):
        return Sentence("the name {name}").format(name=name), "additive"
    return "", None


def causal_option(module: nn.Module, flags: dict[str, bool]) -> tuple[str, bool] | None:
    """Find the option that switches the causal mask, and its value: an attribute, or an option of forward."""
    values = ((name, getattr(module, name, flags.get(name))) for name in _OPTIONS)
    return next(((name, value) for name, value in values if isinstance(value, bool)), None)


def causal_claim(module: nn.Module, flags: dict[str, bool], *, given: bool) -> str:
    """Say why a module should be causal by itself, as far as it stands in its names, options and buffers; or "".

    Args:
        flags: the boolean options of forward, with their defaults.
        given: whether every caller must pass a mask of cells: then a name such as CausalSelfAttention may speak of it.
    """
    if any(hasattr(part.__dict__.get("config"), "_attn_implementation") for part in module.modules()):
        return ""  # the model around it makes the mask
    switch = causal_option(module, flags)
    if switch is not None:
        return f"{switch[0]}=True" if switch[1] else ""
    kind = type(module).__name__
    if _named_causal(kind) and not given:
        return Sentence("class {name}").format(name=kind)
    for path, buffer in module.named_buffers():
        if buffer.ndim > 1 and buffer.shape[-1] == buffer.shape[-2] and is_triangle(buffer):
            return Sentence("buffer {path}").format(path=path)
    if given or type(module).__module__.startswith(("torch.", "keras.")):
        return ""
    text = text_of(module).lower()
    if _LANGUAGE_MODEL.search(kind) and "masked language" not in text and "bidirectional" not in text:
        return Sentence("class {name}").format(name=kind)
    parts = sorted({type(part).__name__ for part in module.modules()})
    attentions = [name for name in parts if "attention" in name.lower() or "attn" in name.lower()]
    if attentions and all(map(_named_causal, attentions)):
        return Sentence("class {name}").format(name=attentions[0])
    return ""


def drawn_mask(call: Callable[[], Any], lengths: tuple[int, int] | None) -> str:
    """Say which causal mask a call draws, or "". `lengths`: of its queries and keys; None: any."""
    pen = _Pen(lengths)
    with contextlib.suppress(Exception), pen:  # it was called before; what it drew until an error still counts
        call()
    return pen.found


class _Pen(TorchFunctionMode):
    """Notes the first causal mask that is drawn by a triangle, or asked of a fused kernel."""

    def __init__(self, lengths: tuple[int, int] | None) -> None:
        super().__init__()
        self.lengths = lengths
        self.found = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            causal = (kwargs or {}).get("is_causal", args[5] if len(args) > 5 else False)
            if causal is True and self.lengths in (None, (args[0].shape[-2], args[1].shape[-2])):
                self.found = self.found or Sentence("code {name}").format(name="is_causal=True")
        elif name.rstrip("_") in ("tril", "triu") and self.lengths in (None, out.shape[-2:]) and is_triangle(out):
            self.found = self.found or Sentence("code {name}").format(name=name)
        return out


def is_triangle(mask: Tensor) -> bool:
    """Whether it is a causal mask [.., Q, K]: one value above a diagonal through a corner, and another one below."""
    if mask.ndim < 2 or min(mask.shape[-2:]) < 2 or mask.numel() != mask.shape[-2] * mask.shape[-1]:
        return False
    x = mask.detach().reshape(mask.shape[-2:]).float()
    for corner in {0, x.shape[1] - x.shape[0]}:
        upper = torch.ones_like(x, dtype=torch.bool).triu(corner + 1)
        high, low = x[upper], x[~upper]
        if len(high) and len(low) and bool((high == high[0]).all() and (low == low[0]).all() and high[0] != low[0]):
            return True
    return False


def _named_causal(kind: str) -> bool:
    name = kind.lower().replace("_", "")
    return ("causal" in name or "autoregress" in name) and "noncausal" not in name
