"""Predicts for a file of any size, chunk by chunk, here or on a Ray cluster; can be resumed after a kill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import ArgumentError
from headwise.language import Sentence
from headwise.tasks.bulk.answered import answer
from headwise.tasks.bulk.parts import Answers, digest
from headwise.tasks.bulk.running import How, Tell, Written, compute
from headwise.tasks.kinds import load
from headwise.tasks.rows.chunks import SUFFIXES, Found, look_through
from headwise.tasks.rows.sources import find_suffix, is_packed
from headwise.tasks.rows.written import STREAMED
from headwise.tasks.task import Task
from headwise.tasks.training.run import find_files

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Predictions:
    """The job that computes the predictions of a trained task, loaded from its run folder.

    Args:
        wanted: the columns that the task reads.
    """

    folder: Path
    wanted: tuple[str, ...]

    def load(self) -> Answers:
        return self.of(load(self.folder))

    def of(self, task: Task[Any]) -> Answers:
        return lambda table: answer(task, table, table, self.wanted)

    def state(self) -> Mapping[str, Any]:
        return {"run": digest(find_files(self.folder))}

    def told(self, name: str, was: Any) -> str:
        return f"other weights, options or files than {self.folder} has now"


def why_whole(task: Task[Any], path: Path, out: Path) -> str | None:
    """Return the reason why this file cannot be processed in chunks; None if it can."""
    suffix = find_suffix(path)
    if task.reads_files:
        return f"{task.name} reads whole files"
    if suffix not in SUFFIXES or (suffix == ".parquet" and is_packed(path)):
        return f"{path.name} is read whole; only {', '.join(SUFFIXES)} are read in chunks"
    if out.suffix.lower() not in STREAMED:
        return f"{out.name} is written whole; only {', '.join(STREAMED)} are written in parts"
    return None


def predict_file(
    task: Task[Any],
    run: Path,
    path: Path,
    out: Path,
    *,
    tell: Tell = lambda done, total, what: None,
    **how: Unpack[How],
) -> Written:
    """Predict for the rows of a file. The file `out` gets the same rows, with the columns of the predictions added.

    Each worker holds only one chunk in memory. Each finished chunk is kept in a part beside `out`. If the process stops
    or is killed, the same call resumes with the missing parts.

    Args:
        task: the trained task of the run folder `run`.
        path: a CSV, TSV, JSON lines (all also .gz) or Parquet file.
        out: a .csv, .tsv, .jsonl or .parquet file.
        how: chunk, engine, workers, address, restart: as for `compute`.

    Raises:
        FileError: a file cannot be read or written; the message names the line.
        ArgumentError: columns are missing, no row is usable, parts belong to other work, the file cannot be read in
            chunks, or Ray is missing.
        KeyboardInterrupt: Ctrl-C; finished parts are kept.
    """
    if why := why_whole(task, path, out):
        raise ArgumentError(f"{path}: cannot be processed in chunks: {why}")
    path, out, run = path.absolute(), out.absolute(), run.expanduser().absolute()
    wanted = task.file_columns(str(path))

    def look(chunk: int) -> Found:
        found = look_through(
            path, wanted, chunk, lambda done, size: tell(done, size, Sentence("scanning {name}").format(name=path.name))
        )
        if "paragraphs" in found.columns and not set(wanted) & set(found.columns):
            raise ArgumentError(
                f"{path}: rows have several questions, as in SQuAD. Write a .json file, so that it is read whole"
            )
        return found

    job = Predictions(run, wanted)
    gpus = how.get("engine") == "ray" and task.options.accelerator != "cpu"
    return compute(job, job.of(task), path, out, look, gpus=gpus, tell=tell, **how)
