"""`headwise view --model` with models of all kinds: what they read, and what the page shows of it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

import headwise

from .conftest import Run, facts, refused

transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "."]
SENTENCE = "the cat sat on the mat ."
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
SHORT = {"vocab_size": len(WORDS), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
APART = {
    **SHORT, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 40,
    "decoder_start_token_id": 2,
}  # fmt: skip


def tokenizer(folder: Path) -> None:
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[CLS]", "eos_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)


def gpt2() -> Any:
    config = transformers.GPT2Config(**SHORT, n_embd=16, n_layer=2, n_head=2, n_positions=40)
    return transformers.GPT2LMHeadModel(config)


def roberta() -> Any:
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SHORT, **SMALL, max_position_embeddings=40))


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=len(WORDS), d_model=16, d_kv=8, d_ff=16, num_layers=2, num_decoder_layers=1, num_heads=2,
        pad_token_id=0, eos_token_id=3, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def bart() -> Any:
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**APART, forced_eos_token_id=None))


def vit(**options: Any) -> Any:
    return transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **SMALL, **options))


def clip() -> Any:
    text = {**SHORT, **SMALL, "max_position_embeddings": 40}
    vision = {"image_size": 32, "patch_size": 8, **SMALL}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision))


def swin() -> Any:
    options = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [2], "num_heads": [2], "window_size": 4}
    return transformers.SwinModel(transformers.SwinConfig(**options))


def whisper() -> Any:
    short = {name: APART[name] for name in APART if name != "max_position_embeddings"}
    return transformers.WhisperModel(transformers.WhisperConfig(**short, num_mel_bins=4))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No progress bar while models are saved: what the command prints is tested."""
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


def saved(folder: Path, make: Callable[[], Any], *, images: bool = False) -> Path:
    path = folder / make.__name__
    make().save_pretrained(path)
    if images:
        settings: dict[str, Any] = {"size": {"height": 32, "width": 32}, "image_processor_type": "ViTImageProcessor"}
        settings |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_normalize": True, "do_resize": True}
        (path / "preprocessor_config.json").write_text(json.dumps(settings))
    else:
        tokenizer(path)
    return path


SHOWN: dict[str, tuple[Callable[[], Any], list[tuple[str, int]]]] = {  # the stacks, with their layers
    "a causal model": (gpt2, [("self", 2)]),
    "a masked encoder": (roberta, [("self", 2)]),
    "T5": (t5, [("encoder", 2), ("decoder", 1), ("cross", 1)]),
    "BART": (bart, [("encoder", 2), ("decoder", 1), ("cross", 1)]),
}


@pytest.mark.parametrize("kind", SHOWN)
def test_a_model_of_texts_is_shown(kind: str, run: Run, tmp_path: Path) -> None:
    make, stacks = SHOWN[kind]
    result = run("view", SENTENCE, "--model", saved(tmp_path, make))
    assert result.code == 0, result.err
    told = facts(tmp_path / "attention.html")
    (one,) = told["inputs"]
    assert one["name"] == SENTENCE
    assert [(stack["name"], len(stack["layers"])) for stack in one["stacks"]] == stacks
    labels = told["axes"][one["stacks"][0]["rows"]]["labels"]
    assert [label for label in labels if label in WORDS and label[0] != "["] == SENTENCE.split()


def image(folder: Path) -> Path:
    Image.fromarray((np.arange(40 * 50 * 3) % 251).astype(np.uint8).reshape(40, 50, 3)).save(folder / "cat.png")
    return folder / "cat.png"


@pytest.mark.parametrize("make", [vit, clip])
def test_an_image_is_shown_behind_its_patches(make: Callable[[], Any], run: Run, tmp_path: Path) -> None:
    result = run("view", "--image", image(tmp_path), "--model", saved(tmp_path, make, images=True))
    assert result.code == 0, result.err
    told = facts(tmp_path / "attention.html")
    (one,) = told["inputs"]
    axis = told["axes"][one["stacks"][0]["cols"]]
    assert one["name"] == "cat.png"
    assert axis["patches"] == {"rows": 4, "cols": 4, "prefix": ["[CLS]"]}
    assert axis["image"].startswith("data:image/png;base64,")
    assert axis["imageNote"] is None  # the processor's normalisation was removed


