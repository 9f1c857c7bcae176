"""timm: of each of its files the smallest model, by name."""

from __future__ import annotations

import re
from typing import Any

import torch

from tests.capture.libraries.library import Case, Cases, called, image

SIZES = (
    "test_",
    "atto",
    "femto",
    "pico",
    "nano",
    "xxtiny",
    "xxs",
    "xtiny",
    "xs",
    "tiny",
    "_ti",
    "_t",
    "mini",
    "_s0",
    "_m0",
    "_b0",
    "small",
    "_s",
    "12",
    "18",
    "26",
)
# Files without attention, or that only hold parts of others.
NONE = re.compile(
    r"convnext|densenet|dla|dpn|efficientnet|ghostnet|hardcorenas|hrnet|inception|mobilenetv3|nasnet|pnasnet|regnet|res2net|resnest|"
    r"resnetv2|rexnet|selecsls|senet|sknet|tresnet|vgg|vovnet|xception|mlp_mixer|cspnet|mambaout|starnet|rdnet|focalnet|poolformer|vision_transformer_sam"
)


def cases() -> Cases:
    import timm

    def attempt(name: str, **options: Any) -> Case | Exception:
        try:
            model = timm.create_model(name, num_classes=5, **options)
            channels, *_, size = model.default_cfg["input_size"]
            picture = image(options.get("img_size", size), channels)
            with torch.no_grad():
                model.eval()(picture)
        except Exception as error:  # not every model takes every size, and each says so in its own way
            return error
        return called(model, picture)

    def make(name: str) -> Case:
        for options in ({"img_size": 64}, {"img_size": 128}, {}):
            found = attempt(name, **options)
            if not isinstance(found, Exception):
                return found
        raise found

    def rank(name: str) -> tuple[int, int]:
        return next((i for i, size in enumerate(SIZES) if size in name), len(SIZES)), len(name)

    chosen = [
        min(timm.list_models(module=module), key=rank)
        for module in timm.list_modules()
        if timm.list_models(module=module)
    ]
    return {name: lambda name=name: make(name) for name in chosen if not NONE.match(name)}
