"""Resumes an earlier run of `profile` from its checkpoint, which must have the same model, corpus and options."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.capture.pretrained import Pretrained
from headwise.errors import ArgumentError
from headwise.profiles.profile import Profile
from headwise.profiles.storage import load
from headwise.tasks.bulk.parts import digest

_SAMPLE = 1024  # about so many values of each parameter go into the digest of a model
_FILES = ("*.json", "*.txt", "*.model", "*.tiktoken")  # the configuration and the tokenizer, in a model's folder


def partial(out: Path) -> Path:
    """Return the path of the checkpoints of a run that will write `out`: profile.partial.hw for profile.hw."""
    return out.with_name(f"{out.stem}.partial{out.suffix}")


def digest_model(model: nn.Module) -> str:
    """Compute the SHA-256 of the names, shapes and some values of all parameters and buffers."""
    found = hashlib.sha256()
    for name, x in model.state_dict().items():
        flat = x.detach().flatten()
        step = max(1, len(flat) // _SAMPLE)
        found.update(f"{name} {tuple(x.shape)} {x.dtype}".encode())
        found.update(flat[::step].cpu().double().numpy().tobytes())
    return found.hexdigest()


def digest_run(model: Pretrained) -> str:
    """Compute the SHA-256 of all that a model reads texts with: every weight, its configuration and its tokenizer."""
    folder = Path(model.name).expanduser()
    files = [path for kind in _FILES for path in folder.glob(kind)] if folder.is_dir() else []
    commit = getattr(getattr(model.model, "config", None), "_commit_hash", None)  # of a model on the hub
    found = hashlib.sha256(f"{commit} {digest(sorted(files))}".encode())
    for name, x in model.model.state_dict().items():
        found.update(f"{name} {tuple(x.shape)} {x.dtype}".encode())
        found.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def resumed(checkpoint: Path, wanted: Profile) -> Profile:
    """Load the profile in a checkpoint, to go on with it.

    Raises ArgumentError if its model, corpus name or options differ from those of `wanted`, the profile of this run.
    """
    found = load(checkpoint)
    if differences := _differences(found, wanted):
        raise ArgumentError(
            f"{checkpoint} is the checkpoint of another run: its {', '.join(differences)}. "
            "Give the same model, corpus and options, or delete that file to begin again"
        )
    return found


def _differences(checkpoint: Profile, wanted: Profile) -> list[str]:
    """List the differences between a checkpoint and this run, one phrase each; [] = the checkpoint can be resumed."""
    found = []
    if (checkpoint.model, checkpoint.run_digest) != (wanted.model, wanted.run_digest):
        same = checkpoint.model == wanted.model
        found.append(f"model={checkpoint.model}{' (other weights, options or tokenizer)' * same}")
    if checkpoint.corpus != wanted.corpus:
        found.append(f"corpus={checkpoint.corpus}")
    here, there = checkpoint.options, wanted.options
    found += [f"{name}={here.get(name)}" for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
    return found


def skip(texts: Iterator[str], count: int, digest: str, reading: Any, checkpoint: Path) -> None:
    """Skip `count` texts that an earlier run has read; add them to the hash `reading`.

    Raises ArgumentError if the hash is not `digest`: then they are other texts.
    """
    for text in itertools.islice(texts, count):
        digest_text(reading, text)
    if reading.hexdigest() != digest:
        raise ArgumentError(
            f"{checkpoint} is the checkpoint of another corpus: the first {count:,} texts are not those that it "
            "read. Give the same corpus, or delete that file to begin again"
        )


def digest_text(reading: Any, text: str) -> None:
    """Add a text and its length to the hash of a corpus: the same letters may be cut into texts differently."""
    data = text.encode("utf-8", "surrogatepass")
    reading.update(len(data).to_bytes(8, "little"))
    reading.update(data)
