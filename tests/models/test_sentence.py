"""Vectors of texts against sentence-transformers, which is the definition of what a checkpoint's settings mean."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from headwise.errors import ArgumentError, CheckpointError, DtypeError
from headwise.models import Bert, BertConfig, sentence, unpadded
from headwise.models.sentence_settings import read_settings

TOLERANCE = 1e-5
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "in", "rain", "query", "passage", ":"]
TEXTS = ["a cat sat", "", "The Dog ran in the rain", "a", "dog on the mat : a dog", " ".join(WORDS * 4), "rain"]
PLACES = {"Transformer": "", "Pooling": "1_Pooling"}

Save = Callable[..., tuple[Path, Any]]


@pytest.fixture(scope="module")
def modules() -> Any:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    from sentence_transformers.base import modules as base
    from sentence_transformers.sentence_transformer import modules as own

    return type("Modules", (), {**vars(base), **vars(own)})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT and its tokenizer, which keeps capitals apart."""
    folder = tmp_path_factory.mktemp("tiny")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "The", "Dog"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=False).save_pretrained(folder)
    return folder


@pytest.fixture
def save(tmp_path: Path, tiny: Path, modules: Any) -> Save:
    """`save(later modules…, pooling={…}, transformer={…}, **model)`: a checkpoint's folder, and the other library's."""

    def save(*later: Any, pooling: Any = None, transformer: Any = None, **model: Any) -> tuple[Path, Any]:
        from sentence_transformers import SentenceTransformer

        first = modules.Transformer(str(tiny), **transformer or {})
        all_modules = [first, modules.Pooling(12, **pooling or {}), *later]
        SentenceTransformer(modules=all_modules, device="cpu", **model).save_pretrained(str(tmp_path / "model"))
        return tmp_path / "model", SentenceTransformer(str(tmp_path / "model"), device="cpu")

    return save


def furthest(folder: Path, theirs: Any, **prompt: Any) -> float:
    found = Bert.from_pretrained(folder).sentences
    text = found.prompt(prompt.get("prompt_name"), prompt.get("prompt"))
    expected = torch.from_numpy(theirs.encode(TEXTS, **prompt))
    vectors = found.embed(TEXTS, text).vectors
    assert vectors.shape == expected.shape == (len(TEXTS), found.dim)
    return float((vectors - expected).abs().max())


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_minilm_gives_the_vectors_of_sentence_transformers(minilm: Path, paragraphs: list[str], modules: Any) -> None:
    from sentence_transformers import SentenceTransformer

    texts = [*paragraphs[:8], "", "one", "Ünïcode İ 文", "word " * 300]
    bert = Bert.from_pretrained(minilm)
    with pytest.warns(UserWarning, match="1 of 12 texts were cut: they have more than the 256 tokens that are read"):
        ours = bert.encode(texts)
    theirs = SentenceTransformer(str(minilm), device="cpu")
    expected = torch.from_numpy(theirs.encode(texts))
    torch.testing.assert_close(ours, expected, rtol=0, atol=TOLERANCE)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(bert.encode(texts[0]), ours[0], rtol=0, atol=TOLERANCE)
    assert bert.encode([]).shape == (0, 384)


MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@pytest.mark.parametrize("mode", [*MODES, ("lasttoken", "mean", "cls")])
@pytest.mark.parametrize("include_prompt", [True, False])
def test_each_pooling_with_a_prompt_that_counts_or_not(save: Save, mode: Any, include_prompt: bool) -> None:
    folder, theirs = save(pooling={"pooling_mode": mode, "include_prompt": include_prompt})
    assert furthest(folder, theirs, prompt="query : ") < TOLERANCE
    assert furthest(folder, theirs) < TOLERANCE


def test_the_settings_of_older_versions(save: Save) -> None:
    folder, _ = save()
    config = folder / "1_Pooling" / "config.json"
    flags = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, "pooling_mode_max_tokens": False}
    config.write_text(json.dumps({"word_embedding_dimension": 12, **flags}))
    kinds = ("Transformer", "Pooling")
    listed = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate(zip(kinds, ("", "1_Pooling"), strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9, "do_lower_case": True}))
    from sentence_transformers import SentenceTransformer

    assert read_settings(folder).pooling == ("cls", "mean")
    assert furthest(folder, SentenceTransformer(str(folder), device="cpu")) < TOLERANCE