def turned(path: Path) -> None:
    """Write a photo as a phone does: its pixels lie on their side, and a tag says so. Upright, the top right is red."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:16, :16, 0] = 255
    photo = Image.fromarray(pixels)
    tags = photo.getexif()
    tags[0x0112] = 6
    photo.save(path, exif=tags, quality=95)


def test_a_photo_is_read_upright(run: Run, tmp_path: Path) -> None:
    for name in ("photo.jpg", "photo.png", "photo.webp"):
        turned(tmp_path / name)
        result = run("view", "--image", tmp_path / name, "--model", saved(tmp_path, vit, images=True))
        assert result.code == 0, result.err
        (axis,) = (each for each in facts(tmp_path / "attention.html")["axes"] if each.get("image"))
        shown = Image.open(io.BytesIO(base64.b64decode(axis["image"].partition(",")[2]))).convert("RGB")
        red = [shown.getpixel((x, y))[0] > 128 for y in (8, 24) for x in (8, 24)]
        assert red == [False, True, False, False], name


def test_an_image_that_claims_to_be_huge_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    refused(
        run("view", "--image", image(tmp_path), "--model", saved(tmp_path, vit, images=True)),
        "cat.png: not an image that can be read",
    )


def test_windows_are_shown_without_the_image(run: Run, tmp_path: Path) -> None:
    result = run("view", "--image", image(tmp_path), "--model", saved(tmp_path, swin, images=True))
    assert result.code == 0, result.err
    assert "which tokens are which patches is not known" in result.err
    assert len(facts(tmp_path / "attention.html")["inputs"]) == 4  # windows of 4 x 4 patches


REFUSED = {
    "a text for a model of images": (vit, True, (SENTENCE,), "it reads images, not texts. Show it --image FILE"),
    "a text for a model of sound": (whisper, False, (SENTENCE,), "it reads sound, not texts"),
    "an image for a model of texts": (gpt2, False, ("--image", "cat.png"), "a gpt2 model reads no images"),
    "a text beside an image": (vit, True, ("--image", "cat.png", "a text"), "expected images alone"),
    "no image": (vit, True, ("--image", "nowhere.png"), "nowhere.png: expected an image file. Received: no such file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_model_does_not_read_is_refused(case: str, run: Run, tmp_path: Path) -> None:
    make, images, arguments, message = REFUSED[case]
    refused(run("view", "--image", image(tmp_path)), "--image: expected a --model that reads images")
    refused(run("view", *arguments, "--model", saved(tmp_path, make, images=images)), message)
    assert not (tmp_path / "attention.html").exists()


@pytest.mark.parametrize("command", ["view", "watch"])
def test_unknown_tokens_are_counted(command: str, run: Run, tmp_path: Path) -> None:
    result = run(command, "the dog sat on the sofa", "--model", saved(tmp_path, gpt2))
    assert result.code == 0, result.err
    assert "2 of 6 tokens are unknown to this model" in result.err
    known = run(command, SENTENCE, "--model", tmp_path / "gpt2")
    assert "unknown to this model" not in known.err + known.out


def test_unknown_tokens_are_in_the_summary_the_file_and_the_page(run: Run, tmp_path: Path) -> None:
    model = saved(tmp_path, gpt2)
    assert run("watch", "the dog sat on the sofa", "--model", model).code == 0
    seen = headwise.load(tmp_path / "run.hw")
    assert seen.unknown_tokens() == (2, 6)
    summary = seen.summary()
    assert (summary.unknown, summary.tokens) == (2, 6)
    assert "2 of 6 tokens are unknown to this model" in str(summary)
    assert "2 of 6 tokens are unknown to this model" in run("stats", "run.hw").out
    (tmp_path / "lines.txt").write_text("the dog\nthe cat\n")
    lines = run("watch", "--statistics-only", "--lines", "--file", "lines.txt", "--model", model)
    assert "1 of 4 tokens is unknown to this model" in lines.out
    assert headwise.view(seen, tmp_path / "page.html").exists()
    assert sum(facts(tmp_path / "page.html")["axes"][0]["unknown"]) == 2
