"""Computes an embedding (vector) for each text of a file of any size, as `Bert.encode`; can be resumed after a kill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import ArgumentError
from headwise.language import Sentence
from headwise.tasks.bulk.answered import Answered
from headwise.tasks.bulk.parts import Answers, digest
from headwise.tasks.bulk.running import How, Tell, Written, compute
from headwise.tasks.rows.chunks import Found, Reader, check_suffix, look_through
from headwise.tasks.rows.names import make_different
from headwise.tasks.rows.sources import Table
from headwise.tasks.rows.tables import LISTED, as_texts, group_numbers, take_column
from headwise.tasks.rows.written import check_vectors

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from headwise.models.sentence import SentenceEncoder

VECTOR = "vector"  #: the name of the column of vectors
Inside = Callable[[int, int], None]  # (texts of the chunk that have a vector, all)

# The files of a checkpoint, and of its modules, whose folders modules.json names.
_FILES = ("*.json", "*.safetensors", "vocab.txt", "[!.]*/*.json", "[!.]*/*.safetensors", "[!.]*/*.bin")


@dataclass(frozen=True)
class Embedding:
    """The job that computes the vectors of a column of texts.

    Args:
        folder: the folder of the checkpoint.
        column: the column with the texts.
        prompt: the text that is put before each text.
        dtype, batch_tokens: as for `Bert.encode`.
        alone: whether the vectors are written without the columns of the file.
    """

    folder: Path
    column: str
    prompt: str
    dtype: str | None
    batch_tokens: int | None
    alone: bool

    def load(self) -> Answers:
        from headwise.models import Bert

        return self.of(Bert.from_pretrained(self.folder).sentences)

    def of(self, encoder: SentenceEncoder, tell: Inside = lambda done, total: None) -> Answers:
        return partial(_embed, self, encoder, tell)

    def state(self) -> Mapping[str, Any]:
        files = sorted(path for pattern in _FILES for path in self.folder.glob(pattern))
        return {"model": digest(files), "column": self.column, "prompt": self.prompt, "dtype": self.dtype}

    def told(self, name: str, was: Any) -> str:
        return f"other weights or settings than {self.folder} has now" if name == "model" else f"{name}={was!r}"


def _embed(job: Embedding, encoder: SentenceEncoder, tell: Inside, table: Table) -> Answered:
    texts = as_texts(table, job.column, take_column(table, job.column))
    found = encoder.embed(texts, job.prompt, batch_tokens=job.batch_tokens, dtype=job.dtype, tell=tell)
    vectors_NM = found.vectors.numpy()
    reason = f"more than {encoder.max_tokens} tokens, the rest was cut"
    cut = group_numbers(dict.fromkeys(found.cut, reason), table.numbers)
    columns = {} if job.alone else dict(table.columns)
    vector = make_different([*columns, VECTOR])[-1]
    arrow = {} if job.alone else {**table.arrow, vector: _fixed_size(vectors_NM)}
    answered: dict[str, Any] = {**columns, vector: vectors_NM}
    return Answered(answered, len(texts), {}, table.unit, cut, arrow, found.tokens)


def _fixed_size(vectors_NM: Any) -> Any:
    """Convert vectors to an Arrow array of lists of fixed length."""
    import pyarrow

    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors_NM.ravel()), vectors_NM.shape[1])


def embed_file(
    encoder: SentenceEncoder,
    path: Path,
    out: Path,
    *,
    column: str = "text",
    prompt: str = "",
    dtype: str | None = None,
    batch_tokens: int | None = None,
    tell: Tell = lambda done, total, what: None,
    **how: Unpack[How],
) -> Written:
    """Write a vector for each row of a file, in the order of the rows.

    A .parquet has the columns of the file and "vector", a list of float32 of fixed length ("vector.2" beside a column
    "vector"); a .npy has only the vectors, float32 [N, M]. Each worker holds only one chunk in memory. Each finished
    chunk is kept in a part beside `out`. If the process stops or is killed, the same call resumes with the missing
    parts.

    Args:
        encoder: `Bert.sentences`.
        path: a CSV, TSV, JSON lines or text file (all also .gz; each line of a text file is a row), or Parquet.
        column: the column with the texts. Numbers in it are read as text.
        prompt: the text that is put before each text: see `SentenceEncoder.prompt`.
        dtype, batch_tokens: as for `Bert.encode`.
        how: chunk, engine, workers, address, restart: as for `compute`.

    Raises:
        FileError: a file cannot be read or written; the message names the line.
        ArgumentError: a missing column, a row without a text (None, NaN, a list, or bytes that are not UTF-8; reported
            before the first chunk is read), another suffix, parts that belong to other work, or Ray is missing.
        KeyboardInterrupt: Ctrl-C; finished parts are kept.
    """
    check_suffix(path)
    check_vectors(out)
    path, out, folder = path.absolute(), out.absolute(), encoder.settings.folder.absolute()
    alone = out.suffix.lower() == ".npy"

    def look(chunk: int) -> Found:
        found = look_through(
            path,
            (column,),
            chunk,
            lambda done, size: tell(done, size, Sentence("scanning {name}").format(name=path.name)),
        )
        _check_texts(found, column)
        return found

    outer, inside = _finer(tell)
    job = Embedding(folder, column, prompt, dtype, batch_tokens, alone)
    return compute(job, job.of(encoder, inside), path, out, look, gpus=False, tell=outer, **how)


def _finer(tell: Tell) -> tuple[Tell, Inside]:
    """Make two progress functions from `tell`: one for finished chunks, one for the texts inside the current chunk."""
    last = (0, 0, "")

    def outer(done: int, total: int, what: str) -> None:
        nonlocal last
        last = (done, total, what)
        tell(*last)

    def inside(done: int, total: int) -> None:
        tell(last[0] + done, *last[1:])

    return outer, inside


def _check_texts(found: Found, column: str) -> None:
    """Raise ArgumentError at once, not after hours, if a row has no text."""
    count, unit = 0, "row"
    listed: list[int] = []
    with Reader(found) as reader:
        for number in range(len(found.chunks)):
            table = reader.read(number)
            cells = take_column(table, column)
            rows = zip(table.numbers, cells, as_texts(table, column, cells), strict=True)
            wrong = [row for row, cell, text in rows if not isinstance(cell, str) and not text]
            count, listed, unit = count + len(wrong), (listed + wrong)[:LISTED], table.unit
    if count:
        shown = ", ".join(map(str, listed)) + (f" and {count - LISTED} more" if count > LISTED else "")
        raise ArgumentError(
            f"{found.path}: expected a text in each row of the column {column!r}. Received: {count} without one "
            f"({unit if count == 1 else f'{unit}s'} {shown}). Fill them in, or leave these rows out"
        )
