"""torchvision: its ViT, Swin and MaxViT."""

from __future__ import annotations

from tests.capture.libraries.library import Cases, called, image


def cases() -> Cases:
    from torchvision import models

    return {
        "VisionTransformer": lambda: called(models.VisionTransformer(32, 8, 2, 4, 32, 64), image(32)),
        "SwinTransformer": lambda: called(
            models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=5), image(64)
        ),
        "SwinTransformer v2": lambda: called(
            models.swin_transformer.SwinTransformer(
                *([4, 4], 16, [2, 2], [2, 4], [4, 4]),
                num_classes=5,
                block=models.swin_transformer.SwinTransformerBlockV2,
                downsample_layer=models.swin_transformer.PatchMergingV2,
            ),
            image(64),
        ),
        "MaxVit": lambda: called(models.MaxVit((64, 64), 16, 4, [16, 32], [1, 1], 8, 0.0), image(64)),
    }
