"""The contestants of benchmarks/encoder.py: headwise, and what people would take instead on a CPU.

Each gives its candidates: how it may be run on the threads that there are, by the name of the setting. The benchmark
takes the quickest. A runtime may use all threads for one batch, or one thread for each of several batches at once.

The runtimes get Hugging Face's model: ONNX Runtime its export by torch, fused by the runtime's own optimizer, and this
in dynamic int8 with a scale a channel; OpenVINO the export, and this in int8 by nncf.quantize, calibrated on texts that
are not read later; CTranslate2 the checkpoint, by its own converter.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from headwise.models import Bert, unpadded
from headwise.models.checkpoint import default_model
from headwise.native.linear import Dtype

TOKENS = 256  # a longer text is cut
BATCHES = (8, 32)

Encode = Callable[[Sequence[str]], np.ndarray]  # texts to the mean of the last hidden states of each
Candidates = dict[str, Encode]
Hidden = Callable[[list[list[int]]], np.ndarray]  # ids of each text to hidden states [texts, longest, width]


class Contestants:
    """`all_of(threads)` yields (name, a function that makes its candidates); what is not installed raises ImportError.

    Args:
        folder: for exported models.
        calibration: texts for nncf.quantize.
    """

    def __init__(self, folder: Path, threads: int, calibration: Sequence[str]) -> None:
        self.folder, self.threads, self.calibration = folder, threads, calibration

    def all_of(self) -> Iterator[tuple[str, Callable[[], Candidates]]]:
        dtypes: tuple[Dtype, ...] = ("float32", "bfloat16", "int8")
        for dtype in dtypes:
            yield f"headwise {dtype}", functools.partial(headwise_of, dtype)
        yield "Hugging Face", hugging_face
        yield "sentence-transformers", sentence_transformers
        yield "ONNX Runtime float32", lambda: self.onnx_runtime(self.fused)
        yield "ONNX Runtime int8", lambda: self.onnx_runtime(self.onnx_int8)
        yield "OpenVINO float32", lambda: self.openvino(self.exported, "f32")
        yield "OpenVINO bfloat16", lambda: self.openvino(self.exported, "bf16")
        yield "OpenVINO int8", lambda: self.openvino(self.openvino_int8)
        yield "CTranslate2 float32", lambda: self.ctranslate2("float32")
        yield "CTranslate2 int8", lambda: self.ctranslate2("int8")

    @functools.cached_property
    def exported(self) -> Path:
        """Hugging Face's model as ONNX, by torch."""
        import onnxscript  # noqa: F401 (torch needs it)
        from transformers import AutoModel

        class Exported(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bert = AutoModel.from_pretrained(default_model(), attn_implementation="eager").eval()

            def forward(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
                return self.bert(ids, attention_mask=real).last_hidden_state

        given = (torch.full((2, 9), 7), torch.ones(2, 9, dtype=torch.int64))
        sizes = {0: torch.export.Dim("B", min=1), 1: torch.export.Dim("S", min=2, max=512)}
        names: dict[str, Any] = {"input_names": ["ids", "real"], "output_names": ["hidden"]}
        with torch.inference_mode(False), torch.no_grad():
            program = torch.onnx.export(
                Exported(), given, dynamic_shapes=(sizes, sizes), dynamo=True, verbose=False, **names
            )
        assert program is not None
        program.save(self.folder / "exported.onnx")
        return self.folder / "exported.onnx"

    @functools.cached_property
    def fused(self) -> Path:
        from onnxruntime.transformers.optimizer import optimize_model

        model = optimize_model(str(self.exported), "bert", num_heads=12, hidden_size=384, opt_level=1)
        model.save_model_to_file(str(self.folder / "fused.onnx"))
        return self.folder / "fused.onnx"

    @functools.cached_property
    def onnx_int8(self) -> Path:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(self.fused, self.folder / "int8.onnx", weight_type=QuantType.QInt8, per_channel=True)
        return self.folder / "int8.onnx"

    @functools.cached_property
    def openvino_int8(self) -> Path:
        os.environ["NNCF_CI"] = "1"  # it reports nothing to its makers then
        import nncf
        import openvino

        ids = tokenized(self.calibration)
        data = nncf.Dataset(ids, lambda each: dict(zip(("ids", "real"), padded([each]), strict=True)))
        model = openvino.Core().read_model(self.exported)
        made = nncf.quantize(model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(ids))
        openvino.save_model(made, self.folder / "int8.xml", compress_to_fp16=False)
        return self.folder / "int8.xml"

    def onnx_runtime(self, path: Path) -> Candidates:
        import onnxruntime

        def of(streams: int, threads: int) -> Hidden:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.log_severity_level = threads, 3
            session = onnxruntime.InferenceSession(str(path), options)
            return lambda ids: session.run(None, dict(zip(("ids", "real"), padded(ids), strict=True)))[0]

        return self.candidates(of)

    def openvino(self, path: Path, precision: str = "") -> Candidates:
        """`precision` is that of what is not in int8; without one OpenVINO chooses, bfloat16 where there is AMX."""
        import openvino

        core = openvino.Core()
        if precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise NotImplementedError("this processor has no bfloat16")

        def of(streams: int, threads: int) -> Hidden:
            options: dict[str, Any] = {"INFERENCE_NUM_THREADS": streams * threads, "NUM_STREAMS": streams}
            options |= {"INFERENCE_PRECISION_HINT": precision} if precision else {}
            compiled = core.compile_model(core.read_model(path), "CPU", options)
            kept = threading.local()  # each stream has its request

            def hidden(ids: list[list[int]]) -> np.ndarray:
                if not hasattr(kept, "request"):
                    kept.request = compiled.create_infer_request()
                return kept.request.infer(dict(zip(("ids", "real"), padded(ids), strict=True)))[compiled.outputs[0]]

            return hidden

        return self.candidates(of)

    def ctranslate2(self, kind: str) -> Candidates:
        import ctranslate2
        from ctranslate2.converters import TransformersConverter

        path = self.folder / f"ctranslate2_{kind}"
        TransformersConverter(str(default_model())).convert(str(path), quantization=kind)

        def of(streams: int, threads: int) -> Hidden:
            encoder = ctranslate2.Encoder(
                str(path), device="cpu", inter_threads=streams, intra_threads=threads, compute_type=kind
            )
            return lambda ids: np.array(encoder.forward_batch(ids).last_hidden_state)

        return self.candidates(of)

    def candidates(self, of: Callable[[int, int], Hidden]) -> Candidates:
        """A runtime on all threads, and on as many streams of one; `of(streams, threads)` makes what a stream runs."""
        found = {}
        for streams, threads in sorted({(1, self.threads), (self.threads, 1)}):
            hidden = of(streams, threads)
            for batch in BATCHES:
                found[f"{streams} × {threads} threads, batches of {batch}"] = in_batches(hidden, batch, streams)
        return found


@functools.cache
def tokenizer() -> Tokenizer:
    made = Tokenizer.from_file(str(default_model() / "tokenizer.json"))
    made.no_padding()
    made.enable_truncation(TOKENS)
    return made


def tokenized(texts: Sequence[str]) -> list[list[int]]:
    return [each.ids for each in tokenizer().encode_batch_fast(list(texts))]


def padded(ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The ids [texts, longest], and 1 where they are real."""
    longest = max(map(len, ids))
    filled = np.array([[*each, *[0] * (longest - len(each))] for each in ids])
    return filled, np.array([[1] * len(each) + [0] * (longest - len(each)) for each in ids])


def in_batches(hidden: Hidden, batch: int, streams: int = 1) -> Encode:
    """Texts sorted by length in padded batches, several of them at once, and the mean over real tokens.

    The mean is by NumPy, on the thread at hand: torch would wake threads that then stand in the runtime's way.
    """
    pool = ThreadPoolExecutor(streams) if streams > 1 else None

    def means(ids: list[list[int]]) -> list[np.ndarray]:
        return [x[: len(each)].mean(0) for x, each in zip(hidden(ids), ids, strict=True)]

    def run(texts: Sequence[str]) -> np.ndarray:
        ids = tokenized(texts)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        batches = [[ids[i] for i in order[at : at + batch]] for at in range(0, len(order), batch)]
        parts = map(means, batches) if pool is None or len(batches) == 1 else pool.map(means, batches)
        found = np.empty((len(ids), 384), np.float32)
        found[order] = [x for part in parts for x in part]
        return found

    return run


def headwise_of(dtype: Dtype) -> Candidates:
    bert = Bert.from_pretrained(default_model())

    def run(texts: Sequence[str]) -> np.ndarray:
        return torch.stack([x.mean(0) for x in unpadded.read(bert, tokenized(texts), dtype=dtype)]).numpy()

    return {"": run}


def hugging_face() -> Candidates:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(default_model()).eval()

    def hidden(ids: list[list[int]]) -> np.ndarray:
        given, real = map(torch.from_numpy, padded(ids))
        return model(given, attention_mask=real).last_hidden_state.numpy()

    return {f"batches of {batch}": in_batches(hidden, batch) for batch in BATCHES}


def sentence_transformers() -> Candidates:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(default_model()), device="cpu")
    model.max_seq_length = TOKENS

    def of(batch: int) -> Encode:
        return lambda texts: model.encode(list(texts), batch_size=batch, show_progress_bar=False, convert_to_numpy=True)

    return {f"batches of {batch}": of(batch) for batch in BATCHES}
