"""`headwise watch` as a person uses it: what it reads, writes, says and refuses."""

from __future__ import annotations

import dataclasses
import logging
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from rich.progress import Progress, TaskID
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import headwise
from headwise import text
from headwise.capture import pretrained
from headwise.capture.watcher import Watcher
from headwise.errors import CheckpointError
from headwise.models.checkpoint import default_model, located
from headwise.records import CallSite, Coverage, Seen
from headwise.text import as_tokens

from .conftest import Run, Terminal, contents, refused

OLD = '{"__metadata__":{"format":"pt","headwise":"1"}}'  # the beginning of a file of records

Checkpoint = Callable[[str], Path]

SENTENCE = "the cat saw 猫"
VOCABULARY = 268


def byte_level() -> transformers.PreTrainedTokenizerFast:
    """Of GPT-2's kind."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(["the cat saw the cat."] * 5, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", pad_token="<|end|>")


def make_gpt2() -> transformers.PreTrainedModel:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    config = transformers.GPT2Config(vocab_size=VOCABULARY, **sizes, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def make_llama() -> transformers.PreTrainedModel:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=300, **sizes, **heads, bos_token_id=None, eos_token_id=None)
    return transformers.LlamaForCausalLM(config)


def make_t5() -> transformers.PreTrainedModel:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    config = transformers.T5Config(vocab_size=VOCABULARY, **sizes, decoder_start_token_id=0, pad_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


ENCODER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def make_roberta() -> transformers.PreTrainedModel:
    """It reads 16 tokens: the first two of its 18 positions are taken."""
    config = transformers.RobertaConfig(vocab_size=VOCABULARY, max_position_embeddings=18, pad_token_id=1, **ENCODER)
    return transformers.RobertaForMaskedLM(config)


def make_fnet() -> transformers.PreTrainedModel:
    """It has no attention."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
    return transformers.FNetModel(transformers.FNetConfig(vocab_size=VOCABULARY, **sizes))


def make_vit() -> transformers.PreTrainedModel:
    return transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **ENCODER))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """`checkpoint("gpt2")`: a folder with that model, of random weights, and a tokenizer."""
    makers = {name.removeprefix("make_"): maker for name, maker in globals().items() if name.startswith("make_")}

    def save(name: str) -> Path:
        folder = tmp_path_factory.getbasetemp() / f"watched-{name}"
        if not folder.exists():
            torch.manual_seed(0)
            with pretrained._quiet():
                makers[name]().save_pretrained(folder)
                byte_level().save_pretrained(folder)
        return folder

    return save


def eager(folder: Path, ids: Any, kind: type = transformers.AutoModel) -> list[torch.Tensor]:
    """What the model's own slow attention says, a tensor a layer."""
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()  # type: ignore[attr-defined]
    with torch.no_grad():
        return list(model(torch.tensor([ids]), output_attentions=True).attentions)


def assert_equal_weights(seen: Seen, expected: list[torch.Tensor]) -> None:
    assert len(seen) == len(expected)
    for record, weights in zip(seen, expected, strict=True):
        torch.testing.assert_close(record.weights().to(weights), weights, atol=1e-5, rtol=0)


# --- Statistics alone -----------------------------------------------------------------------------------------------


