"""`headwise embed`: a vector for each text of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwise.cli.bulk import bulk_options, check_ray, note, resumable
from headwise.cli.files import STDIN, check_writable
from headwise.cli.output import working
from headwise.cli.shared import COUNT, PATH, encoding, shared
from headwise.errors import ArgumentError
from headwise.extras import need
from headwise.language import Sentence, echo, said

if TYPE_CHECKING:
    from headwise.tasks.bulk.running import Engine, Written


@click.command(short_help="A vector for each text of a file.")
@click.option("--file", required=True, help="A file of texts.", **PATH)
@click.option("--out", required=True, help="The file to write: .parquet or .npy.", **PATH)
@click.option("--column", default="text", metavar="NAME", help="The column with the texts.")
@click.option(
    "--model", metavar="ID_OR_FOLDER", help="Hugging Face id or folder. Default: MiniLM, a BERT, from the extra demo."
)
@click.option("--prompt", metavar="TEXT", help='What to put before each text, such as "query: ".')
@click.option("--prompt-name", metavar="NAME", help="Which prompt of the model to put before each text.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    default="float32",
    help="What the model computes in; vectors are written in float32.",
)
@click.option("--batch-tokens", help="Tokens in one pass at most.  [default: 8192]", **COUNT)
@click.option("--chunk", type=click.IntRange(1), default=2000, metavar="ROWS", help="Rows in memory at a time.")
@bulk_options
@encoding
@shared
def embed(
    file: Path,
    out: Path,
    column: str,
    model: str | None,
    prompt: str | None,
    prompt_name: str | None,
    dtype: str,
    batch_tokens: int | None,
    chunk: int,
    restart: bool,
    engine: Engine,
    workers: int | None,
    ray_address: str | None,
) -> None:
    """A vector for each text of a file.

    Vectors are as sentence-transformers makes them of the model: its files say which tokens are averaged, and whether
    vectors have length 1. It is a BERT (MiniLM, BGE, E5), RoBERTa (XLM-R, CamemBERT), DistilBERT, ELECTRA, MPNet or
    ModernBERT. A .parquet has the columns of --file and the column "vector"; a .npy has the vectors alone, in the same
    order.

    --file is .csv, .tsv, .jsonl (also .gz), .parquet or .txt, of which each line is a text. It is read in chunks, so
    it may be larger than memory. Finished chunks are kept beside --out, and the same command resumes after Ctrl-C or a
    kill.
    """
    _check(file, out, prompt, prompt_name)
    check_ray(engine, workers=workers, address=ray_address)

    from headwise.models import Bert
    from headwise.models.checkpoint import default_model, resolve
    from headwise.tasks.bulk.embedding import embed_file

    folder = default_model() if model is None else resolve(model)
    with working(Sentence("loading {name}").format(name=folder)):
        encoder = Bert.from_pretrained(folder).sentences
    if prompt_name is not None and prompt_name not in encoder.prompts:
        known = ", ".join(map(repr, encoder.prompts)) or "none"
        raise ArgumentError(
            "--prompt-name: expected a prompt of the checkpoint ({known}). Received: {prompt_name!r}. Pass its "
            'text instead, such as --prompt "query: "',
            known=known,
            prompt_name=prompt_name,
        )
    if not encoder.settings.stated:
        echo(said("note: {folder} has no modules.json: the vectors are means over all tokens", folder=folder), err=True)
    with resumable(out) as tell:
        written = embed_file(
            encoder,
            file,
            out,
            column=column,
            prompt=encoder.prompt(prompt_name, prompt),
            dtype=dtype,
            batch_tokens=batch_tokens,
            chunk=chunk,
            engine=engine,
            workers=workers or 2,
            address=ray_address,
            restart=restart,
            tell=tell,
        )
    note(written.notes, written.before)
    _say_written(out, written, encoder.dim)


def _say_written(out: Path, written: Written, width: int) -> None:
    rows, now = written.rows, written.rows - written.before
    size = Sentence("{rows:,} row{s} of {width} numbers").format(rows=rows, s="" if rows == 1 else "s", width=width)
    if not now:
        echo(said("Wrote {out} ({size}).", out=out, size=size))
        return
    pace, tokens = now / written.seconds, written.tokens / written.seconds
    echo(
        said(
            "Wrote {out} ({size}): {pace:,.0f} rows/s, {tokens:,.0f} tokens/s.",
            out=out,
            size=size,
            pace=pace,
            tokens=tokens,
        )
    )


def _check(file: Path, out: Path, prompt: str | None, prompt_name: str | None) -> None:
    """Check what can be checked before a model is loaded."""
    if ".parquet" in (file.suffix, out.suffix):
        need("a .parquet file", "train", "pyarrow")
    from headwise.tasks.rows.chunks import check_suffix
    from headwise.tasks.rows.sources import readable
    from headwise.tasks.rows.written import check_vectors

    if str(file) == STDIN and not file.exists():
        raise ArgumentError(
            "--file -: expected a file, because it is read twice. Received: standard input. Save it first, in a file "
            "that ends in .txt if each line is a text"
        )
    with readable(file):
        file.open("rb").close()
    check_suffix(file)
    check_vectors(out)
    check_writable(out, "--out", [file])
    if prompt is not None and prompt_name is not None:
        raise ArgumentError("expected --prompt or --prompt-name. Received: both. Leave one out")