def test_what_follows_the_pooling(save: Save, modules: Any) -> None:
    torch.manual_seed(1)
    norm = modules.LayerNorm(12)
    torch.nn.init.normal_(norm.norm.weight)
    later = (
        *(norm, modules.Dense(12, 12, activation_function=torch.nn.GELU(), use_residual=True)),
        *(modules.Dense(12, 7, bias=False, use_residual=True), modules.Dropout(0.5), modules.Normalize()),
    )
    folder, theirs = save(*later, truncate_dim=5)
    assert furthest(folder, theirs) < TOLERANCE
    dense = folder / "3_Dense"
    edit(dense / "config.json", activation_function="torch.hub.load")
    with pytest.raises(CheckpointError, match=r"activation_function: expected a module of torch\.nn\. Received"):
        Bert.from_pretrained(folder).encode("a")


def test_the_weights_of_a_dense_layer_in_the_older_file(save: Save, modules: Any) -> None:
    from safetensors.torch import load_file

    folder, theirs = save(modules.Dense(12, 4))
    dense = folder / "2_Dense"
    torch.save(load_file(dense / "model.safetensors"), dense / "pytorch_model.bin")
    (dense / "model.safetensors").unlink()
    assert furthest(folder, theirs) < TOLERANCE
    (dense / "pytorch_model.bin").write_bytes(b"not weights")
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin, it is damaged"):
        Bert.from_pretrained(folder).encode("a")


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_cut_and_lowercased_as_the_settings_say(save: Save, side: str) -> None:
    folder, _ = save(transformer={"max_seq_length": 6})
    edit(folder / "tokenizer_config.json", truncation_side=side)
    edit(folder / "sentence_bert_config.json", do_lower_case=True)
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(folder), device="cpu")
    assert furthest(folder, theirs) < TOLERANCE
    found = Bert.from_pretrained(folder).sentences.embed(TEXTS)
    assert found.cut == [2, 4, 5]
    assert found.tokens == sum(min(2 + len(text.split()), 6) for text in TEXTS)
    assert torch.equal(*Bert.from_pretrained(folder).encode(["The Dog", "the dog"]))


def test_prompts_are_those_of_the_checkpoint(save: Save) -> None:
    folder, theirs = save(prompts={"query": "query : ", "passage": "passage : "}, default_prompt_name="passage")
    assert furthest(folder, theirs, prompt_name="query") < TOLERANCE
    assert furthest(folder, theirs) < TOLERANCE  # the default
    bert = Bert.from_pretrained(folder)
    assert torch.equal(bert.encode("a cat", prompt_name="query"), bert.encode("query : a cat", prompt=""))
    assert not torch.equal(bert.encode("a cat"), bert.encode("a cat", prompt=""))
    with pytest.raises(ArgumentError, match=r"prompt_name: expected a prompt of the checkpoint \(.*'passage'.*'other'"):
        bert.encode("a cat", prompt_name="other")
    with pytest.raises(ArgumentError, match="expected prompt or prompt_name"):
        bert.encode("a cat", prompt_name="query", prompt="x")


def test_without_settings_it_is_the_mean_and_a_warning_says_so(tiny: Path) -> None:
    bert = Bert.from_pretrained(tiny)
    with pytest.warns(UserWarning, match=r"has no modules.json: the vectors are means over all tokens"):
        vector = bert.encode("a cat")
    ids = bert.sentences._ids(["a cat"])[0]
    torch.testing.assert_close(vector, bert(torch.tensor(ids))[0].mean(0).detach())


