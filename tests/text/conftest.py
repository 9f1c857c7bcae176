"""Small tokenizers of the kinds there are, each wrapped as transformers has it, so that encodings are the true ones."""

from __future__ import annotations

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headwise.models.checkpoint import default_model

LINES = ["the cat saw the cat.", "the 猫 and the 猫", "don't do 1990"] * 5


def byte_level(*, trim_offsets: bool = False, add_prefix_space: bool = False) -> PreTrainedTokenizerFast:
    """Of GPT-2's kind: it knows a few words and one Chinese character, and of everything else only the bytes."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.post_processor = processors.ByteLevel(trim_offsets=trim_offsets, add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=268,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>", "<mask>"],
        show_progress=False,
    )
    backend.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|end|>", mask_token="<mask>")


@pytest.fixture(scope="session")
def gpt2() -> PreTrainedTokenizerFast:
    return byte_level()


@pytest.fixture(scope="session")
def roberta() -> PreTrainedTokenizerFast:
    """The same, which puts a space before the text and leaves spaces out of its offsets."""
    return byte_level(trim_offsets=True, add_prefix_space=True)


@pytest.fixture(scope="session")
def t5() -> PreTrainedTokenizerFast:
    """Of sentencepiece's kind: Unigram, with ▁ for a space, one of which it puts before every text."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=40,
        unk_token="<unk>",
        special_tokens=["<unk>", "<s>", "</s>", "<pad>", "<mask>"],
        show_progress=False,
    )
    backend.train_from_iterator(LINES, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", mask_token="<mask>")


@pytest.fixture(scope="session")
def llama2() -> PreTrainedTokenizerFast:
    """No pre-tokenizer, ▁ by normalisation, and bytes with numbers for characters without a token."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "t", "h", "e", "th", "the", "▁the", "s"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    model = models.BPE(
        {name: i for i, name in enumerate(names)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


@pytest.fixture(scope="session")
def clip() -> PreTrainedTokenizerFast:
    """Bytes as letters, spaces left out, </w> at the end of each word."""
    backend = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    words = pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"), "removed", invert=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    trainer = trainers.BpeTrainer(
        vocab_size=530,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        end_of_word_suffix="</w>",
        special_tokens=["<|startoftext|>", "<|endoftext|>"],
        show_progress=False,
    )
    backend.train_from_iterator([*LINES, "🐈 é"], trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<|startoftext|> $A <|endoftext|>", special_tokens=[("<|startoftext|>", 0), ("<|endoftext|>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.fixture(scope="session")
def bert() -> PreTrainedTokenizerFast:
    """MiniLM's own: WordPiece, uncased."""
    return AutoTokenizer.from_pretrained(default_model())
