"""lucidrains' packages: vit-pytorch, perceiver-pytorch, local-attention, linformer, slot-attention."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from tests.capture.libraries.library import Case, Cases, called, image

ONE = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 32}
HEAD = {**ONE, "dim_head": 8}


def cases() -> Cases:
    def vit(module: str, name: str, **options: Any) -> Case:
        cls = getattr(importlib.import_module(f"vit_pytorch.{module}"), name)
        size = options.pop("size", 32)
        return called(cls(**options), image(size))

    def other(module: str, name: str, *args: Any, **options: Any) -> Case:
        return called(getattr(importlib.import_module(module), name)(**options), *args)

    importlib.import_module("vit_pytorch")
    x = torch.randn(2, 16, 32)
    return {
        "ViT": lambda: vit("vit", "ViT", **HEAD),
        "SimpleViT": lambda: vit("simple_vit", "SimpleViT", **HEAD),
        "SimpleViT, flash": lambda: vit("simple_flash_attn_vit", "SimpleViT", **HEAD, use_flash=True),
        "SimpleViT, qk norm": lambda: vit("simple_vit_with_qk_norm", "SimpleViT", **HEAD),
        "SimpleViT, registers": lambda: vit("simple_vit_with_register_tokens", "SimpleViT", **HEAD),
        "SimpleViT, value residual": lambda: vit("simple_vit_with_value_residual", "SimpleViT", **HEAD),
        "SimpleViT, fft": lambda: vit("simple_vit_with_fft", "SimpleViT", **HEAD, freq_patch_size=8),
        "normalised ViT": lambda: vit(
            "normalized_vit", "nViT", **{k: v for k, v in HEAD.items() if k != "mlp_dim"}, mlp_dim=32
        ),
        "ViT for small data": lambda: vit("vit_for_small_dataset", "ViT", **HEAD),
        "ViT, rotary": lambda: vit("rvt", "RvT", **ONE),
        "DeepViT": lambda: vit("deepvit", "DeepViT", **HEAD),
        "CaiT": lambda: vit("cait", "CaiT", **HEAD, cls_depth=1),
        "ParallelViT": lambda: vit("parallel_vit", "ViT", **HEAD, num_parallel_branches=2),
        "ViT, patch merger": lambda: vit(
            "vit_with_patch_merger", "ViT", **HEAD, patch_merge_layer=1, patch_merge_num_tokens=4
        ),
        "ViT, learnable memory": lambda: vit("learnable_memory_vit", "ViT", **HEAD),
        "AdaptiveTokenSampling": lambda: vit("ats_vit", "ViT", **HEAD, max_tokens_per_depth=(12, 8)),
        "XCiT": lambda: vit("xcit", "XCiT", **HEAD, cls_depth=1),
        "T2T": lambda: vit(
            "t2t",
            "T2TViT",
            image_size=32,
            num_classes=5,
            dim=32,
            depth=2,
            heads=4,
            mlp_dim=32,
            t2t_layers=((7, 4), (3, 2)),
        ),
        "CCT": lambda: vit(
            *("cct", "CCT"),
            img_size=32,
            embedding_dim=32,
            n_conv_layers=1,
            num_layers=2,
            num_heads=4,
            mlp_ratio=1.0,
            num_classes=5,
        ),
        "CrossViT": lambda: vit(
            *("cross_vit", "CrossViT"),
            **{
                "image_size": 32,
                "num_classes": 5,
                "depth": 1,
                "sm_dim": 16,
                "lg_dim": 32,
                "sm_patch_size": 8,
                "lg_patch_size": 16,
            },
            **{"sm_enc_depth": 1, "sm_enc_heads": 2, "sm_enc_mlp_dim": 16, "lg_enc_depth": 1, "lg_enc_heads": 2},
            **{"lg_enc_mlp_dim": 16, "cross_attn_depth": 1, "cross_attn_heads": 2},
        ),
        "PiT": lambda: vit("pit", "PiT", **{**HEAD, "depth": (1, 1)}),
        "LeViT": lambda: vit(
            "levit", "LeViT", image_size=128, num_classes=5, dim=(16, 32), depth=1, heads=(2, 4), mlp_mult=2, size=128
        ),
        "CvT": lambda: vit(
            "cvt", "CvT", num_classes=5, s1_emb_dim=16, s2_emb_dim=32, s3_emb_dim=32, s3_depth=1, size=64
        ),
        "TwinsSVT": lambda: vit(
            *("twins_svt", "TwinsSVT"),
            num_classes=5,
            s1_emb_dim=16,
            s2_emb_dim=16,
            s3_emb_dim=32,
            s4_emb_dim=32,
            size=64,
            s1_global_k=2,
            s2_global_k=2,
            s3_global_k=2,
            s4_global_k=2,
            s1_patch_size=2,
            s2_patch_size=2,
            s3_patch_size=2,
            s4_patch_size=2,
            s1_local_patch_size=4,
            s2_local_patch_size=4,
            s3_local_patch_size=4,
            s3_depth=1,
        ),
        "RegionViT": lambda: vit(
            "regionvit", "RegionViT", dim=(16, 16, 32, 32), depth=(1, 1, 1, 1), window_size=2, num_classes=5, size=128
        ),
        "CrossFormer": lambda: vit(
            *("crossformer", "CrossFormer"),
            num_classes=5,
            dim=(32, 32, 32, 32),
            depth=(1, 1, 1, 1),
            global_window_size=(4, 4, 2, 2),
            local_window_size=(4, 4, 2, 2),
            size=128,
        ),
        "ScalableViT": lambda: vit(
            *("scalable_vit", "ScalableViT"),
            num_classes=5,
            dim=16,
            heads=(2, 4),
            depth=(1, 1),
            ssa_dim_key=(8, 8),
            reduction_factor=(4, 2),
            window_size=(8, None),
            size=64,
        ),
        "SepViT": lambda: vit(
            "sep_vit", "SepViT", num_classes=5, dim=16, dim_head=8, heads=(2, 4), depth=(1, 2), size=56
        ),
        "MaxViT": lambda: vit(
            "max_vit", "MaxViT", num_classes=5, dim=16, depth=(1, 1), dim_head=8, window_size=4, size=64
        ),
        "NesT": lambda: vit(
            "nest",
            "NesT",
            image_size=64,
            patch_size=4,
            dim=16,
            heads=2,
            num_hierarchies=2,
            block_repeats=(1, 1),
            num_classes=5,
            size=64,
        ),
        "MobileViT": lambda: vit(
            *("mobile_vit", "MobileViT"),
            image_size=(64, 64),
            dims=[16, 24, 32],
            channels=[8, 8, 16, 16, 16, 16, 16, 16, 16, 16, 32],
            num_classes=5,
            size=64,
        ),
        "Perceiver": lambda: other(
            *("perceiver_pytorch", "Perceiver"),
            torch.randn(1, 8, 8, 3),
            input_channels=3,
            input_axis=2,
            num_freq_bands=2,
            max_freq=10.0,
            depth=2,
            num_latents=6,
            latent_dim=16,
            cross_heads=2,
            latent_heads=2,
            cross_dim_head=8,
            latent_dim_head=8,
            num_classes=5,
        ),
        "PerceiverIO": lambda: other(
            *("perceiver_pytorch", "PerceiverIO"),
            x,
            None,
            torch.randn(5, 16),
            dim=32,
            queries_dim=16,
            logits_dim=5,
            depth=1,
            num_latents=6,
            latent_dim=16,
            cross_heads=1,
            latent_heads=2,
            cross_dim_head=8,
            latent_dim_head=8,
        ),
        "LocalAttention": lambda: other(
            *("local_attention", "LocalAttention"),
            *torch.randn(3, 2, 16, 8),
            dim=8,
            window_size=4,
            causal=True,
            look_backward=1,
        ),
        "LocalAttention, both sides": lambda: other(
            *("local_attention", "LocalAttention"),
            *torch.randn(3, 2, 16, 8),
            dim=8,
            window_size=4,
            causal=False,
            autopad=True,
        ),
        "LocalTransformer": lambda: other(
            *("local_attention", "LocalTransformer"),
            torch.randint(0, 20, (2, 16)),
            num_tokens=20,
            dim=32,
            depth=2,
            heads=4,
            dim_head=8,
            max_seq_len=16,
            local_attn_window_size=4,
            causal=True,
        ),
        "Linformer": lambda: other(
            "linformer", "Linformer", x, dim=32, seq_len=16, depth=1, heads=4, k=4, one_kv_head=True, share_kv=False
        ),
        "SlotAttention": lambda: other("slot_attention", "SlotAttention", x, num_slots=3, dim=32, iters=2),
        "MultiHeadSlotAttention": lambda: other(
            "slot_attention", "MultiHeadSlotAttention", x, num_slots=3, dim=32, heads=4, dim_head=8, iters=2
        ),
    }
