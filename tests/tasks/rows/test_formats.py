"""The table of formats in docs/train.md: files and frames that headwise did not write, and what it reads of them."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from headwise.cli import main
from headwise.errors import HeadwiseError
from headwise.language import read_catalogue
from headwise.tasks import Classify, Forecast, Reply, Translate
from headwise.tasks.rows.encodings import encoded_as
from tests.cli.conftest import Run, refused


def separated(rows: dict[str, Any], separator: str = ",", end: str = "\r\n") -> str:
    lines = [list(rows), *zip(*rows.values(), strict=True)]
    return "".join(separator.join('"' + str(cell).replace('"', '""') + '"' for cell in line) + end for line in lines)


def objects(rows: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]


def in_parquet(rows: Any) -> bytes:
    parquet.write_table(pa.table(rows), out := io.BytesIO())
    return out.getvalue()


def in_frame(rows: dict[str, Any], kind: str = "object") -> pd.DataFrame:
    return pd.DataFrame(rows).astype(kind).set_index(pd.Index([7] * len(next(iter(rows.values())))))


KINDS: dict[str, Any] = {  # kind of source -> the function that writes rows as it
    "a.csv": separated, "a.csv ;": lambda rows: separated(rows, ";"), "a.csv tab": lambda rows: separated(rows, "\t"),
    "a.csv |": lambda rows: separated(rows, "|", "\n"), "a.csv with a mark": lambda rows: "\ufeff" + separated(rows),
    "a.tsv": lambda rows: separated(rows, "\t", "\n"), "a.json": lambda rows: json.dumps(objects(rows)),
    "a.jsonl": lambda rows: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in objects(rows)),
    "a.jsonl of escapes": lambda rows: "\ufeff" + "\r\n".join(map(json.dumps, objects(rows))),
    "a.parquet": in_parquet, "a.parquet of pandas": lambda rows: in_frame(rows).to_parquet(),
    "a.parquet of bytes": lambda rows: in_parquet({n: [cell.encode() for cell in cells] for n, cells in rows.items()}),
    "a.parquet of classes": lambda rows: in_parquet({n: pa.array(c).dictionary_encode() for n, c in rows.items()}),
    "a frame": in_frame, "strings": lambda rows: in_frame(rows, "string"), "a dict": dict,
    "Arrow": lambda rows: in_frame(rows, "string[pyarrow]"), "categories": lambda rows: in_frame(rows, "category"),
    "a list": objects, "a.json of lists": json.dumps,
}  # fmt: skip


class Case(NamedTuple):
    row: str  #: of the table in the documents
    source: Any  #: rows in memory, or (name of a file, content)
    out: Any  #: the columns that are read, or what the error says
    notes: tuple[str, ...]  #: what each note says
    options: dict[str, Any]  #: of the task, and "encoding"


def make(row: str, source: Any, out: Any, /, *notes: str, **options: Any) -> Case:
    is_file = isinstance(source, tuple) and isinstance(source[1], str | bytes)
    source = source if is_file or not isinstance(source, tuple) else source[1]
    return Case(row, source, {"text": out} if isinstance(out, list) else out, notes, options)


def make_series(source: Any, row: str, out: Any, note: str = "forecast: 'load'", **options: Any) -> Case:
    """Make a case of a series: `out` are its times, its columns or its error; a list are the times of a CSV file."""
    load = (LOAD * 2)[: len(source)]
    out = {"time": [*map(str, out)], "value of load": load} if isinstance(out, list) else out
    source = ("a.csv", separated({"day": source, "load": load})) if isinstance(source, list) else source
    return make(row, source, out, note, context=4, horizon=1, patch_length=2, **options)


CELLS = [
    *("007", "1.10", "1.0", "9007199254740993", "NA", "None", "null", "nan", "true", "-", "1,5", "1e3", "2024-01-31"),
    *(" x ", "a, b; c\td|e", 'say "hi"', "one\ntwo", "three\r\nfour", "é 中 😀", "=1+1", "a\u2028b", "\\n", "it's"),
]
SAME: dict[str, Any] = {"text": CELLS, "label": CELLS[::-1]}
CODED = {"utf-16": "un café", "cp1252": "un café très agréable et “bon”", "utf-8": "é", "utf-8-sig": "é"}
CODED |= {"gbk": "这部电影很好看，演员的表演也不错", "big5": "這部電影很好看，演員的表演也不錯"}
IN_CODES = [(code, {"text": [f"{text}{sign} x"]}, sign) for code, text in CODED.items() for sign in ",;\t|"]
NUMBERED = [["1", "1.0", "+1", "1.10"], [1, 1.0, np.float32(1), Decimal("1.10")], [np.int8(1), "1.", " 1 ", "1.10"]]
LABELS = ("a.jsonl", '{"text": "a", "label": {"x": 1}}\n{"text": "b", "label": "y"}')
PAIR = '{"translation": {"en": "a dog", "de": "ein Hund"}}'
PAIRS = pa.Table.from_pylist([json.loads(PAIR)])
TALKS = [["hi", "how are you?"], [{"role": "user", "content": "hi"}, {"content": "how\n are you?"}], "hi\nhow are you?"]
FEATURES = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
CLASSES = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, FEATURES)
TYPED = {  # text -> the cell of Parquet that is read so
    "9007199254740993": pa.array([2**53 + 1]), "18446744073709551615": pa.array([2**64 - 1], pa.uint64()),
    "1.10": pa.array([Decimal("1.10")]), "2.5": pa.array([2.5]), "NA": pa.array(["NA"], pa.large_string()),
    "2024-01-31 18:00:00+01:00": pa.array([datetime(2024, 1, 31, 17)], pa.timestamp("us", "Europe/Berlin")),
    "True": pa.array([True]), "2024-01-31": pa.array([date(2024, 1, 31)]),
}  # fmt: skip
ARROW = {text: pa.table({"text": cell}).to_pandas(types_mapper=pd.ArrowDtype) for text, cell in TYPED.items()}
DATED = pd.DataFrame({"text": ["a", "b"], "label": pd.Categorical([2, None])}, pd.date_range("2024", periods=2))
LOAD = [float(row * 7 % 5) for row in range(30)]
DAYS = [datetime(2024, 1, 20, 18) + timedelta(row) for row in range(30)]
HOURS = [datetime(2024, 1, 31, 17) + timedelta(hours=row) for row in range(30)]
UNIX, YEARS = [1706720400 + 3600 * row for row in range(30)], [*range(1990, 2020)]
ISO, NIGHTS = ([f"{day:%Y-%m-%d}{clock}" for day in DAYS] for clock in ("", " 00:00:00"))
MONTHS, STARTS = ([f"{2024 + row // 12}-{1 + row % 12:02}{day}" for row in range(30)] for day in ("", "-01 00:00:00"))
FIRSTS = [f"01/{1 + row % 12:02}/{2024 + row // 12}" for row in range(30)]
MIXED = [*(f"{day:%d/%m/%Y}" for day in DAYS[:20]), "02/13/2024"]
WINTER, SUMMER = ([f"{h + timedelta(hours=off):%Y-%m-%dT%H:%M}+0{off}:00" for h in HOURS] for off in (1, 2))
NUMBERS = [int(month.replace("-", "")) for month in MONTHS]
FORMATS = {"%Y-%m-%d": "ISO8601", "%Y/%m/%d %H:%M": "ISO8601", "%Y年%m月%d日": "%Y %m %d"}
FORMATS |= {"%d/%m/%Y": "%d %m %Y", "%m/%d/%Y": "%m %d %Y", "%d.%m.%Y": "%d %m %Y"}
TOKYO = pd.DataFrame({"day": pd.date_range("2024-01-20", periods=30, tz="Asia/Tokyo"), "load": LOAD})
COSTS = ("a.csv", "load;cost\n1.5;1,5\n1e3;2,5\n NA;3\n-2;4,0\n8;5\n0;6\n")
CITIES = {"city": ["007", "NA"] * 15, "day": sorted(ISO[:15] * 2), "load": LOAD}
TOWNS = {"series": ["007"] * 15 + ["NA"] * 15, "time": NIGHTS[:15] * 2, "value of load": LOAD[::2] + LOAD[1::2]}
GAP = {"day": ISO[:10] + ISO[12:], "load": [*LOAD[:10], *LOAD[12:]]}
FILLED = [*LOAD[:10], LOAD[9] + (LOAD[12] - LOAD[9]) / 3, LOAD[9] + (LOAD[12] - LOAD[9]) / 1.5, *LOAD[12:]]
FIRST, COUNTS = "day first", "column 'day' counts rows, mostly by "
ADDED = ["predicted label", "probability", "probability of 007", "probability of NA"]
CASES = [
    *(make("text", (kind, write(SAME)), SAME) for kind, write in KINDS.items()),
    *(make("labels", {"text": list("abcd"), "label": numbers},
           {"text": list("abcd"), "label": ["1", "1", "1", "1.10"]}) for numbers in NUMBERED),
    make("quotes", ("a.csv", 'text\n"a, b"\n"say ""hi"""\n'), ["a, b", 'say "hi"']),
    make("quotes", ("a.csv", 'text,label\n"a\nb,1\n'), "line 2: a quote is never closed"),
    make("quotes", ("a.csv", 'text,label\n"a" b,1\n'), "line 2: a quote within a quoted cell; write it twice"),
    make("lone quotes", ("a.tsv", 'text\tx\n"never closed\t1\nend"\t2\n'), ['"never closed', 'end"']),
    make("rows", ("a.csv", "text,label,x\na\nb,1,\n"), ["a", "b"]),
    make("rows", ("a.csv", "text,label\na,1\nb,2,3\n"), "line 3 has 3 cells, the first line 2: quote"),
    make("rows", ("a.csv", "text,label,\na,1,\n"), {"text": ["a"], "label": ["1"]}),
    make("nothing", ("a.csv", "text,label\na,1\n,2\n\nb,3\n"), ["a", "b"], "2 rows left out: no text (lines 3, 4)"),
    make("nothing", ("a.jsonl", '{"text": "a"}\n\n{"text": null}\n{"text": NaN}'), ["a"], "no text (lines 3, 4)"),
    make("nothing", ("a.csv", "text,label\n ,\n,2\n"), "no row can be used: 2 rows left out: no text (lines 2, 3)"),
    *(make("nothing", {"text": ["a", cell, "null"], "label": [cell, "x", "y"]}, {"text": ["null"], "label": ["y"]},
           "no label (row 0)", "no text (row 1)") for cell in (None, float("nan"), pd.NaT, "", " ")),
    make("separators", ("a.csv", "text;label\na, b;1,5\n"), {"text": ["a, b"], "label": ["1,5"]}),
    make("separators", ("a.csv", "label|text\n1;5|a\tb\n"), {"text": ["a\tb"], "label": ["1;5"]}),
    make("headings", ("a.csv", "text,text\na,b\n"), ["a"], "'text' is there more than once: the later one is called"),
    make("headings", ("a.csv", "text,text\na,b\n"), ["b"], "column 'text' is there more than once", text="text.2"),
    make("headings", ("a.csv", " text ,\na,b\n"), {"text": ["a"], "label": ["b"]}, label="unnamed"),
    make("headings", ("a.csv", "text,label\na,b\n"), "there is no column 'txt'. The columns are: 'text',", text="txt"),
    *(make("encodings", ("a.csv", separated(rows, sign).encode(code)), rows, encoding=code)
      for code, rows, sign in IN_CODES),
    *(make("encodings", ("a.csv", separated(rows | {"label": ["x"]}, sign).encode(code)),
           rows | {"label": ["x"]} if "utf-8" in code else f"It is probably {code}: name it by --encoding {code} ")
      for code, rows, sign in IN_CODES),
    make("JSON values", ("a.json", '{"text": [true, 1.10, 9007199254740993]}'), ["True", "1.1", "9007199254740993"]),
    make("JSON values", ("a.jsonl", '{"text": "a", "text": "b"}'), "expected different names in an object"),
    make("JSON values", ("a.jsonl", '\n{"text": "\\ud800"}\n'), r"line 2: \ud800 is half a surrogate pair"),
    make("JSON values", ("a.jsonl", '{"text": \n'), "line 1 is not JSON: expecting value"),
    *(make("objects", source, {"source": ["a dog"], "target": ["ein Hund"]}, source="en", target="de") for source in
      (("a.jsonl", PAIR), ("a.json", f"[{PAIR}]"), ("a.parquet", in_parquet(PAIRS)), PAIRS.to_pandas())),
    make("objects", LABELS, {"text": ["b"], "label": ["y"]}, "an object in place of the label (line 1)"),
    make("objects", LABELS, {"text": ["a"], "label": ["1"]}, "no label (line 2)", label="label.x"),
    *(make("turns", (kind, KINDS[kind]({"talk": [talk]})), {"dialogue": ["hi\nhow are you?"]}, dialogue="talk")
      for talk in TALKS for kind in ("a.jsonl", "a.parquet", "a frame")),
    make("turns", ("a.jsonl", '{"text": ["hi"]}\n{"text": "b"}'), ["b"], "a list in place of the text (line 1)"),
    *(make("Parquet", ("a.parquet", in_parquet({"text": cell})), [text]) for text, cell in TYPED.items()),
    make("Parquet", ("a.parquet", in_parquet({"text": [b"\xff"], "label": ["x"]})), "row 1: expected a text in UTF-8"),
    *(make("Parquet", source, {"text": ["a", "b"], "label": ["yes", "no"]}) for source in
      (CLASSES, ("a.parquet", in_parquet(CLASSES.data.table)))),
    *(make("frames", frame.set_index(pd.Index(["x"])), [text]) for text, frame in ARROW.items()),
    *(make("frames", in_frame({"text": [1, 0]}, kind), ["True", "False"] if "bool" in kind else ["1", "0"])
      for kind in ("Int64", "float64", "string", "category", "bool", "boolean", "bool[pyarrow]")),
    make("frames", DATED, {"text": ["a"], "label": ["2"]}, "the index of the frame is not read",
         "1 row left out: no label (row 1)"),
    *(make_series((kind, KINDS[kind]({"day": [f"{day:{form}}" for day in DAYS], "load": [*map(str, LOAD)]})),
                  "year first" if form[:2] == "%Y" else FIRST,
                  {"time": [str(datetime.strptime(f"{day:{form}}", form)) for day in DAYS], "value of load": LOAD},
                  f"time: 'day' ({found}); series: none; forecast: 'load'; not used: none")
      for form, found in FORMATS.items() for kind in ("a.csv ;", "a.jsonl", "a.parquet", "strings", "a dict")),
    make_series(FIRSTS, FIRST, "holds '01/02/2024' in line 3, expected 2024-02-01 (%d %m %Y) or 2024-01-02 (%m %d %Y); "
                "all its cells fit both, pass --time day --time-format FORMAT, or --time none"),
    make_series(FIRSTS, FIRST, STARTS, time="day", time_format="%d/%m/%Y"),
    make_series(MIXED, FIRST, "column 'day' holds '02/13/2024' in line 22, expected timestamps such as 20/01/2024"),
    make_series(MONTHS, "months", STARTS),
    make_series(NUMBERS, "months", COUNTS + "1, as times do; expected --time. Pass --time day"),
    make_series(NUMBERS, "months", STARTS, time="day", time_format="%Y%m"),
    make_series(YEARS, "months", COUNTS + "1, as times do; expected --time. Pass --time day if"),
    make_series(YEARS, "months", YEARS, time="day"),
    make_series(UNIX, "seconds", COUNTS + "3600, as times do; expected --time. Pass --time day --time-format unix"),
    make_series(UNIX, "seconds", HOURS, time="day", time_format="unix"),
    make_series([1000 * each for each in UNIX], "seconds", HOURS, time="day", time_format="unix-ms"),
    make_series([*ISO, "Total"], "totals", "column 'day' holds 'Total' in line 32, expected timestamps such as 2024"),
    make_series([*ISO, "Total"], "totals", {"value of load": [*LOAD, LOAD[0]]}, time="none"),
    make_series(WINTER, "zones", [f"{hour + timedelta(hours=1)}+01:00" for hour in HOURS]),
    make_series(WINTER[:9] + SUMMER[9:], "zones", [f"{hour}+00:00" for hour in HOURS]),
    make_series(TOKYO, "zones", {"time": [f"{each}+09:00" for each in NIGHTS], "value of load": LOAD}),
    make_series(ISO[::-1], "order", "timestamps are out of order: line 3 has 2024-02-17 00:00:00 after 2024-02-18"),
    make_series(ISO[::-1], "order", {"time": NIGHTS, "value of load": LOAD[::-1]}, sort=True),
    make_series(GAP, "order", "2 rows are missing, the first before row 10: 2024-02-01 00:00:00 comes after 2024-"),
    make_series(GAP, "order", {"time": NIGHTS, "value of load": pytest.approx(FILLED)}, interpolate=True),
    make_series(CITIES, "order", "comes twice, in row 0 and row 1; if they are of several series, pass --series"),
    make_series(CITIES, "order", TOWNS, series="city"),
    make_series(COSTS, "numbers", "1 cell has no number, the first in line 4; pass --interpolate"),
    make_series(COSTS, "numbers", {"value of load": [1.5, 1000, 499, -2, 8, 0]}, "not used: 'cost'", interpolate=True),
    make_series(COSTS, "numbers", "column 'cost' holds '1,5' in line 2, expected a number", target=("cost",)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{case.row}-{number}" for number, case in enumerate(CASES)])
def test_what_goes_in_comes_out_or_is_refused(tmp_path: Path, case: Case) -> None:
    source, options = case.source, dict(case.options)
    if isinstance(source, tuple):
        source = tmp_path / source[0].split(" ")[0]
        source.write_bytes(case.source[1].encode() if isinstance(case.source[1], str) else case.source[1])
    tasks: dict[str, Any] = {"dialogue": Reply, "source": Translate, "context": Forecast}
    task = next((tasks[name] for name in options if name in tasks), Classify)
    targets = task is not Classify or isinstance(case.out, str) or "label" in case.out
    with encoded_as(options.pop("encoding", None)):
        if isinstance(case.out, str):
            with pytest.raises(HeadwiseError, match=re.escape(case.out)) as error:
                task.read(source, task.options_type(**options), targets=targets)
            assert "\n" not in str(error.value)
            return
        data = task.read(source, task.options_type(**options), targets=targets)
    assert {n: [*map(str, cells)] if n == "time" else cells for n, cells in data.columns.items()} == case.out
    assert [said for said, note in zip(case.notes, data.left_out, strict=True) if said not in note] == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    rows = {"text": [f"{word} {row}" for row in range(9) for word in "ab"], "label": ["007", "NA"] * 9}
    (folder / "a.csv").write_bytes(separated(rows, ";").encode("utf-16"))
    words = "--model scratch --dim 8 --heads 2 --vocab-size 100 --epochs 1 --monitor-every 0 --encoding utf-16 --out"
    assert main(["train", "classify", str(folder / "a.csv"), *words.split(), str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.parametrize("out", ["out.csv", "out.tsv"])
@pytest.mark.parametrize(("sign", "encoding"), [(",", "utf-8-sig"), (";", "gb18030"), ("\t", "utf-16"), ("|", "utf-8")])
def test_predict_on_csv_keeps_each_cell(run: Run, trained: Path, sign: str, encoding: str, out: str) -> None:
    rows: dict[str, Any] = {"text": CELLS, "label": CELLS[::-1], "a b": [""] * len(CELLS)}
    Path("in.csv").write_bytes(separated(rows, sign).encode(encoding))
    assert run("predict", trained, "--file", "in.csv", "--out", out, "--chunk", "7", "--encoding", encoding).err == ""
    sep, text = ",\t"[out == "out.tsv"], Path(out).read_bytes().decode()
    names, *found = csv.reader(io.StringIO(text, newline=""), delimiter=sep)
    assert (names, [tuple(row[:3]) for row in found]) == ([*rows, *ADDED], [*zip(*rows.values(), strict=True)])


def test_predict_on_json_lines_keeps_each_value(run: Run, trained: Path) -> None:
    given: Any = [{"text": "a", "label": 2**70, "x": {"y": [1.5, None, True, "007"]}}, {"text": "b", "x": ["\r", "é"]}]
    Path("in.jsonl").write_text("\n".join(map(json.dumps, [*given, {"text": "c", "label": float("nan")}])))
    assert run("predict", trained, "--file", "in.jsonl", "--out", "out.jsonl", "--chunk", "1").err == ""
    found = [json.loads(line) for line in Path("out.jsonl").read_text("utf-8").splitlines()]
    assert [[*row][-4:] for row in found] == [ADDED] * 3
    null = {"label": None, "x": None}
    assert [{n: row[n] for n in ("text", *null)} for row in found] == [null | row for row in (*given, {"text": "c"})]


def test_predict_on_parquet_keeps_each_value_and_its_type(run: Run, trained: Path) -> None:
    table = pa.table({str(cells.type): cells for cells in TYPED.values()} | {"text": ["a"], "label": [b"\xff"]})
    table = pa.concat_tables([table, table.schema.empty_table().from_pylist([{}], table.schema)])
    Path("in.parquet").write_bytes(in_parquet(table))
    done = run("predict", trained, "--file", "in.parquet", "--out", "out.parquet", "--chunk", "1")
    assert done.err == "note: 1 row without a prediction: no text (row 2)\n"
    found = parquet.read_table("out.parquet")
    assert found.column_names == [*table.column_names, *ADDED]
    assert found.select(table.column_names).equals(table)
    Path("in.jsonl").write_text('{"text": "a", "label": "007", "x": 1}\n{"text": "b", "label": "NA", "x": "007"}\n')
    assert "classify on in.jsonl, 2 rows\n" in run("evaluate", trained, "in.jsonl").out
    said = "column 'x': Parquet has one type a column. Received: int, str; write JSON lines instead"
    refused(run("predict", trained, "--file", "in.jsonl", "--out", "a.parquet"), said)
    assert run("predict", trained, "--file", "in.jsonl", "--out", "answered.jsonl").code == 0


def test_the_command_says_how_dates_are_read_and_refuses_what_may_be_two(run: Run) -> None:
    words = ("--context", "4", "--horizon", "1", "--patch-length", "2", "--dim", "8", "--heads", "2", "--epochs", "1")
    Path("a.csv").write_text(separated({"day": [f"{day:%d.%m.%Y}" for day in DAYS], "load": LOAD}, ";"))
    done = run("train", "forecast", "a.csv", *words, "--out", "run")
    assert "note: columns of a.csv: time: 'day' (%d %m %Y); series: none; forecast: 'load'; not used: none" in done.err
    assert run("predict", "run", "a.csv").out.splitlines()[2].split()[:2] == ["2024-02-19", "00:00:00"]
    Path("a.csv").write_text(separated({"day": FIRSTS, "load": LOAD}, ";"))
    assert "all its cells fit both, pass --time day" in run("train", "forecast", "a.csv", *words).err


def read_documented(name: str, heading: str) -> list[tuple[str, list[list[str]]]]:
    """Return (what is bold, the code in each cell) for each row of the table under a heading."""
    text = (Path(__file__).parents[3] / "docs" / name).read_text("utf-8").split(f"### {heading}\n")[1].split("\n#")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [(row.split("**")[1], [re.findall("`([^`]+)`", cell) for cell in row.strip("|").split("|")]) for row in rows]


def test_the_documents_have_the_rows_of_these_cases() -> None:
    rows = dict(read_documented("train.md", "What goes in, and what comes out"))
    assert {name for name in rows if "`predict`" not in name} == {case.row for case in CASES}
    for name, (given, *others) in rows.items():
        cases = [case for case in CASES if case.row == name]
        options = [f"--{word.replace('_', '-')} {value}" for case in cases for word, value in case.options.items()]
        taken = f"{[case.source for case in cases]}{' '.join(options)}" if cases else Path(__file__).read_text("utf-8")
        assert [code for code in given if code not in taken] == []
        told = taken + "".join(f"{case.out}{case.notes}" for case in cases)
        assert [code for cell in others for code in cell if code not in told] == []
    sentences = "\n".join(read_catalogue("zh").values())
    for (_, chinese), english in zip(read_documented("zh/train.md", "读入什么，得到什么"), rows.values(), strict=True):
        assert chinese[0] == english[0]
        for code, other in zip(itertools.chain(*chinese[1:]), itertools.chain(*english[1:]), strict=True):
            words = re.findall(r"[\u4e00-\u9fff]{2,}", code.replace("行被略去", "被略去"))  # the unit is a value
            assert all(each in sentences for each in words) if words else code == other