def test_statistics_of_a_long_text_in_pieces(run: Run, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The table is that of the text read at once, and no file is written."""
    folder = checkpoint("llama")
    (tmp_path / "long.txt").write_text("the cat saw the cat. " * 8, encoding="utf-8")
    result = run("watch", "--model", folder, "--file", tmp_path / "long.txt", "--statistics-only", "--chunk", 7)
    assert result.code == 0, result.err
    assert [path.name for path in tmp_path.iterdir()] == ["long.txt"]
    loaded = pretrained.load_pretrained(str(folder))
    tokens = loaded.encode("the cat saw the cat. " * 8, None)
    with headwise.watch(loaded.model, tokens=[tokens]) as seen:
        loaded.read([tokens])
    expected = str(seen.summary()).splitlines()
    assert [line.split() for line in result.out.splitlines()[: len(expected)]] == [line.split() for line in expected]
    assert f"Read 1 text, {len(tokens.ids)} tokens." in result.out
    assert "note: queries and keys were not kept" in result.out


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_statistics_of_a_data_set_line_by_line(
    run: Run, checkpoint: Checkpoint, tiny_bert: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "lines.txt").write_text("the cat\n\nthe cat saw the cat\n", encoding="utf-8")
    folder = tiny_bert if name == "bert" else checkpoint(name)
    result = run("watch", "--model", folder, "--file", tmp_path / "lines.txt", "--statistics-only", "--lines")
    assert result.code == 0, result.err
    assert "Read 2 texts" in result.out
    both = run("watch", "the cat", "the cat saw the cat", "--model", folder, "--statistics-only")
    assert both.out == result.out


def test_a_decoder_reads_on_from_its_cache(checkpoint: Checkpoint, tiny_bert: Path) -> None:
    for folder, pieces in ((checkpoint("gpt2"), 2), (tiny_bert, 0)):
        loaded, told = pretrained.load_pretrained(str(folder)), list[int]()
        tokens = loaded.encode("the cat saw the cat", 5)
        with headwise.watch(loaded.model) as seen:
            loaded.read_on(tokens, 3, lambda told=told: told.append(1))  # type: ignore[misc]
        assert len(told) == pieces
        assert {record.shape[2:] for record in seen} == {(len(tokens.ids), len(tokens.ids))}


# --- What it writes ---------------------------------------------------------------------------------------------------


def test_a_bert_with_its_labels(run: Run, tiny_bert: Path, tmp_path: Path) -> None:
    result = run("watch", "the cat sat zzz", "--model", tiny_bert)
    unknown = "headwise: TEXT: 1 of 6 tokens is unknown to this model, which reads [UNK] instead\n"
    assert (result.code, result.err) == (0, unknown)
    assert re.fullmatch(
        r"Wrote run\.hw \(\d+ kB\): 3 layers of 2 heads, 6 tokens\. Next: headwise stats run\.hw\n", result.out
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run.hw"]
    seen = headwise.load(tmp_path / "run.hw")
    assert seen.layers == [f"encoder.layer.{i}.attention.self" for i in range(3)]
    assert seen.tokens[0].labels == ("[CLS]", "the", "cat", "sat", "zzz", "[SEP]")
    assert_equal_weights(seen, eager(tiny_bert, seen.tokens[0].ids))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_decoder(run: Run, checkpoint: Checkpoint, name: str, tmp_path: Path) -> None:
    result = run("watch", SENTENCE, "--model", checkpoint(name), "--out", "a b.hw")
    assert result.code == 0
    assert result.out.endswith("Next: headwise stats 'a b.hw'\n")
    seen = headwise.load(tmp_path / "a b.hw")
    assert seen.tokens[0].labels == ("the", "␣cat", "␣saw", "␣", "猫(1/3)", "猫(2/3)", "猫(3/3)")
    assert seen[0].site.causal
    assert seen[0].k.shape[1] == 2
    assert_equal_weights(seen, eager(checkpoint(name), seen.tokens[0].ids))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_generation_is_one_record_a_layer(run: Run, checkpoint: Checkpoint, name: str, tmp_path: Path) -> None:
    folder = checkpoint(name)
    assert run("watch", SENTENCE, "--model", folder, "--generate", "5").code == 0
    seen = headwise.load(tmp_path / "run.hw")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = byte_level()(SENTENCE)["input_ids"]
    (expected,) = model.generate(torch.tensor([ids]), max_new_tokens=5, do_sample=False, pad_token_id=0).tolist()
    assert list(seen.tokens[0].ids) == expected[:-1]  # nobody has read the last one
    assert seen.tokens[0].labels[:7] == ("the", "␣cat", "␣saw", "␣", "猫(1/3)", "猫(2/3)", "猫(3/3)")
    assert_equal_weights(seen, eager(folder, expected[:-1], transformers.AutoModelForCausalLM))


def test_an_encoder_decoder_has_tokens_on_both_sides(run: Run, checkpoint: Checkpoint, tmp_path: Path) -> None:
    result = run("watch", SENTENCE, "--model", checkpoint("t5"), "--generate", "4", "--dtype", "float32")
    assert "6 layers of 2 heads, 4 or 7 tokens" in result.out
    seen = headwise.load(tmp_path / "run.hw")
    assert [record.site.kind for record in seen if record.site] == ["self", "self", *["self", "cross"] * 2]
    cross = seen["decoder.block.1.layer.1"]
    assert cross.shape == (1, 2, 4, 7)
    assert seen.col_labels(cross) == ("the", "␣cat", "␣saw", "␣", "猫(1/3)", "猫(2/3)", "猫(3/3)")
    assert (seen.row_labels(cross) or ())[0] == "<|end|>"


def test_several_texts_are_one_batch(run: Run, tiny_bert: Path, tmp_path: Path, checkpoint: Checkpoint) -> None:
    (tmp_path / "notes.txt").write_text("the mat [PAD] .", encoding="utf-8")  # a [PAD] that somebody wrote
    result = run("watch", "the cat ran on the mat", "--file", "notes.txt", "--model", tiny_bert)
    assert result.code == 0
    assert "3 layers of 2 heads, 2 × 8 tokens" in result.out
    assert "note: shorter texts are padded with [PAD]" in result.out
    seen = headwise.load(tmp_path / "run.hw")
    assert seen.tokens[1].labels == ("[CLS]", "the", "mat", "[PAD]", ".", "[SEP]", "[PAD]", "[PAD]")
    first, second = (eager(tiny_bert, tokens.ids[:count]) for tokens, count in zip(seen.tokens, (8, 6), strict=True))
    for record, one, other in zip(seen, first, second, strict=True):
        weights = record.weights()
        torch.testing.assert_close(weights[:1], one, atol=1e-5, rtol=0)
        torch.testing.assert_close(weights[1:, :, :6, :6], other, atol=1e-5, rtol=0)
        assert not weights[1, :, :, 6:].any()

    # Several texts are continued each as if it were alone.
    arguments = ("--model", checkpoint("llama"), "--generate", "3", "--dtype", "float32")
    assert run("watch", "the", *arguments).code == 0
    alone = headwise.load(tmp_path / "run.hw")
    assert run("watch", SENTENCE, "the", *arguments, "--out", "both.hw").code == 0
    both = headwise.load(tmp_path / "both.hw")
    assert both.tokens[1].ids[-3:] == alone.tokens[0].ids
    assert both.tokens[1].labels[:7] == ("[PAD]",) * 6 + ("the",)
    torch.testing.assert_close(both[1].weights()[1:, :, -3:, -3:], alone[1].weights(), atol=1e-5, rtol=0)


def test_what_is_kept_is_chosen(run: Run, tiny_bert: Path, tmp_path: Path) -> None:
    for arguments, kept in {
        ("--layers", "0,2"): [0, 2],
        ("--only", "layer.1"): [1],
        ("--only", "*.2.*", "--only", "encoder.layer.0"): [0, 2],
        ("--layers", "2", "--only", "*.1.attention.self"): [1, 2],
    }.items():
        assert run("watch", "the cat", "--model", tiny_bert, *arguments).code == 0
        seen = headwise.load(tmp_path / "run.hw")
        assert seen.layers == [f"encoder.layer.{i}.attention.self" for i in kept]

    assert run("watch", "the cat", "--model", tiny_bert, "--values", "--dtype", "bfloat16").code == 0
    record = headwise.load(tmp_path / "run.hw")[0]
    assert record.v.shape == (1, 2, 4, 8)
    assert record.q.dtype == torch.bfloat16
    assert run("watch", "the cat", "--model", tiny_bert).code == 0
    record = headwise.load(tmp_path / "run.hw")[0]
    assert record.extras.v is None
    assert record.q.dtype == torch.float32


def test_the_pretrained_default(run: Run, tmp_path: Path) -> None:
    result = run("watch", stdin=b"The animal didn't cross the street because it was too tired")
    assert (result.code, result.err) == (0, "")
    assert "6 layers of 12 heads, 15 tokens" in result.out
    seen = headwise.load(tmp_path / "run.hw")
    assert seen.tokens[0].labels[4:6] == ("'", "t")
    assert_equal_weights(seen, eager(default_model(), seen.tokens[0].ids))
    assert run("stats", "run.hw", "--layers", "5").code == 0


# --- What it says -----------------------------------------------------------------------------------------------------


def test_says_what_was_cut(run: Run, checkpoint: Checkpoint, tiny_bert: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("the cat\n" * 15 + "sat on the mat", encoding="utf-8")
    result = run("watch", "--file", "long.txt", "--model", tiny_bert)
    assert "the last 4 tokens were cut, from 'sat on the mat' on (line 16)" in result.err
    assert "32 tokens" in result.out
    result = run("watch", "the cat ran", "--model", tiny_bert, "--max-length", "4")
    assert "the last 1 tokens were cut, from 'ran' on (line 1)" in result.err
    assert "4 tokens" in result.out
    result = run("watch", "cat" * 40, "--model", checkpoint("gpt2"), "--generate", "10")
    assert "longer than the 22 tokens that the model reads" in result.err  # 32 positions, 10 of them for what follows
    assert "31 tokens" in result.out
    result = run("watch", "cat" * 40, "--model", checkpoint("roberta"))
    assert "16 tokens" in result.out


def test_says_which_weights_are_random(run: Run, checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("roberta"), folder)
    result = run("watch", SENTENCE, "--model", folder)
    assert result.code == 0
    assert "lacks" not in result.err  # but for the pooler, which reads what attention has computed
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("attention.self.key.bias"))
    del weights[name]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    result = run("watch", SENTENCE, "--model", folder)
    assert result.code == 0
    assert result.err.startswith("headwise: the checkpoint lacks 1 weight, initialised randomly: encoder.layer.0")


def test_prints_what_was_not_seen(run: Run, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Watcher.coverage

    def coverage(self: Watcher) -> Coverage:
        refused = CallSite("encoder.odd", "refused", 1, "a bias nobody knows")
        return Coverage((*original(self), refused), ("a [bold] note",))

    monkeypatch.setattr(Watcher, "coverage", coverage)
    result = run("watch", "the cat", "--model", tiny_bert)
    assert result.code == 0
    assert "encoder.odd" in result.out
    assert "a bias nobody knows" in result.out
    assert "note: a [bold] note" in result.out
    assert "encoder.layer.0" not in result.out
    assert result.out.splitlines()[-1].startswith("Wrote run.hw")


@pytest.mark.parametrize("arguments", [(), ("--generate", "3")])
def test_a_terminal_sees_how_far_it_is(
    run: Run, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    original, done = Progress.update, []

    def update(self: Progress, task: TaskID, *, completed: int, **given: Any) -> None:
        done.append(completed)
        original(self, task, completed=completed, **given)

    monkeypatch.setattr(Progress, "update", update)
    assert run("watch", SENTENCE, "--model", checkpoint("gpt2"), *arguments).code == 0
    assert "loading" in shown.getvalue()
    assert "writing run.hw" in shown.getvalue()
    assert [*filter(None, done)] == ([1, 2, 3] if arguments else [1, 2])  # tokens, or layers


def test_transformers_is_as_talkative_afterwards_as_before(
    run: Run, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("transformers")
    monkeypatch.setattr(logger, "level", logging.WARNING)
    assert run("watch", "the cat", "--model", tiny_bert).code == 0
    assert logger.level == logging.WARNING
    assert logger.isEnabledFor(logging.WARNING)
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_an_interrupt_leaves_the_old_file(
    run: Run, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrained.Pretrained, "read", interrupt)
    (tmp_path / "run.hw").write_text(OLD, encoding="utf-8")
    assert run("watch", "the cat", "--model", tiny_bert).code == 130
    assert [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()] == [OLD]


# --- Without transformers, and tokenizers that only transformers reads ------------------------------------------------


def test_without_transformers_berts_are_read_by_headwises_own(
    run: Run, tiny_bert: Path, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = eager(tiny_bert, [2, 5, 6, 3])
    gpt2 = checkpoint("gpt2")
    monkeypatch.setitem(sys.modules, "transformers", None)  # type: ignore[arg-type]
    assert run("watch", "the cat", "--model", tiny_bert).code == 0
    seen = headwise.load(tmp_path / "run.hw")
    assert seen.layers == [f"layers.{i}.attention" for i in range(3)]
    assert_equal_weights(seen, expected)
    for arguments in (("--model", gpt2), ("--model", tiny_bert, "--generate", "1")):
        result = run("watch", "the cat", *arguments)
        assert result.code == 2
        (line,) = result.err.splitlines()
        assert "needs the extra transformers" in line


def test_a_tokenizer_that_only_transformers_reads(checkpoint: Checkpoint, tmp_path: Path) -> None:
    make_gpt2().save_pretrained(tmp_path)
    byte_level()._tokenizer.model.save(str(tmp_path))  # vocab.json, merges.txt
    mine = pretrained.load_pretrained(str(tmp_path))
    theirs = pretrained.load_pretrained(str(checkpoint("gpt2")))
    for limit in (None, 5):
        assert mine.encode(SENTENCE, limit).ids == theirs.encode(SENTENCE, limit).ids
        assert mine.encode(SENTENCE, limit).cut == theirs.encode(SENTENCE, limit).cut == (2 if limit else 0)
    assert mine.encode(SENTENCE, None).labels == theirs.encode(SENTENCE, None).labels


def test_a_continuation_goes_on_in_the_prompts_text_and_words() -> None:
    prompt = as_tokens(byte_level()(["the c"]), ["the c"])[0]
    (whole,) = as_tokens([["the", "Ġ", "c", "a", "t", "Ġsaw", "<|end|>"]])
    found = pretrained._continued(prompt, whole)
    assert found.text == "the cat saw"
    assert found.labels == ("the", "␣", "c", "a", "t", "␣saw", "<|end|>")
    assert [found.text[start:stop] for start, stop in found.offsets] == ["the", " ", "c", "a", "t", " saw", ""]
    assert [group for group in found.words().labels if group.strip()] == ["the", "cat", "saw", "<|end|>"]


def test_a_continuation_keeps_what_only_the_prompt_knows(tiny_bert: Path) -> None:
    prompt = text.Tokenizer.from_pretrained(tiny_bert).encode("The zebra ran", 4)  # of which it reads The, [UNK]
    (whole,) = as_tokens([["[CLS]", "the", "[UNK]", "[SEP]", "cat", "##s"]])
    found = pretrained._continued(prompt, dataclasses.replace(whole, word_ids=(None, 4, 5, None, 6, 6)))
    assert found.labels == ("[CLS]", "The", "zebra", "[SEP]", "cat", "##s")
    assert [found.text[start:stop] for start, stop in found.offsets[-2:]] == ["cat", "s"]
    assert found.word_ids == (None, 0, 1, None, 2, 2)
    assert (found.cut, found.unknown) == (1, (False, False, True, False, False, False))


def test_a_model_that_only_reads_keeps_no_cache(checkpoint: Checkpoint) -> None:
    assert pretrained.load_pretrained(str(checkpoint("gpt2"))).model.config.use_cache is False
    assert pretrained.load_pretrained(str(checkpoint("gpt2")), generates=True).model.config.use_cache is True


def test_a_model_is_found_as_by_view(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(name: str, allow_patterns: list[str]) -> str:
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    said = [run(command, "the", "--model", "somebody/model") for command in ("watch", "view")]
    assert said[0] == said[1]
    assert "the Hugging Face hub cannot be reached" in said[0].err
    assert located("minilm") == str(default_model())


def test_the_tokenizer_of_a_model_on_the_hub_is_read_from_its_cache(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = checkpoint("gpt2") / "tokenizer.json"
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda name, file: str(cached))
    assert pretrained._encoder("somebody/gpt2", "gpt2")("the cat", None).labels == ("the", "␣cat")


# --- Bad input: one line, exit code 2, nothing left behind ------------------------------------------------------------

BAD: dict[str, tuple[Any, ...]] = {  # arguments, {name} a checkpoint -> what the line must say
    "nothing to read": ("", "standard input is empty"),
    "records over the text": ("--file words.txt --out ./words.txt", "this is an input file"),
    "layers that are no numbers": ("the --layers x", "--layers", "'x'"),
    "a layer that there is not": ("the --layers 0,2", "--layers: layers are numbered 0 … 1. Received: 2"),
    "a path that there is not": ("the --only h.7", "--only", "'h.7'", "h.0.attn, h.1.attn"),
    "no tokens": ("the --max-length 0", "--max-length"),
    "more tokens than the model reads": ("the --max-length 33", "at most 32", "Received: --max-length=33"),
    "more to write than it can": ("the --generate 32", "--generate", "less than 32", "Received: --generate=32"),
    "a dtype that is none": ("the --dtype int8", "--dtype", "bfloat16"),
    "a checkpoint that is missing": ("the --model ./nowhere", "no folder nowhere", "hub id"),
    "a checkpoint that is a file": ("the --model words.txt", "words.txt is a file"),
    "a folder with no checkpoint": ("the --model .", "cannot load ."),
    "a checkpoint that is cut short": ("the --model short", "cannot load short"),
    "a checkpoint without a tokenizer": ("the --model wordless", "no tokenizer in wordless"),
    "an unknown architecture": ("the --model unknown", "cannot load unknown", "attentionist"),
    "a BERT that should write": ("the --model {bert} --generate 2", "cannot generate: a bert"),
    "an encoder-decoder that should not": ("the --model {t5}", "--generate N"),
    "statistics in a file": ("the --statistics-only --out a.hw", "writes no file", "leave out --out"),
    "statistics with values": ("the --statistics-only --values", "leave out --values"),
    "lines of no file": ("the --statistics-only --lines", "--lines: expected --file PATH"),
    "lines in a record": ("--file words.txt --lines", "--lines: only with --statistics-only"),
    "pieces in a record": ("the --chunk 4", "--chunk: only with --statistics-only"),
    "no lines": ("--file empty.txt --statistics-only --lines", "expected at least one line"),
    "lines of a missing file": ("--file nowhere.txt --statistics-only --lines", "nowhere.txt", "readable UTF-8"),
    "a model of images": ("the --model {vit}", "does not run on a text alone"),
    "a model with no attention": ("the --model {fnet}", "no attention was recorded, so no file was written"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_and_leaves_nothing_behind(
    run: Run, checkpoint: Checkpoint, tiny_bert: Path, tmp_path: Path, case: str
) -> None:
    gpt2 = checkpoint("gpt2")
    for name in ("short", "wordless", "unknown"):
        (tmp_path / name).mkdir()
        for file in gpt2.iterdir():
            if name != "wordless" or not file.name.startswith("tokenizer"):
                (tmp_path / name / file.name).write_bytes(file.read_bytes())
    (tmp_path / "short" / "model.safetensors").write_bytes((gpt2 / "model.safetensors").read_bytes()[:-100])
    (tmp_path / "unknown" / "config.json").write_text('{"model_type": "attentionist"}', encoding="utf-8")
    (tmp_path / "words.txt").write_text("the cat", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    (tmp_path / "run.hw").write_text(OLD, encoding="utf-8")

    given, *expected = BAD[case]
    folders = {"{bert}": tiny_bert} | {f"{{{name}}}": checkpoint(name) for name in ("t5", "vit", "fnet")}
    before = contents(tmp_path)
    result = run("watch", "--model", gpt2, *(folders.get(argument, argument) for argument in shlex.split(given)))
    lines = [line for line in result.err.splitlines() if "initialised randomly" not in line]
    refused(dataclasses.replace(result, err="\n".join(lines)), *expected)
    assert contents(tmp_path) == before


def test_a_checkpoint_that_lacks_the_head_cannot_generate(tmp_path: Path) -> None:
    model = make_llama()
    model.model.save_pretrained(tmp_path)
    byte_level().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"cannot generate: the checkpoint has no lm_head\.weight"):
        pretrained.load_pretrained(str(tmp_path), generates=True)
