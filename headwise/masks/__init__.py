"""Masks: which queries may attend to which keys. True = may attend, always.

Combine them with `&`, `|` and `~`; give them to `headwise.attention(..., mask=)`. Each function's docstring shows its
matrix. See `headwise.masks.mask` for what a mask can answer.
"""

from headwise.masks.additive import recognise_additive
from headwise.masks.band import causal, window
from headwise.masks.bits import bits
from headwise.masks.block_sparse import big_bird, block_sparse
from headwise.masks.cellwise import from_predicate, from_tensor
from headwise.masks.dilated import dilated, strided
from headwise.masks.documents import documents
from headwise.masks.extent import Extent
from headwise.masks.global_tokens import global_tokens
from headwise.masks.knockout import knockout
from headwise.masks.mask import Mask
from headwise.masks.padding import lengths, padding
from headwise.masks.picked import picked
from headwise.masks.prefix import prefix
from headwise.masks.recognise import recognise
from headwise.masks.runs import runs

__all__ = [
    "Extent",
    "Mask",
    "big_bird",
    "bits",
    "block_sparse",
    "causal",
    "dilated",
    "documents",
    "from_predicate",
    "from_tensor",
    "global_tokens",
    "knockout",
    "lengths",
    "padding",
    "picked",
    "prefix",
    "recognise",
    "recognise_additive",
    "runs",
    "strided",
    "window",
]
