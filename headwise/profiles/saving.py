"""Writes profiles to files. A file is a safetensors file (`headwise.records.tensor_file`); nothing in it is code.

A file whose `complete` is false is the checkpoint of an unfinished run. `headwise.profiles.storage` reads both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.profiles.examples import Example, distinct
from headwise.profiles.sums import LayerSums
from headwise.records.tensor_file import write_tensors

VERSION = 1
KEY = "headwise profile"  # the key in the file's metadata that marks a profile
TEXT = "text"  # the tensor with the JSON that grows with the examples
TOKENS = ("ids", "labels", "offsets", "special", "text", "unknown", "word_ids")


def save(path: Path, layers: Sequence[LayerSums], names: Mapping[int, str], facts: Mapping[str, Any]) -> None:
    """Write a profile. When it is complete, it replaces an older file of that name. Raises FileError if this fails.

    Args:
        names: id -> label of a token.
        facts: name -> value of the fields of the profile that are plain values.
    """
    tensors: dict[str, Tensor] = {}
    windows = distinct([each for sums in layers for each in sums.examples])
    places = {(window.text, window.start): place for place, window in enumerate(windows)}
    said = []
    for number, sums in enumerate(layers):
        tensors |= {f"{number}.{name}": x for name, x in sums.numbers.items()}
        tensors[f"{number}.pairs.error"], tensors[f"{number}.pairs.total"] = sums.pairs.error, sums.pairs.total
        tensors[f"{number}.pairs.counts"] = torch.tensor([len(codes) for codes in sums.pairs.codes])
        tensors[f"{number}.pairs.codes"] = torch.cat(sums.pairs.codes)
        tensors[f"{number}.pairs.weights"] = torch.cat(sums.pairs.weights)
        examples = [[_plain(each, places) for each in kept.examples] for kept in sums.examples]
        said.append({"name": sums.name, "heads": sums.heads, "examples": examples})
    text = {
        "windows": [[each.text, each.start, {name: getattr(each.tokens, name) for name in TOKENS}] for each in windows],
        "layers": said,
        "names": {str(code): name for code, name in names.items()},
    }
    tensors[TEXT] = torch.frombuffer(bytearray(json.dumps(text).encode()), dtype=torch.uint8)
    write_tensors(path, tensors, {KEY: str(VERSION), "description": json.dumps(facts)})


def _plain(example: Example, places: dict[tuple[int, int], int]) -> list[Any]:
    window = places[example.window.text, example.window.start]
    return [window, example.query, example.key, example.score, example.weights]
