"""Opens sources of rows, and returns their columns unchanged. Arrow reads Parquet, `datasets` the Hugging Face hub.

CSV and JSON are read by Python itself: Arrow needs one type per column, and reads text that looks like a date as a
date.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import ArgumentError, DtypeError, FileError, brief, shortened
from headwise.extras import need
from headwise.files import name_kind, parsed
from headwise.language import Sentence
from headwise.tasks.rows import separated
from headwise.tasks.rows.encodings import decode, recode
from headwise.tasks.rows.names import make_different, note_renamed

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".txt")
_ACCEPTED = (
    "the path of a CSV, TSV, JSON, JSON lines or Parquet file, the name of a data set on the hub, a pandas frame, "
    "a datasets.Dataset, a dict of lists or a list of dicts"
)
_BATCH = 10_000  # rows at a time
_INDEX = "the index of the frame is not read: reset_index() makes it a column"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+){0,2}(:\w+)?")


@dataclass(frozen=True)
class Table:
    """All columns of a source, or only the requested columns if others would be costly to read.

    Args:
        name, numbers, unit, fingerprint: as in `Data`.
        columns: each a list; all of one length.
        headed: whether the names of the columns were taken from the first line of a file.
        notes: notes on its columns, one sentence each.
        plain: whether it is a text file, whose only column has no name.
        arrow: for a Parquet file, columns as Arrow arrays, so that they can be written with their original types.
    """

    name: str
    columns: dict[str, list[Any]]
    numbers: list[int]
    unit: str = "row"
    fingerprint: str = ""
    headed: bool = False
    plain: bool = False
    notes: tuple[str, ...] = ()
    arrow: Mapping[str, Any] = field(default_factory=dict)


def open_table(source: Any, wanted: Sequence[str] = ()) -> Table:
    """Open anything that `read_table` takes, as a table with its columns; `wanted`: the columns that will be used.

    A `Table` is returned unchanged.

    Raises:
        FileError, ArgumentError, DtypeError: the source cannot be read, or has no rows.
    """
    if isinstance(source, Table):
        return source
    if isinstance(source, Path) or (isinstance(source, str) and _is_path(source)):
        return _read_file(Path(source), wanted)
    if isinstance(source, str):
        return _from_hub(source)
    module = type(source).__module__.partition(".")[0]
    if module == "pandas" and hasattr(source, "columns"):
        told = source.index.inferred_type.startswith(("datetime", "period")) or any(source.index.names)
        columns = [(name, cells.tolist()) for name, cells in source.items()]
        return _make_table("the frame", columns, notes=(_INDEX,) if told else ())
    if module == "datasets":
        return _read_dataset("the data set", source)
    if isinstance(source, Mapping):
        return _make_table("the dict", [(name, _listed(name, cells)) for name, cells in source.items()])
    if isinstance(source, (list, tuple)) and all(isinstance(row, Mapping) for row in source):
        return _make_table("the list", transposed(source).items())
    received = type(source).__name__
    if isinstance(source, (list, tuple)):
        received += f" with {type(next(row for row in source if not isinstance(row, Mapping))).__name__}"
    raise DtypeError(f"data: expected {_ACCEPTED}. Received: {received}")


def _is_path(source: str) -> bool:
    """Return whether a text names a file, not a data set on the hub: the file exists, or the name looks like one."""
    return Path(source).exists() or find_suffix(Path(source)) in _SUFFIXES or not _HUB_NAME.fullmatch(source)


def find_suffix(path: Path) -> str:
    """Return the suffix of a file's name, without .gz: ".csv"."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _read_file(path: Path, wanted: Sequence[str]) -> Table:
    """Read a file as its suffix says."""
    suffix = find_suffix(path)
    if path.is_file() and suffix not in _SUFFIXES:
        raise ArgumentError(
            "{path}: expected a name that ends in {suffixes} (or one of these and .gz). Received: {received}. "
            "If each of its lines is a text, rename it: {stem}.txt{packed}",
            path=path,
            suffixes=", ".join(_SUFFIXES),
            received=suffix or Sentence("none of them"),
            stem=path.name.removesuffix(".gz"),
            packed=".gz" if is_packed(path) else "",
        )
    with readable(path):
        data = path.read_bytes()
    fingerprint = hashlib.sha256(data).hexdigest()
    if is_packed(path):
        with readable(path):
            data = gzip.decompress(data)
    name = str(path)
    if suffix == ".parquet":
        return _make_table(name, from_arrow(_parquet(path, data)), fingerprint, first=1)
    text = decode(recode(data, name), name)
    if suffix in (".csv", ".tsv"):
        return _separated(path, text, wanted, fingerprint)
    if suffix == ".txt":
        lines = [line.rstrip("\n") for line in io.StringIO(text, newline=None)]  # not U+2028, as in chunks
        return Table(name, {"text": lines}, list(range(1, len(lines) + 1)), "line", fingerprint, plain=True)
    return _parse_table(name, text, lines=suffix != ".json", fingerprint=fingerprint)