def test_order_and_passes_do_not_change_the_vectors(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are sorted, tokenized ahead and read in passes; each still gets its own vector."""
    folder, _ = save()
    bert = Bert.from_pretrained(folder).train()
    texts = [" ".join(WORDS[at % 5 : at % 13]) for at in range(50)]
    one_by_one = torch.stack([bert.encode(text) for text in texts])
    sizes: list[int] = []
    read = unpadded.read

    def counting(bert: Bert, ids: list[list[int]], **how: Any) -> Any:
        sizes.append(sum(map(len, ids)))
        return read(bert, ids, **how)

    monkeypatch.setattr(unpadded, "read", counting)
    monkeypatch.setattr(sentence, "_AHEAD", 7)
    told: list[tuple[int, int]] = []
    found = bert.sentences.embed(texts, batch_tokens=20, tell=lambda done, total: told.append((done, total)))
    torch.testing.assert_close(found.vectors, one_by_one, rtol=0, atol=TOLERANCE)
    assert max(sizes) <= 20
    assert sum(sizes) == found.tokens
    assert told[0] == (0, 50)
    assert told[-1] == (50, 50)
    assert bert.training


def test_progress_ends_with_the_speed(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = save()
    capsys.readouterr()  # the other library shows bars too
    Bert.from_pretrained(folder).encode(["a cat", "rain"], progress=True)
    assert capsys.readouterr().err.startswith("2 texts in 0.")
    assert sentence.summary(512, 39_000, 4.2) == "512 texts in 4.2 s: 122 texts/s, 9,286 tokens/s"


@pytest.mark.parametrize(
    ("texts", "options", "error", "says"),
    [
        (["a", None], {}, DtypeError, r"texts\[1\]: expected a string. Received: NoneType None"),
        (["a", math.nan], {}, DtypeError, r"texts\[1\]: expected a string. Received: float nan"),
        (["\ud800"], {}, ArgumentError, r"texts\[0\]: expected valid Unicode"),
        (["a"], {"batch_tokens": 0}, ArgumentError, "batch_tokens: expected a whole number above 0"),
        (["a"], {"dtype": "float64"}, ArgumentError, "dtype: expected one of float32, bfloat16, int8"),
    ],
)
def test_bad_input_is_refused(minilm: Path, texts: Any, options: Any, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        Bert.from_pretrained(minilm).encode(texts, **options)


def test_a_bert_without_a_checkpoint_says_what_to_do(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"was made from a config, which has none. Load a checkpoint"):
        Bert(BertConfig(vocab_size=9, dim=4, num_layers=1, num_heads=1, ffn_dim=4)).encode("a")
    shutil.copytree(tiny, tmp_path / "bare")
    for name in ("tokenizer.json", "vocab.txt"):
        (tmp_path / "bare" / name).unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="no tokenizer in"):
        Bert.from_pretrained(tmp_path / "bare").encode("a")


@pytest.mark.parametrize(
    ("file", "changes", "says"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "attention"}, "expected pooling of cls, .*Received: 'attention'"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task='fill-mask'"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {}}}, "expected no processing_kwargs"),
        ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "Received: 'token_embeddings'"),
    ],
)
def test_settings_that_are_not_known_are_refused(
    save: Save, modules: Any, file: str, changes: dict[str, Any], says: str
) -> None:
    folder, _ = save(modules.Normalize())
    edit(folder / file, **changes)
    with pytest.raises(CheckpointError, match=says):
        read_settings(folder)


@pytest.mark.parametrize("known", [True, False])
def test_flags_of_pooling_that_are_not_known_are_refused(tmp_path: Path, known: bool) -> None:
    modules = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in PLACES.items()]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    flags = {"pooling_mode_mean_tokens": known, "pooling_mode_max_tokens": False}
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({**flags, "pooling_mode_own": True}))
    with pytest.raises(CheckpointError, match=r"expected flags of pooling_mode_cls_token"):
        read_settings(tmp_path)
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({**flags, "pooling_mode_own": False}))
    assert read_settings(tmp_path).pooling == ("mean",)  # also where none is set, as in sentence-transformers


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "expected a list of modules"),
        ("[]", "Received: 0 modules"),
        ('[{"type": "own.Transformer", "path": ""}]', "Received: own.Transformer"),
        ('[{"type": "sentence_transformers.models.WordEmbeddings", "path": ""}]', "Received: sentence_tr.*WordEmb"),
    ],
)
def test_modules_that_are_not_known_are_refused(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(CheckpointError, match=says):
        read_settings(tmp_path)
