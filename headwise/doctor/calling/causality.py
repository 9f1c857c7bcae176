"""Says why a module should be causal by itself: what its options, its names and its buffers state, and whether a plain
call of it draws a causal mask.

Docstrings and comments claim nothing, and neither does an option whose default is False, or a mask that some other path
draws.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise.doctor.calling.claims import text_of

_OPTIONS = ("is_causal", "causal", "autoregressive", "use_causal_mask", "_use_causal_mask", "_causal", "masked")
# SegGPT is a model of images; masked, prefix and diffusion models see later tokens; XLM and MLM are no names of it.
_LANGUAGE_MODEL = re.compile(
    r"(?i:(?<!seg)gpt|(?<!masked)languagemodel)"
    r"|[a-z](?<!Mask)(?<!Masked)(?<!Bert)(?<!Prefix)(?<!Diffusion)(?<!Fi)LM(Head)?(Model)?$"
)
_TAUGHT = re.compile(r"teacher|<(sos|bos|start|go|s)>|\bnext (token|word|item)|\[:, 1:\]", re.IGNORECASE)


def option(module: nn.Module, flags: dict[str, bool]) -> tuple[str, bool] | None:
    """Find the option that switches the causal mask, and its value: an attribute, or an option of forward."""
    values = ((name, getattr(module, name, flags.get(name))) for name in _OPTIONS)
    return next(((name, value) for name, value in values if isinstance(value, bool)), None)


def claim(module: nn.Module, flags: dict[str, bool], *, given: bool) -> str:
    """Say why a module should be causal by itself, as far as it stands in its names, options and buffers; or "".

    Args:
        flags: the boolean options of forward, with their defaults.
        given: whether every caller must pass a mask of cells: then a name such as CausalSelfAttention may speak of it.
    """
    if any(hasattr(part.__dict__.get("config"), "_attn_implementation") for part in module.modules()):
        return ""  # the model around it makes the mask
    switch = option(module, flags)
    if switch is not None:
        return f"{switch[0]}=True" if switch[1] else ""
    kind = type(module).__name__
    if _named_causal(kind) and not given:
        return f"class {kind}"
    for path, buffer in module.named_buffers():
        if buffer.ndim > 1 and buffer.shape[-1] == buffer.shape[-2] and is_triangle(buffer):
            return f"buffer {path}"
    if given or type(module).__module__.startswith(("torch.", "keras.")):
        return ""
    text = text_of(module).lower()
    if _LANGUAGE_MODEL.search(kind) and "masked language" not in text and "bidirectional" not in text:
        return f"class {kind}"
    parts = sorted({type(part).__name__ for part in module.modules()})
    attentions = [name for name in parts if "attention" in name.lower() or "attn" in name.lower()]
    return f"class {attentions[0]}" if attentions and all(map(_named_causal, attentions)) else ""


def drawn(call: Callable[[], Any], lengths: tuple[int, int] | None) -> str:
    """Say which causal mask a call draws, or "". `lengths`: of its queries and keys; None: any."""
    pen = _Pen(lengths)
    try:
        with pen:
            call()
    except Exception:  # it was called before; what it drew until then still counts
        return pen.found
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
                self.found = self.found or "code is_causal=True"
        elif name.rstrip("_") in ("tril", "triu") and self.lengths in (None, out.shape[-2:]) and is_triangle(out):
            self.found = self.found or f"code {name}"
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


def is_taught(module: nn.Module) -> bool:
    """Whether it says that its first token only starts the decoding: it then returns one row fewer than tokens."""
    return any(_TAUGHT.search(doc or "") for doc in (type(module).__doc__, module.forward.__doc__))