def is_packed(path: Path) -> bool:
    """Return whether a file is gzipped, by its name."""
    return path.name.lower().endswith(".gz")


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """A context that turns errors of reading the file into a FileError."""
    try:
        if name_kind(path) == "a device":  # its end may never come
            raise OSError(errno.EINVAL, "a device")
        yield
    except FileError:
        raise
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileError("{path}: not a whole gzip file: {cause}", path=path, cause=str(error).lower()) from error
    except OSError as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()
        raise FileError("{path}: {why}; expected a file to read", path=path, why=why) from error


def _separated(path: Path, text: str, wanted: Sequence[str], fingerprint: str) -> Table:
    """Read a CSV or TSV file. Every cell is text: NA, null and 01 are words, and may be labels."""
    name = str(path)

    def lines() -> Iterable[str]:
        return io.StringIO(text, newline="")

    layout = separated.survey(lines, name, wanted, tabs=find_suffix(path) == ".tsv")
    return of_rows(name, layout, list(separated.rows(lines(), layout, name)), fingerprint)


def of_rows(
    name: str, layout: separated.Layout, found: Sequence[tuple[int, list[str]]], fingerprint: str = ""
) -> Table:
    """Make a table of the rows of a CSV or TSV file, each given as (number of the line, cells)."""
    cells = [row for _, row in found]
    columns = {column: [row[place] for row in cells] for place, column in enumerate(layout.names)}
    return Table(name, columns, [line for line, _ in found], "line", fingerprint, layout.headed, notes=layout.notes)


def _parse_table(name: str, text: str, *, lines: bool, fingerprint: str) -> Table:
    """Read a table from JSON lines, from a JSON list of objects, or from an object with such a list under "data"."""
    if lines:
        rows, numbers = [], []
        # Not splitlines: JSON may contain U+2028.
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                rows.append(parse_row(line, name, number))
                numbers.append(number)
        return Table(name, transposed(rows), numbers, "line", fingerprint)
    whole = _parse(text, name, 1)
    if isinstance(whole, dict) and isinstance(whole.get("data"), list):
        whole = whole["data"]
    if isinstance(whole, dict) and whole and all(isinstance(cells, list) for cells in whole.values()):
        return _make_table(name, whole.items(), fingerprint, first=1)
    if not isinstance(whole, list):
        raise FileError("{name}: expected a list of objects. Received: {kind}", name=name, kind=type(whole).__name__)
    rows = [_check_row(each, name, "row", number) for number, each in enumerate(whole, start=1)]
    return Table(name, transposed(rows), list(range(1, len(whole) + 1)), "row", fingerprint)


def parse_row(line: str, name: str, number: int) -> dict[Any, Any]:
    """Parse the object in one line of a JSON lines file. Raises FileError if there is no object."""
    return _check_row(_parse(line, name, number), name, "line", number)


def _check_row(row: Any, name: str, unit: str, number: int) -> dict[Any, Any]:
    if not isinstance(row, dict):
        raise FileError(
            '{name}: {unit} {number}: expected an object, such as {{"text": "…"}}. Received: {row}',
            name=name,
            unit=Sentence(unit),
            number=number,
            row=brief(row),
        )
    return row


