"""Reads the input of a model from its arguments: the pixels of an image, and names for its patches or sound frames.

Names are given only where they are certain. The patches come from the convolution that cuts the image. Their number
plus the number of tokens before them must be the length of every attention of the run.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.records import AttentionRecord, Seen
from headwise.text import Frames, Patches, Tokens

SAMPLES = 16_000  # a second of sound, as speech models of transformers read it
HOP = 160  # samples between two columns of a spectrogram: 10 ms
SOUNDS = ("input_features", "input_values")  # a spectrogram [B, bins, columns]; samples [B, samples]


class Reading:
    """Remembers what a watched model read: the arguments of its last forward pass with an image or a sound."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.pixels: Tensor | None = None  # [B, C, H, W]
        self.sound: Tensor | None = None

    def listen(self) -> Iterator[Callable[[], None]]:
        """Set hooks on the model, and its encoder (for `generate`); yield for each a function that removes it."""
        for module in {id(each): each for each in (self.model, _encoder(self.model))}.values():
            yield module.register_forward_pre_hook(self._read, with_kwargs=True).remove

    def _read(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        given = _by_name(module, args, kwargs or {})  # a monitor begins within a call: no keywords
        found = [x.detach() for x in given.values() if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 4]
        if found and found[0].shape[1] in (1, 3):
            self.pixels = found[0]
        for name in SOUNDS:
            if isinstance(x := given.get(name), Tensor):
                self.sound = x.detach()

    def name(self, seen: Seen) -> None:
        """Set `seen.tokens` to names of patches or frames, and `seen.pixel_values` for patches, if they are certain."""
        if not seen.records or (self.pixels is None and self.sound is None):
            return
        with contextlib.suppress(HeadwiseError):  # a record that cannot be read any more: its tensors were changed
            for value in self._names(seen.records):
                with contextlib.suppress(HeadwiseError):
                    seen.tokens = value
                    seen.pixel_values = self.pixels
                    return

    def _names(self, records: Sequence[AttentionRecord]) -> Iterator[Any]:
        """Yield possible values for `Seen.tokens`, the best first: names of the patches or the sound frames."""
        length = max(record.shape[3] for record in records)
        if self.pixels is not None:
            batch = len(self.pixels)
            found = find_patches(self.model, self.pixels, length)
            if found is None or any(record.shape[0] != batch for record in records):
                return  # the attention of windows has more examples than there are images
            yield found
            one: Any = [found] * batch
        else:
            assert self.sound is not None
            batch = len(self.sound)
            frames = find_frames(self.model, self.sound, length)
            if frames is None:
                return
            one = [frames.tokens()] * batch
            yield one
        queries = {record.shape[2] for record in records if record.shape[2] != record.shape[3]}
        for count in sorted(queries):  # learned queries that pool the patches, or a decoder
            yield {"source": one, "target": [Tokens.of_names(list(map(str, range(count))))] * batch}


def find_patches(model: nn.Module, pixels: Tensor, length: int) -> Patches | None:
    """Find the patches into which a model cuts images [B, C, H, W], if it reads `length` tokens; None if unknown.

    The convolution that cuts the image has a stride as long as its kernel. Tokens that are not patches come before the
    patches.
    """
    if hasattr(getattr(model, "config", None), "mask_ratio"):  # a masked autoencoder shuffles its patches
        return None
    height, width = pixels.shape[2:]
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == pixels.shape[1]:
            size = module.kernel_size
            if module.stride != size or size == (1, 1) or module.padding not in ((0, 0), 0, "valid"):
                return None
            rows, cols = height // size[0], width // size[1]
            names = _prefix(model, length - rows * cols)
            return None if names is None or not rows * cols else Patches(rows, cols, names)
    return None


def _prefix(model: nn.Module, count: int) -> tuple[str, ...] | None:
    """Return names for the `count` tokens before the patches; None if the model's parameters fit another number."""
    named = {path.rpartition(".")[2].lower(): x for path, x in model.named_parameters()}

    def sizes(*names: str) -> int:
        return sum(x.numel() // x.shape[-1] for name in names if (x := named.get(name)) is not None and x.ndim)

    first = sizes("cls_token", "class_token", "class_embedding")
    second = sizes("distillation_token", "dist_token")
    registers = sizes("register_tokens", "reg_token")
    if first + second + registers != count:
        return None
    return (
        *(["[CLS]"] if first == 1 else [f"[CLS{i}]" for i in range(1, first + 1)]),
        *["[DIST]"] * second,
        *(f"[REG{i}]" for i in range(1, registers + 1)),
    )


def find_frames(model: nn.Module, sound: Tensor, length: int) -> Frames | None:
    """Find the sound frames of which a model reads `length`; None if its convolutions do not give that number."""
    strides = [
        (module.kernel_size[0], module.stride[0])
        for path, module in model.named_modules()
        if isinstance(module, nn.Conv1d) and "pos_conv" not in path and "decoder" not in path.split(".")
    ]
    samples = sound.ndim == 2
    if not strides:
        return None
    stride = math.prod(each for _, each in strides)
    expected = sound.shape[-1] // stride
    # Without padding, the kernels of a waveform's convolutions leave out some frames at the end.
    if not (expected - (2 if samples else 0) <= length <= expected + 1):
        return None
    return Frames(length, stride * (1 if samples else HOP) / SAMPLES)


def _encoder(model: nn.Module) -> nn.Module:
    """Return the encoder of an encoder-decoder of transformers; otherwise the model."""
    find = getattr(model, "get_encoder", None)
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False) or not callable(find):
        return model
    found = find()
    return found if isinstance(found, nn.Module) else model


def _by_name(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a forward pass by their names."""
    if not args:
        return dict(kwargs)
    try:
        return dict(inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {**{str(i): each for i, each in enumerate(args)}, **kwargs}
