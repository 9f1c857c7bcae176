"""`train_wordpieces`: the subwords of a BERT, learned from the texts of a task.

WordPiece (Schuster & Nakajima 2012; Devlin et al. 2018, section 3): text is split at spaces and punctuation, Chinese
at every character, and words into pieces; all pieces except the first begin with ##.
"""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from headwise.errors import ArgumentError
from headwise.text import Tokenizer

PAD, UNKNOWN, BEGIN, END, MASK = SIGNS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
INSIDE = "##"  # before a piece that continues a word


def train_wordpieces(texts: Iterable[str], size: int, *, lowercase: bool = False) -> Tokenizer:
    """Learn the wordpieces of some texts: the same texts give the same wordpieces.

    Args:
        texts: the texts from which they are learned.
        size: the largest number of tokens, including signs. Fewer if no more pieces occur twice in the texts; more if
            the texts have more characters, since each has a token.
        lowercase: whether case and accents are removed, as in an uncased BERT.

    Raises:
        ArgumentError: there is no room for the signs, or there are no texts.
    """
    if size <= len(SIGNS):
        raise ArgumentError(f"vocab_size: expected more than {len(SIGNS)} tokens, those of the signs. Received: {size}")
    texts = list(texts)
    learner = _backend(models.WordPiece(unk_token=UNKNOWN), lowercase)
    insides = [f"{INSIDE}{character}" for character in sorted(_inside_words(learner, texts))]
    # The trainer gives the pieces inside words their ids in the order of a hash table, and among equally
    # frequent pairs joins those with the lowest ids. Given beforehand, the pieces have a fixed order.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, special_tokens=[*SIGNS, *insides], show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    vocabulary = learner.get_vocab()
    if len(vocabulary) == len(SIGNS):
        raise ArgumentError("the texts have no words to learn a vocabulary from")

    backend = _backend(models.WordPiece(vocabulary, unk_token=UNKNOWN), lowercase)
    backend.decoder = decoders.WordPiece()
    signs = [(name, backend.token_to_id(name)) for name in (BEGIN, END)]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}", pair=f"{BEGIN} $A {END} $B:1 {END}:1", special_tokens=signs
    )
    backend.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in SIGNS])
    return Tokenizer(backend)


def _backend(model: models.WordPiece, lowercase: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend


def _inside_words(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> set[str]:
    """Return every character that occurs in a word, except at its beginning."""
    words: set[str] = set()
    for text in texts:
        normal = backend.normalizer.normalize_str(text)
        words.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal))
    return {character for word in words for character in word[1:]}