def _parse(text: str, name: str, line: int) -> Any:
    try:
        found = parsed(partial(json.loads, object_pairs_hook=_make_object), text)
    except json.JSONDecodeError as error:
        raise FileError(
            "{name}: line {line} is not JSON: {cause}", name=name, line=line + error.lineno - 1, cause=error.msg.lower()
        ) from error
    except ValueError as error:  # nested too deeply, a name twice, or a number of thousands of digits
        raise FileError("{name}: line {line}: cannot be read: {error}", name=name, line=line, error=error) from error
    if "\\ud" in text.lower():  # maybe half a surrogate pair, which is no character and cannot be written
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            line += text.count("\n", 0, text.lower().find(half))
            raise FileError(
                "{name}: line {line}: {half} is half a surrogate pair, and no character",
                name=name,
                line=line,
                half=half,
            ) from error
    return found


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make the object of pairs in JSON. Raises ValueError if a name is there twice: one of its values would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"expected different names in an object. Received: {brief([name for name, _ in pairs])}")
    return found


def transposed(rows: Sequence[Mapping[Any, Any]], names: Iterable[Any] | None = None) -> dict[Any, list[Any]]:
    """Turn rows (objects) into columns: these names, or all names that occur; None where a row lacks a name."""
    names = dict.fromkeys(name for row in rows for name in row) if names is None else names
    return {name: [row.get(name) for row in rows] for name in names}


def _listed(name: Any, cells: Any) -> list[Any]:
    if isinstance(cells, str) or not isinstance(cells, Iterable):
        raise DtypeError(f"data: expected a list for {name!r}. Received: {type(cells).__name__} {brief(cells)}")
    return cells.tolist() if hasattr(cells, "tolist") else list(cells)


def _make_table(
    name: str,
    given: Iterable[tuple[Any, list[Any]]],
    fingerprint: str | None = None,
    *,
    first: int = 0,
    notes: tuple[str, ...] = (),
) -> Table:
    """Make a table of columns, whose names may be equal.

    Args:
        first: the number of its first row: 1 in files, 0 in memory, as Python counts.
    """
    told, listed = zip(*given, strict=True) if (given := list(given)) else ((), ())
    columns = dict(zip(make_different(told), map(decoded, listed), strict=True))
    lengths = {column: len(cells) for column, cells in columns.items()}
    if len(set(lengths.values())) > 1:
        each = ", ".join(f"{column} {length}" for column, length in lengths.items())
        raise ArgumentError("{name}: expected columns of one length. Received: {lengths}", name=name, lengths=each)
    numbers = list(range(first, first + next(iter(lengths.values()), 0)))
    fingerprint = _fingerprint(columns) if fingerprint is None else fingerprint
    return Table(name, columns, numbers, fingerprint=fingerprint, notes=(*notes, *note_renamed(told, columns)))


def _fingerprint(columns: Mapping[str, Sequence[Any]]) -> str:
    """Return a fingerprint of columns in memory: equal for equal names and cells."""
    found = hashlib.sha256()
    for name, cells in columns.items():
        found.update(repr((name, len(cells))).encode())
        for cell in cells:
            # Arrays and pictures do not print all their contents.
            found.update(cell.tobytes() if hasattr(cell, "tobytes") else repr(cell).encode("utf-8", "surrogatepass"))
            found.update(b"\0")
    return found.hexdigest()


def _parquet(path: Path, data: bytes) -> Any:
    """Read the Arrow table from the bytes of a Parquet file."""
    with arrow_errors(path):
        import pyarrow
        from pyarrow import parquet

        return parquet.ParquetFile(pyarrow.BufferReader(data)).read()  # `read_table` refuses two columns of one name


@contextlib.contextmanager
def arrow_errors(path: Path) -> Iterator[None]:
    """A context that turns Arrow's errors of reading a Parquet file into a FileError."""
    need("reading tables", "train", "pyarrow")
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise FileError(
            "{path}: cannot be read as parquet: {cause}", path=path, cause=shortened(" ".join(str(error).split()), 200)
        ) from error


def from_arrow(table: Any) -> list[tuple[str, list[Any]]]:
    """Convert an Arrow table to columns of Python objects. A class label becomes its name, instead of its number."""
    columns, coded = zip(table.column_names, table.columns, strict=True), classes(table.schema)
    cells = ((name, column.to_pylist()) for name, column in columns)
    return [(name, named(each, coded[name]) if name in coded else each) for name, each in cells]


