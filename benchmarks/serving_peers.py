"""What `serving.py` measures `headwise serve` against: the same classifier with transformers, on FastAPI and LitServe.

python benchmarks/serving_peers.py prepare DATA FOLDER [RUN]
python benchmarks/serving_peers.py fastapi|litserve FOLDER/transformers PORT [WORKERS]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import litserve as ls
import torch
from pydantic import BaseModel

LONGEST = 512  # tokens
BATCH, DELAY = 32, 0.005  # of LitServe: rows, and seconds to wait for them


def prepare(data: str, folder: str, run: str | None = None) -> None:
    """FOLDER/run, trained if there is none; its weights as transformers reads them; its export to ONNX."""
    from headwise.models.bert_checkpoint import save_checkpoint
    from headwise.tasks.classify import Classify

    root = Path(folder)
    if run is None:
        lines = [line.split("\t") for line in (Path(data) / "train.tsv").read_text(encoding="utf-8").splitlines()]
        columns = {"text": [line[0] for line in lines[:1280]], "label": [line[1] for line in lines[:1280]]}
        Classify.fit(columns, out=root / "run", epochs=1)
    else:
        shutil.copytree(run, root / "run")
    task = Classify.load(root / "run")
    peer = root / "transformers"
    save_checkpoint(task.model.encoder, peer)
    task.subwords.save(peer)
    head = task.model.head
    torch.save({"weight": head.weight, "bias": head.bias, "labels": list(task.labels)}, peer / "head.pt")
    export = [sys.executable, "-m", "headwise", "export", root / "run", "--to", "onnx", "--out", root / "onnx"]
    subprocess.run([*export, "--no-speed"], check=True, stdout=subprocess.DEVNULL)


class Question(BaseModel):
    text: str


class Classifier:
    """Mean of the hidden states, and a linear map: what the run computes, as one writes it with transformers."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder).eval()
        head = torch.load(folder / "head.pt")
        self.weight, self.bias, self.labels = head["weight"].detach(), head["bias"].detach(), head["labels"]

    @torch.inference_mode()
    def __call__(self, texts: list[str]) -> list[dict[str, Any]]:
        batch = self.tokenizer(texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        hidden = self.model(**batch).last_hidden_state
        real = batch["attention_mask"][:, :, None]
        pooled = (hidden * real).sum(1) / real.sum(1)
        probabilities = (pooled @ self.weight.T + self.bias).softmax(-1)
        best, places = probabilities.max(-1)
        pairs = zip(best.tolist(), places.tolist(), strict=True)
        return [{"label": self.labels[place], "probability": share} for share, place in pairs]


def fastapi(folder: str, port: str) -> None:
    """One request at a time, in the event loop, with all threads of torch."""
    import uvicorn
    from fastapi import FastAPI

    app, classifier = FastAPI(), Classifier(Path(folder))

    @app.post("/classify")
    async def classify(question: Question) -> dict[str, Any]:
        return classifier([question.text])[0]

    uvicorn.run(app, host="127.0.0.1", port=int(port), access_log=False, log_level="warning")


class Api(ls.LitAPI):
    """Its methods are those that LitServe calls, in this order."""

    folder: str
    threads: int

    def setup(self, device: str) -> None:
        torch.set_num_threads(self.threads)
        self.classifier = Classifier(Path(self.folder))

    def decode_request(self, request: dict[str, str]) -> str:
        return request["text"]

    def batch(self, inputs: list[str]) -> list[str]:
        return inputs

    def predict(self, texts: list[str]) -> list[dict[str, Any]]:
        return self.classifier(texts)

    def unbatch(self, outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return outputs

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        return output


def litserve(folder: str, port: str, workers: str = "1") -> None:
    """Batches of up to BATCH; the workers share the cores."""
    api = Api(max_batch_size=BATCH, batch_timeout=DELAY, api_path="/classify")
    api.folder, api.threads = folder, max((os.cpu_count() or 1) // int(workers), 1)
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=int(workers))
    server.run(host="127.0.0.1", port=int(port), log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    command, *given = sys.argv[1:]
    {"prepare": prepare, "fastapi": fastapi, "litserve": litserve}[command](*given)
