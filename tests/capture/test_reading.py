"""What a model read: its patches and frames get their names by themselves, where they are certain, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headwise
from headwise.capture.reading import find_patches
from headwise.records import Seen
from headwise.text import Frames, Patches

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {**SMALL, "intermediate_size": 16}
IMAGE = {"image_size": 32, "patch_size": 8}


def look(model: torch.nn.Module, **inputs: Any) -> Seen:
    with torch.no_grad(), headwise.watch(model.eval()) as seen:
        model(**inputs)
    return seen


def vision(name: str, **options: Any) -> torch.nn.Module:
    config = getattr(transformers, f"{name.replace('Model', '')}Config")(**{**IMAGE, **options})
    model: torch.nn.Module = getattr(transformers, name)(config)
    return model


CUT: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "ViT": ("ViTModel", WIDE, ("[CLS]",)),
    "DeiT": ("DeiTModel", WIDE, ("[CLS]", "[DIST]")),
    "CLIP": ("CLIPVisionModel", WIDE, ("[CLS]",)),
    "registers": (
        "Dinov2WithRegistersModel",
        {**SMALL, "num_register_tokens": 2},
        ("[CLS]", "[REG1]", "[REG2]"),
    ),
}


@pytest.mark.parametrize("name", CUT)
def test_patches_get_their_names(name: str) -> None:
    kind, options, prefix = CUT[name]
    pixels = torch.randn(2, 3, 32, 32)
    seen = look(vision(kind, **options), pixel_values=pixels)
    assert seen.tokens is not None
    assert [each.patches for each in seen.tokens] == [Patches(4, 4, prefix)] * 2
    assert torch.equal(seen.pixel_values, pixels)  # type: ignore[arg-type]
    assert seen[0:1].pixel_values is seen.pixel_values


def test_a_query_that_pools_the_patches_stands_beside_them() -> None:
    seen = look(vision("SiglipVisionModel", **WIDE), pixel_values=torch.randn(1, 3, 32, 32))
    assert seen.source_tokens[0].patches == Patches(4, 4, ())
    assert seen.tokens[0].labels == ("0",)


def test_positional_arguments_of_any_model_are_read() -> None:
    class Cut(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut = torch.nn.Conv2d(3, 8, (4, 2), (4, 2))
            self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, images: torch.Tensor) -> Any:
            x = self.cut(images).flatten(2).mT
            return self.attention(x, x, x)

    model = Cut().eval()
    with torch.no_grad(), headwise.watch(model) as seen:
        model(torch.randn(1, 3, 8, 6))
    assert seen.tokens[0].patches == Patches(2, 3, ())


UNKNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "windows": (
        "SwinModel",
        {"patch_size": 4, "embed_dim": 8, "depths": [2], "num_heads": [2], "window_size": 4},
    ),
    "a part of the patches": ("ViTMAEModel", WIDE),
    "all patches, shuffled": ("ViTMAEModel", {**WIDE, "mask_ratio": 0.0}),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_certain_has_no_names(name: str) -> None:
    kind, options = UNKNOWN[name]
    seen = look(vision(kind, **options), pixel_values=torch.randn(1, 3, 32, 32))
    assert len(seen) > 0
    assert seen.tokens is None
    assert seen.pixel_values is None


def test_other_tokens_than_its_parameters_are_not_guessed() -> None:
    vit = vision("ViTModel", **WIDE)
    pixels = torch.randn(1, 3, 32, 32)
    assert find_patches(vit, pixels, 17) == Patches(4, 4)
    for length in (15, 16, 18):
        assert find_patches(vit, pixels, length) is None


def test_names_that_were_given_stay() -> None:
    vit = vision("ViTModel", **WIDE).eval()
    names = [f"t{i}" for i in range(17)]
    with torch.no_grad(), headwise.watch(vit, tokens=names) as seen:
        vit(pixel_values=torch.randn(1, 3, 32, 32))
    assert seen.tokens[0].labels == tuple(names)
    assert not vit._forward_pre_hooks


def test_a_mask_of_four_dimensions_is_no_image() -> None:
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=20, **WIDE))
    seen = look(bert, input_ids=torch.randint(20, (1, 5)), attention_mask=torch.zeros(1, 1, 5, 5))
    assert seen.tokens is None
    assert seen.pixel_values is None


def whisper() -> torch.nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=20, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_mel_bins=4, max_source_positions=20,
        max_target_positions=10, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model: torch.nn.Module = transformers.WhisperForConditionalGeneration(config).eval()
    return model


def test_frames_of_a_sound_are_named_by_their_time() -> None:
    model, sound = whisper(), torch.randn(1, 4, 40)
    seen = look(model, input_features=sound, decoder_input_ids=torch.tensor([[1, 5, 6]]))
    assert seen.source_tokens[0].labels[:3] == ("0.00 s", "0.02 s", "0.04 s")  # two columns of 10 ms
    assert seen.source_tokens[0].seconds == 0.02
    alone = look(model.get_encoder(), input_features=sound)  # type: ignore[operator]
    assert alone.tokens[0].labels[-1] == "0.38 s"


def test_the_encoder_that_generate_calls_is_read_too() -> None:
    model = whisper()
    with torch.no_grad(), headwise.watch(model) as seen:
        model.generate(input_features=torch.randn(1, 4, 40), max_new_tokens=3)  # type: ignore[operator]
    assert seen.source_tokens[0].seconds == 0.02


def test_samples_become_frames_by_the_strides() -> None:
    config = transformers.Wav2Vec2Config(
        vocab_size=20, conv_dim=[4] * 7, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, **WIDE
    )
    seen = look(transformers.Wav2Vec2Model(config), input_values=torch.randn(1, 4000))
    assert seen.tokens[0].seconds == 0.02  # 320 samples of 16,000 a second


def test_frames_are_kept_in_a_file(tmp_path: Any) -> None:
    seen = look(whisper().get_encoder(), input_features=torch.randn(1, 4, 40))  # type: ignore[operator]
    seen.save(tmp_path / "run.hw")
    again = headwise.load(tmp_path / "run.hw")
    assert again.tokens == seen.tokens
    with pytest.raises(headwise.errors.ArgumentError, match=r"at least 1 frame of more than 0 s.* Received: 0 × 1"):
        Frames(0, 1.0)


def test_records_that_were_changed_in_place_have_no_names() -> None:
    """Leaving the watch does not raise what a question to such a record would."""

    class Changing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut = torch.nn.Conv2d(3, 8, 2, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            x = self.cut(images).flatten(2).mT[:, None]
            key = x.clone()
            out = torch.nn.functional.scaled_dot_product_attention(x, key, x)
            key.zero_()
            return out

    model = Changing().eval()
    with torch.no_grad(), headwise.watch(model) as seen:
        model(torch.randn(1, 3, 4, 6))
    assert seen.tokens is None
    with pytest.raises(headwise.errors.RecordError, match="changed in place"):
        seen[0].weights()


def test_a_monitor_may_begin_within_the_call_that_it_reads() -> None:
    """It calls the hooks of the watch itself, with the arguments alone."""
    vit = vision("ViTModel", **WIDE).train()
    logged: list[int] = []
    monitor = headwise.capture.monitor(vit, every=1, log=lambda numbers, step: logged.append(step))
    with monitor:
        vit(torch.randn(1, 3, 32, 32)).pooler_output.sum().backward()
    assert not vit._forward_pre_hooks
