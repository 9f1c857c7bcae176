"""Makes small modules for worksheets: their numbers have two decimals, so that a person can recompute them by hand."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError
from headwise.language import Sentence
from headwise.masks import Mask
from headwise.models import Bert, BertConfig
from headwise.nn import LatentAttention, MultiHeadAttention, MultiHeadLatentAttention, positions
from headwise.nn.options import check_known, divisible, whole
from headwise.worksheet.builder import FITS, LONGEST
from headwise.worksheet.make import make
from headwise.worksheet.sheet import Worksheet

KINDS = ("multi-head", "latent", "mla", "bert")
SCHEMES = ("none", "rope", "alibi", "t5")
HEAD_DIM = 2  # the width of a head, unless positions need a larger head
CLS, SEP = "[CLS]", "[SEP]"


def split(text: str) -> list[str]:
    """Split a text into its words; or into its characters, if it is Chinese or Japanese without spaces."""
    words = text.split()
    if len(words) == 1 and any(unicodedata.east_asian_width(letter) == "W" for letter in text):
        return list(words[0])
    return words


def demo(
    kind: str,
    tokens: Sequence[str],
    *,
    memory: Sequence[str] | None = None,
    mask: Mask | None = None,
    heads: int = 2,
    kv_heads: int | None = None,
    scheme: str = "none",
    latents: int = 2,
    seed: int = 0,
    title: str | None = None,
) -> Worksheet:
    """Make the worksheet of a small module of this kind, with random numbers of two decimals.

    `memory`, `kv_heads` and `scheme` (the kind of positions) are only for "multi-head", `latents` is only for "latent".
    Equal tokens have the same row of numbers at every position.

    Raises:
        ArgumentError: no tokens, an unknown kind or scheme, or a number of heads that is not divisible.
        WorksheetError: there are more tokens or heads than fit.
    """
    check_known("kind", kind, KINDS)
    check_known("positions", scheme, SCHEMES)
    if not tokens or (memory is not None and not memory):
        raise ArgumentError("tokens: expected at least one word. Received: tokens=[]. Pass a text")
    whole("heads", heads)
    if max(heads * HEAD_DIM, len(tokens), len(memory or ())) > LONGEST:
        most = Sentence("{heads} heads and {tokens} tokens").format(heads=LONGEST // HEAD_DIM, tokens=LONGEST)
        received = Sentence("{heads} heads and {count} tokens").format(
            heads=heads, count=max(len(tokens), len(memory or ()))
        )
        raise ArgumentError(f"too large to follow: expected at most {most}. Received: {received}. {FITS}")
    random = torch.Generator().manual_seed(seed)
    if kind == "bert":
        return _bert(tokens, mask, heads, random, title)
    module = _module(kind, heads, kv_heads, scheme, latents)
    fill(module, random)
    table: dict[str, Tensor] = {}
    width = 6 if kind == "mla" else getattr(module, "input_dim", None) or module.get_parameter("out.weight").shape[0]
    x = _embedded(tokens, width, table, random)
    if memory is None:
        return make(module, x, tokens=tokens, mask=mask, title=title)
    other = _embedded(memory, width, table, random)
    return make(module, (x, other), tokens=tokens, memory_tokens=memory, mask=mask, title=title)


def fill(module: nn.Module, random: torch.Generator) -> None:
    """Fill a module with float64 numbers of two decimals: gains near 1, biases near 0, different weights per head."""
    module.double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            numbers = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            if parameter.ndim > 1:
                numbers = 0.7 * numbers
            else:
                numbers = 0.1 * numbers + (1.0 if name.endswith("norm.weight") else 0.0)
            parameter.copy_((numbers * 100).round() / 100)


def _module(kind: str, heads: int, kv_heads: int | None, scheme: str, latents: int) -> nn.Module:
    if kind == "mla":
        ranks = {"q_rank": 3, "kv_rank": 3, "nope_dim": 2, "rope_dim": 4, "value_head_dim": 2}
        return MultiHeadLatentAttention(6, heads, **ranks)  # type: ignore[arg-type]
    dim = heads * HEAD_DIM
    if kind == "latent":
        return LatentAttention(whole("latents", latents), dim, num_heads=heads, ffn_dim=2 * dim)
    if kv_heads is not None:
        divisible("heads", heads, "kv_heads", whole("kv_heads", kv_heads))
    # A head of two dimensions has only one pair to rotate; with four dimensions there are a fast and a slow pair.
    wide = 2 * HEAD_DIM if scheme == "rope" else HEAD_DIM
    schemes = {
        "rope": lambda: positions.Rope(wide),
        "alibi": lambda: positions.Alibi(heads),
        "t5": lambda: positions.T5Buckets(heads, num_buckets=8, max_distance=16),
    }
    chosen = schemes[scheme]() if scheme != "none" else None
    return MultiHeadAttention(
        dim, heads, num_kv_heads=kv_heads, head_dim=wide, value_head_dim=HEAD_DIM, bias=False, positions=chosen
    )


def _embedded(tokens: Sequence[str], width: int, table: dict[str, Tensor], random: torch.Generator) -> Tensor:
    """Make the input [1, S, M]: random numbers for each token. Equal tokens get the same row, stored in `table`."""
    for token in tokens:
        if token not in table:
            numbers = torch.randn(width, generator=random, dtype=torch.float64)
            table[token] = (numbers * 100).round() / 100
    return torch.stack([table[token] for token in tokens])[None]


def _bert(
    tokens: Sequence[str], mask: Mask | None, heads: int, random: torch.Generator, title: str | None
) -> Worksheet:
    """Make the worksheet of a small BERT: one layer, with [CLS] and [SEP] around the text."""
    names = [CLS, *tokens, SEP]
    words = list(dict.fromkeys(names))
    dim = heads * HEAD_DIM
    model = Bert(
        BertConfig(
            vocab_size=len(words),
            dim=dim,
            num_layers=1,
            num_heads=heads,
            ffn_dim=2 * dim,
            max_positions=LONGEST,
            pooler=False,
        )
    )
    fill(model, random)
    ids = torch.tensor([[words.index(name) for name in names]])
    real = None if mask is None else mask.to_bool(1, len(names))[0, 0]
    return make(model, ids, tokens=names, title=title, real=real)