def _from_hub(name: str) -> Table:
    """Load a split of a data set from the hub, or from an earlier download of it."""
    place, _, split = name.partition(":")
    parts = place.split("/")
    if len(parts) == 3:
        places: list[tuple[str, str | None]] = [("/".join(parts[:2]), parts[2])]
    else:  # "glue/sst2" is a data set and one of its configurations, "stanfordnlp/sst2" is a data set of an owner
        places = [(place, None), *([(parts[0], parts[1])] if len(parts) == 2 else [])]
    failures = []
    with quiet() as datasets, try_hub(places[0][0]) as answers:
        for repository, config in places:
            try:
                found = datasets.load_dataset(repository, config, split=split or "train")
            except Exception as error:  # noqa: PERF203 (each library below has its own)
                failures.append(error)
            else:
                return _read_dataset(name, found)
    why = shortened(" ".join(str(failures[0]).split()), 200) if answers else "it cannot be reached from here"
    raise FileError(
        "{name}: there is no such file, and the hub gave no data set of that name: {why}", name=name, why=why
    ) from failures[0]


@contextlib.contextmanager
def try_hub(repository: str) -> Iterator[bool]:
    """A context that gives whether the hub answers. If not, it uses only earlier downloads, without long tries."""
    import datasets
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    answers = True
    try:
        HfApi().dataset_info(repository, timeout=10)
    except HfHubHTTPError:
        pass  # the hub answered, if only that the data set does not exist
    except Exception:  # errors of any client
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        answers = False
    try:
        yield answers
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _read_dataset(name: str, rows: Any) -> Table:
    """Make a table of a `datasets.Dataset`, or of a similar class."""
    if isinstance(rows, Mapping):
        raise ArgumentError(
            "{name}: expected one split. Received: {count}: choose one of {splits}",
            name=name,
            count=len(rows),
            splits=", ".join(rows),
        )
    if not hasattr(rows, "with_format"):
        raise DtypeError(f"data: expected {_ACCEPTED}. Received: {type(rows).__name__} of datasets")
    return _make_table(name, _columns(rows).items())


def _columns(rows: Dataset | IterableDataset) -> dict[str, list[Any]]:
    """Convert a data set to columns of Python objects. A class label becomes its name, instead of its number."""
    features = rows.features or {}
    columns: dict[str, list[Any]] = {name: [] for name in features}
    for table in rows.with_format("arrow").iter(batch_size=_BATCH):
        for name in table.column_names:
            columns.setdefault(name, []).extend(table[name].to_pylist())
    return columns | {name: named(columns[name], names) for name, names in _classes(features).items()}


def decoded(cells: list[Any]) -> list[Any]:
    """Decode cells that are bytes to text, because some programs write texts as bytes.

    Bytes that are not UTF-8 stay bytes.
    """
    return [_decoded(cell) for cell in cells] if any(isinstance(cell, bytes) for cell in cells) else cells


def _decoded(cell: Any) -> Any:
    with contextlib.suppress(UnicodeDecodeError):
        return cell.decode() if isinstance(cell, bytes) else cell
    return cell


def classes(schema: Any) -> dict[str, list[str]]:
    """Return a dict: column -> names of its classes, from the Arrow schema of a file that `datasets` wrote."""
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    import datasets

    return _classes(datasets.Features.from_arrow_schema(schema))


def _classes(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return a dict: column -> names of its classes, for each column of class labels."""
    import datasets

    return {name: feature.names for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)}


def named(numbers: Sequence[int | None], names: Sequence[str]) -> list[str | None]:
    """Replace the numbers of classes by their names; None where there is no class."""
    return [None if each is None or each < 0 else names[each] for each in numbers]


@contextlib.contextmanager
def quiet() -> Iterator[Any]:
    """A context that gives the package `datasets`, without its progress bars and messages."""
    need("reading tables", "train", "datasets")
    import datasets

    bars, level = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield datasets
    finally:
        if not bars:
            datasets.enable_progress_bars()
        datasets.logging.set_verbosity(level)
