"""Reads profiles from files: `load`. `headwise.profiles.saving` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwise.errors import FileError
from headwise.profiles.classes import CLASSES
from headwise.profiles.examples import Example, TopExamples, Window
from headwise.profiles.pairs import PairSketch
from headwise.profiles.profile import FACTS, Profile
from headwise.profiles.saving import KEY, TEXT, TOKENS, VERSION
from headwise.profiles.sums import FIELDS, LayerSums
from headwise.records.tensor_file import TensorFile, parse_json
from headwise.text import Tokens


def is_profile(path: Path) -> bool:
    """Return whether the metadata of a file says that it is a profile; False if it is missing or cannot be read."""
    try:
        return KEY in TensorFile(path).metadata
    except FileError:
        return False


def load(path: str | Path) -> Profile:
    """Read the profile that `save` wrote. Every tensor is compared with its checksum.

    Raises:
        FileError: the file is missing, is not a profile, is damaged, or needs a newer headwise.
    """
    path = Path(path)
    try:
        file = TensorFile(path)
    except FileError as error:
        if "is not a file of records" in str(error):
            raise FileError(f"{path} is not a profile: expected a file that headwise profile wrote") from error
        raise
    version = file.metadata.get(KEY, "")
    if not version:
        raise FileError(f"{path} is not a profile: expected a file that headwise profile wrote")
    if version != str(VERSION):
        raise FileError(
            f"{path} was written by another headwise: expected version {VERSION}. Received: version {version[:9]}. "
            "Upgrade: pip install -U headwise"
        )
    file.check_header()
    file.check_data()
    damaged = f"{path} is damaged: what it says of its heads"
    said = parse_json(file.metadata.get("description", ""), damaged)
    try:
        text = parse_json(file[TEXT].numpy().tobytes(), damaged)
        said.setdefault("run_digest", "")  # 0.2 did not write it
        profile = Profile(**{name: said[name] for name in FACTS})
        profile.names = {int(code): str(name) for code, name in text["names"].items()}
        windows = [_window(*each) for each in text["windows"]]
        kept = int(profile.options["kept"])
        profile.layers = [_layer(file, number, each, windows, kept) for number, each in enumerate(text["layers"])]
    except FileError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise FileError(f"{damaged} does not fit together: {type(error).__name__}: {error}") from error
    return profile


def _window(text: int, start: int, tokens: dict[str, Any]) -> Window:
    fields: dict[str, Any] = {name: tokens[name] for name in TOKENS}
    for name in set(TOKENS) - {"text"}:
        fields[name] = tuple(tuple(each) if isinstance(each, list) else each for each in fields[name])
    return Window(int(text), int(start), Tokens(**fields))


def _layer(file: TensorFile, number: int, said: dict[str, Any], windows: list[Window], kept: int) -> LayerSums:
    heads = int(said["heads"])
    numbers = {}
    for name, (shape, dtype) in FIELDS.items():
        if name.startswith(("previous", "induction_even")) and f"{number}.{name}" not in file:
            continue  # 0.2 did not write it
        x = file[f"{number}.{name}"]
        expected = tuple(heads if size == "H" else size for size in shape)
        if tuple(x.shape) != expected or x.dtype != dtype:
            raise ValueError(f"{name} must be {dtype} {expected} ({len(CLASSES)} classes), not {tuple(x.shape)}")
        numbers[name] = x.clone()
    counts = file[f"{number}.pairs.counts"].tolist()
    if len(counts) != heads or len(said["examples"]) != heads:
        raise ValueError(f"layer {number} must have pairs and examples of {heads} heads")
    codes = [x.clone() for x in file[f"{number}.pairs.codes"].split(counts)]
    pairs = PairSketch(heads, codes=codes, weights=[x.clone() for x in file[f"{number}.pairs.weights"].split(counts)])
    pairs.error, pairs.total = (file[f"{number}.pairs.{name}"].clone() for name in ("error", "total"))
    examples = [TopExamples(kept, [_example(windows, *each) for each in found]) for found in said["examples"]]
    return LayerSums(str(said["name"]), heads, kept, numbers, pairs, examples)


def _example(windows: list[Window], place: int, query: int, key: int, score: float, weights: list[float]) -> Example:
    window = windows[place]
    size = len(window.tokens.ids)
    if not (place >= 0 and 0 <= query < size and 0 <= key < size and len(weights) == size):
        raise ValueError("an example that does not fit its window")
    return Example(window, query, key, float(score), tuple(map(float, weights)))
