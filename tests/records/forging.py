"""What the tests of files share: records to save, what it means that they come back, and headers to forge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import headwise
from headwise.masks import Mask
from headwise.records import AttentionRecord, tensor_file


def record(mask: Mask | None = None, *, dtype: torch.dtype = torch.float32, **options: Any) -> AttentionRecord:
    """Of 2 examples, 4 heads, 2 key heads, 10 queries and 12 keys."""
    q, k, v = torch.randn(2, 4, 10, 8), torch.randn(2, 2, 12, 8), torch.randn(2, 2, 12, 6)
    return headwise.attention(q.to(dtype), k.to(dtype), v.to(dtype), mask=mask, record=True, **options)[1]


def assert_same(a: AttentionRecord, b: AttentionRecord) -> None:
    for name in ("q", "k", "slopes", "sinks"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        assert x is None or (x.dtype == y.dtype and torch.equal(x, y)), name
    for name in ("v", "grad", "output_weight"):
        x, y = getattr(a.extras, name), getattr(b.extras, name)
        assert (x is None) == (y is None), name
        assert x is None or (x.dtype == y.dtype and torch.equal(x, y)), name
    assert (a.scale, a.softcap, a.dropout, a.site) == (b.scale, b.softcap, b.dropout, b.site)
    assert torch.equal(a.scores(), b.scores())


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a file, with the description as data, and the bytes that follow."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"]["description"] = json.loads(header["__metadata__"]["description"])
    return header, data[8 + length :]


def forge(path: Path, header: dict[str, Any], data: bytes = b"", size: int | None = None) -> None:
    """A file with this header, whose checksum is right."""
    metadata = header["__metadata__"]
    metadata = {**metadata, "description": json.dumps(metadata["description"])}
    metadata["checksum"] = tensor_file._checksum({**header, "__metadata__": metadata})
    text = json.dumps({**header, "__metadata__": metadata}).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
        if size is not None:
            file.truncate(8 + len(text) + size)
