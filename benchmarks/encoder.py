"""MiniLM over all paragraphs of Python's manual, against Hugging Face, sentence-transformers and ONNX Runtime.

    python benchmarks/encoder.py                        # all of it: some minutes for each round on 2 cores
    python benchmarks/encoder.py --texts 300 --rounds 3  # every ninth paragraph or so
    python benchmarks/encoder.py --json results.json
    python benchmarks/encoder.py --score ../shared/data/sst2 --only headwise   # a task's score in each precision

Each contestant gets the texts in the manual's order and returns the mean of the last hidden states of each, tokenising
included; the peers sort the texts by length and read batches of 32, padded. "the products" is torch.mm of the shapes of
the model's linear layers over its real tokens and nothing else: the limit. The contestants take turns, and every figure
is a ratio within a round. Vectors are compared with those of Hugging Face. Needs transformers; the peers that are not
installed are left out. The score is the accuracy on test.tsv of a logistic regression on the vectors of train.tsv.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

import headwise
from headwise.kernels.measure import take_turns
from headwise.kernels.speeds import processor
from headwise.models import Bert, unpadded
from headwise.models.checkpoint import default_model
from headwise.native.library import instruction_set
from headwise.native.linear import Dtype

BATCH, TOKENS = 32, 256
SENTENCE = "A kernel says why it refuses and what it costs."  # 12 tokens with [CLS] and [SEP]

Encode = Callable[[Sequence[str]], np.ndarray]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--texts", type=int, help="about so many, from all over; default: all")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--only", nargs="+", help="contestants, by the beginnings of their names")
    arguments.add_argument("--score", type=Path, help="a folder with train.tsv and test.tsv, instead of the times")
    arguments.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = arguments.parse_args()
    torch.set_num_threads(chosen.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    warnings.filterwarnings("ignore")

    if chosen.score:
        score(chosen)
        return
    texts = [text for topic in topics.values() for text in topic.split("\n\n") if text.strip()]
    texts = texts[:: max(1, len(texts) // chosen.texts)] if chosen.texts else texts
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        contestants = chosen_of(Path(folder), chosen)
        lengths = [len(ids) for ids in tokenized(texts)]
        runs: dict[str, Callable[[], object]] = {name: partial(run, texts) for name, run in contestants.items()}
        times = take_turns({**runs, "the products": products(sum(lengths))}, chosen.rounds)
        alone = take_turns({name: partial(run, [SENTENCE]) for name, run in contestants.items()}, 40)
        vectors = {name: run(texts) for name, run in contestants.items()}

    about = {
        "machine": f"{processor()}, {chosen.threads} threads, {instruction_set()}",
        "torch": torch.__version__,
        "headwise": headwise.__version__,
        "texts": len(texts),
        "tokens": sum(lengths),
        "rounds": len(times["the products"]),
    }
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print("  ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    rows = {name: figures(name, times, alone, vectors) for name in contestants}
    table = Table("", "seconds", "headwise float32 is", "spread", "of the limit", "cosine, least", "12 tokens, ms")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in rows.items():
        low, high = row["spread"]
        cells = [f"{row['seconds']:.2f}", f"{row['ratio']:.2f}×", f"{low:.2f}–{high:.2f}", f"{row['limit']:.2f}"]
        table.add_row(name, *cells, f"{row['cosine']:.6f}", f"{row['alone']:.2f}")
    console.print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1), encoding="utf-8")


def chosen_of(folder: Path, chosen: argparse.Namespace) -> dict[str, Encode]:
    """The contestants that were asked for."""
    return {
        name: made
        for name, made in all_of(folder, chosen.threads).items()
        if not chosen.only or any(name.startswith(each) for each in chosen.only)
    }


def score(chosen: argparse.Namespace) -> None:
    """The accuracy of a linear classifier on the vectors of each contestant."""
    from sklearn.linear_model import LogisticRegression

    parts = {}
    for part in ("train", "test"):
        lines = (chosen.score / f"{part}.tsv").read_text(encoding="utf-8").splitlines()
        parts[part] = tuple(zip(*(line.split("\t") for line in lines), strict=True))
    table = Table("", f"accuracy on {len(parts['test'][0]):,} texts")
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for name, run in chosen_of(Path(folder), chosen).items():
            learned = LogisticRegression(max_iter=1000).fit(run(parts["train"][0]), parts["train"][1])
            table.add_row(name, f"{learned.score(run(parts['test'][0]), parts['test'][1]):.4f}")
    Console().print(table)


def figures(
    name: str, times: dict[str, list[float]], alone: dict[str, list[float]], vectors: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Medians over the rounds of what a row shows."""
    ours = times.get("headwise float32", times[name])
    ratios = [theirs / mine for theirs, mine in zip(times[name], ours, strict=True)]
    of_limit = [limit / mine for limit, mine in zip(times["the products"], times[name], strict=True)]
    a, b = vectors[name], vectors.get("Hugging Face", vectors[name])
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return {
        "seconds": statistics.median(times[name]),
        "ratio": statistics.median(ratios),
        "spread": (min(ratios), max(ratios)),
        "limit": statistics.median(of_limit),
        "cosine": float(cosine.min()),
        "alone": 1000 * statistics.median(alone[name]),
    }


