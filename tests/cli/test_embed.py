"""`headwise embed`: a file of texts in, their vectors out; what stops says how to go on."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from headwise.models import Bert
from headwise.models.checkpoint import default_model

from .conftest import Run, refused


def test_vectors_are_those_of_encode(run: Run, tmp_path: Path) -> None:
    texts = ["a good film", "", "a bad film"]
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    result = run("embed", "--file", "in.txt", "--out", "out.parquet", "--prompt", "query: ", "--batch-tokens", "8")
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(r"Wrote out.parquet \(3 rows of 384 numbers\): [\d,]+ rows/s, [\d,]+ tokens/s\.\n", result.out)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table["text"].to_pylist() == texts
    expected = Bert.from_pretrained(default_model()).encode(texts, prompt="query: ")
    np.testing.assert_allclose(np.stack(table["vector"].to_numpy()), expected, atol=1e-5)


def test_what_is_cut_and_what_is_assumed_is_said(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(default_model(), model)
    (model / "modules.json").unlink()
    (tmp_path / "in.csv").write_text(f"id,words\n1,a film\n2,{'word ' * 600}\n", encoding="utf-8")
    result = run("embed", "--file", "in.csv", "--out", "out.npy", "--column", "words", "--model", "model")
    assert result.err.splitlines() == [
        "note: model has no modules.json: the vectors are means over all tokens",
        "note: 1 row read in part: more than 512 tokens, the rest was cut (line 3)",
    ]
    assert np.load(tmp_path / "out.npy").shape == (2, 384)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--file in.csv", "Missing option '--out'"),
        ("--file no.csv --out out.npy", "no.csv: no such file"),
        ("--file in.csv --out out.csv", "expected a name that ends in .npy or .parquet. Received: out.csv"),
        ("--file in.csv --out none/out.npy", "the folder none does not exist"),
        ("--file in.csv --out out.npy --workers 2", "--workers: only Ray uses it. Add --engine ray"),
        ("--file in.csv --out out.npy --prompt a --prompt-name b", "expected --prompt or --prompt-name"),
        ("--file in.csv --out out.npy --prompt-name b", "--prompt-name: expected a prompt of the checkpoint (none)"),
        ("--file - --out out.npy", "--file -: expected a file, because it is read twice. Received: standard input"),
        ("--file in.csv --out out.npy --model ''", "expected the folder of a checkpoint, or a hub id. Received: ''"),
        ("--file in.csv --out out.npy --column b", "in.csv: there is no column 'b'. The columns are: 'text'"),
        ("--file in.csv --out out.npy --model nowhere/", "no folder nowhere"),
    ],
)
def test_bad_input_is_one_line(run: Run, tmp_path: Path, arguments: str, says: str) -> None:
    (tmp_path / "in.csv").write_text("text\na film\n", encoding="utf-8")
    refused(run("embed", *shlex.split(arguments)), says)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_a_file_in_the_place_of_the_parts_says_what_to_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a film\n", encoding="utf-8")
    (tmp_path / ".out.npy.parts").touch()
    said = "expected a folder, for the parts of out.npy. Received: a file. Move or delete it, or choose another name"
    refused(run("embed", "--file", "in.txt", "--out", "out.npy"), said)