def products(tokens: int, rows: int = 2048) -> Callable[[], object]:
    """The products of the linear layers of MiniLM over so many tokens."""
    shapes = [(384, 1152), (384, 384), (384, 1536), (1536, 384)]
    pairs = [(torch.randn(rows, k), torch.randn(k, n)) for k, n in shapes]

    def run() -> None:
        for begin in range(0, tokens, rows):
            for _ in range(6):
                for x, w in pairs:
                    torch.mm(x[: tokens - begin], w)

    return run


def all_of(folder: Path, threads: int) -> dict[str, Encode]:
    """The contestants that are installed."""
    found: dict[str, Encode] = {}
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16", "int8")
    for dtype in dtypes:
        found[f"headwise {dtype}"] = headwise_of(dtype)
    found["Hugging Face"] = hugging_face()
    try:
        found["sentence-transformers"] = sentence_transformers()
    except ImportError:
        print("sentence-transformers is not installed", file=sys.stderr)
    try:
        found |= onnx_runtime(folder, threads)
    except ImportError:
        print("onnxruntime or onnxscript is not installed", file=sys.stderr)
    return found


def tokenizer() -> Tokenizer:
    made = Tokenizer.from_file(str(default_model() / "tokenizer.json"))
    made.no_padding()
    made.enable_truncation(TOKENS)
    return made


def tokenized(texts: Sequence[str]) -> list[list[int]]:
    return [each.ids for each in tokenizer().encode_batch_fast(list(texts))]


def headwise_of(dtype: Dtype) -> Encode:
    bert, words = Bert.from_pretrained(default_model()), tokenizer()

    def run(texts: Sequence[str]) -> np.ndarray:
        ids = [each.ids for each in words.encode_batch_fast(list(texts))]
        return torch.stack([x.mean(0) for x in unpadded.read(bert, ids, dtype=dtype)]).numpy()

    return run


def hugging_face() -> Encode:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(default_model()).eval()
    return in_batches(lambda ids, real: model(ids, attention_mask=real).last_hidden_state)


def in_batches(hidden: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Encode:
    """Texts sorted by length in padded batches of 32, and the mean over real tokens."""
    words = tokenizer()

    def run(texts: Sequence[str]) -> np.ndarray:
        ids = [each.ids for each in words.encode_batch_fast(list(texts))]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        found = np.empty((len(ids), 384), np.float32)
        for begin in range(0, len(order), BATCH):
            places = order[begin : begin + BATCH]
            longest = len(ids[places[-1]])
            padded = torch.tensor([ids[i] + [0] * (longest - len(ids[i])) for i in places])
            real = torch.tensor([[1] * len(ids[i]) + [0] * (longest - len(ids[i])) for i in places])
            x, weight = hidden(padded, real), real[..., None].float()
            found[places] = ((x * weight).sum(1) / weight.sum(1)).numpy()
        return found

    return run


def sentence_transformers() -> Encode:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(default_model()), device="cpu")
    model.max_seq_length = TOKENS
    return lambda texts: model.encode(list(texts), batch_size=BATCH, show_progress_bar=False, convert_to_numpy=True)


def onnx_runtime(folder: Path, threads: int) -> dict[str, Encode]:
    """Hugging Face's model exported by torch and fused by ONNX Runtime's own optimizer; and that in dynamic int8."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import AutoModel

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = AutoModel.from_pretrained(default_model(), attn_implementation="eager").eval()

        def forward(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
            return self.bert(ids, attention_mask=real).last_hidden_state

    exported, fused, int8 = (folder / f"{name}.onnx" for name in ("exported", "fused", "int8"))
    given = (torch.full((2, 9), 7), torch.ones(2, 9, dtype=torch.int64))
    sizes = {0: torch.export.Dim("B", min=1), 1: torch.export.Dim("S", min=2, max=512)}
    with torch.inference_mode(False), torch.no_grad():
        names: dict[str, Any] = {"input_names": ["ids", "real"], "output_names": ["hidden"]}
        program = torch.onnx.export(Hidden(), given, dynamic_shapes=(sizes, sizes), dynamo=True, verbose=False, **names)
    assert program is not None
    program.save(exported)
    optimize_model(str(exported), "bert", num_heads=12, hidden_size=384, opt_level=1).save_model_to_file(str(fused))
    quantize_dynamic(fused, int8, weight_type=QuantType.QInt8, per_channel=True)

    def of(path: Path) -> Encode:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        session = onnxruntime.InferenceSession(str(path), options)

        def hidden(ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(session.run(None, {"ids": ids.numpy(), "real": real.numpy()})[0])

        return in_batches(hidden)

    return {"ONNX Runtime": of(fused), "ONNX Runtime, int8": of(int8)}


if __name__ == "__main__":
    main()
