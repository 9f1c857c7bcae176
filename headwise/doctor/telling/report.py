"""A diagnosis as text for people: what was understood, found and not checked, and a conclusion.

Console().print(report(diagnosis))      or, as plain text:      print(as_text(diagnosis))
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from headwise.doctor.catalogue import CATALOGUE, links
from headwise.doctor.finding import Finding, Findings, Severity, Where
from headwise.language import Sentence, counted, join, named, printable, said
from headwise.tables import make_console, width

_STYLE: dict[Severity, str] = {"bug": "bold red", "risk": "bold yellow", "note": "bold cyan"}
_MANY = 3  # checks of one reason are listed one by one up to here
_NARROW = 78  # a terminal has at least so many columns
_LABEL_WIDTH = 8  # of "evidence", the widest


def report(diagnosis: Findings, *, notes: bool = False) -> RenderableType:
    """A diagnosis for rich to print. Notes are counted, or written like other findings if `notes` is True."""
    return Group(*_parts(diagnosis, notes))


def as_text(diagnosis: Findings, width: int = 100, *, notes: bool = False) -> str:
    """The same without colours or links."""
    return plain(report(diagnosis, notes=notes), width)


def plain(found: RenderableType, width: int = 100) -> str:
    """What rich prints, as plain text."""
    out = io.StringIO()
    make_console(file=out, width=width, color_system=None, legacy_windows=False, emoji=False).print(found)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def line(diagnosis: Findings, name: str, ignored: Collection[str] = ()) -> str:
    """ "my_model.py:A: 2 bugs: wrong-scale, causal-leak (0.8 s)"; findings that are ignored do not count."""
    return printable(f"{name}: {' '.join(_verdict(diagnosis, ignored).split())} ({diagnosis.seconds:.1f} s)")


def _verdict(diagnosis: Findings, ignored: Collection[str]) -> str:
    names: dict[Severity, list[str]] = {"bug": [], "risk": []}
    for finding in diagnosis.findings:
        if finding.name not in ignored and finding.severity in names:
            names[finding.severity].append(finding.name)
    told = [] if names["bug"] or diagnosis.not_examined else [said("healthy")]
    for severity, found in names.items():
        if found:
            told.append(
                said("{counted}: {names}", counted=counted(len(found), severity), names=", ".join(dict.fromkeys(found)))
            )
    if left := dict.fromkeys(x.name for x in diagnosis.findings if x.name in ignored):
        told.append(said("ignored: {left}", left=", ".join(left)))
    if diagnosis.not_examined:
        told.append(said("not examined: {not_examined}", not_examined=diagnosis.not_examined))
    return said("; ").join(told)


def conclusion(diagnosis: Findings) -> str:
    """What it all comes to, in a sentence; without notes."""
    graver = [x for x in diagnosis.findings if x.severity != "note"]
    found = counts(graver)
    if diagnosis.bugs:
        first = diagnosis.bugs[0]
        name = printable(first.name)
        if first.where:
            name = Sentence("{name} at {where}").format(name=name, where=printable(str(first.where)))
        if len(graver) > 1:
            return said("{counted}. Fix {name} first, then run the doctor again.", counted=found, name=name)
        return said("{counted}. Fix {name}, then run the doctor again.", counted=found, name=name)
    if diagnosis.not_examined:
        return said("Not examined: say how it is called, and run the doctor again.")
    if not diagnosis.understood:
        nothing = Sentence("No bug was found, but nothing was understood either")
        return said("{told}.", told=join((nothing, found), "; ") if graver else nothing)
    if graver:
        rest = (
            Sentence(" {checks} could not be made.").format(checks=counted(len(diagnosis.unchecked), "check"))
            if diagnosis.limited
            else ""
        )
        return said("No bug; {counted}.{rest}", counted=found, rest=rest)
    if diagnosis.unchecked:
        return said(
            "No bug and no risk was found, but {plural} could not be made.",
            plural=counted(len(diagnosis.unchecked), "check"),
        )
    return said("Healthy: no bug, no risk.")


def counts(findings: Sequence[Finding]) -> Sentence:
    """ "2 bugs, 1 risk"; notes do not count."""
    numbers = {severity: sum(x.severity == severity for x in findings) for severity in ("bug", "risk")}
    return join(counted(count, severity) for severity, count in numbers.items() if count) or Sentence("nothing")


def indented(lines: Iterable[str], style: str = "") -> Iterator[RenderableType]:
    """Each of the lines, two columns further right."""
    for line in lines:
        yield Padding(Text(printable(said(line)), style=style), (0, 0, 0, 2))


def _parts(diagnosis: Findings, notes: bool) -> Iterator[RenderableType]:
    title = Text(printable(diagnosis.subject), style="bold")
    if diagnosis.where:
        title.append(f"  {printable(str(diagnosis.where))}", style="not bold dim")
    yield title
    yield from indented(diagnosis.understood)
    if diagnosis.limited:
        yield from indented([diagnosis.evidence])
    for finding in (x for x in diagnosis.findings if notes or x.severity != "note"):
        yield Text()
        yield from _finding(finding)
    if diagnosis.not_examined:
        yield Text()
        yield Text(said("not examined"), style=_STYLE["risk"])
        yield from indented([diagnosis.not_examined])
    if diagnosis.unchecked:
        yield Text()
        yield Text(said("not checked"), style="bold dim")
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column()
        for check, why in _together(diagnosis.unchecked):
            table.add_row(Text(f"  {printable(check)}", style="dim"), Text(printable(why), style="dim"))
        yield table
    yield Text()
    worrying = any(x.severity == "risk" for x in diagnosis.findings) or not diagnosis.understood
    style = _STYLE["bug"] if diagnosis.bugs else _STYLE["risk"] if worrying else "bold green"
    last = Text(conclusion(diagnosis), style=style)
    if diagnosis.notes and not notes:
        told = said("{counted}: {names}", counted=counted(len(diagnosis.notes), "note"), names="--notes")
        between = "  " if width(last.plain) + width(told) < _NARROW else "\n"
        last.append(f"{between}{told}", style="not bold dim")
    yield last


def _together(unchecked: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The checks and the reasons; many checks of one reason in one row."""
    by_reason: dict[str, list[str]] = {}
    for check, why in sorted(unchecked.items()):
        by_reason.setdefault(why, []).append(check)
    for why, alike in by_reason.items():
        if len(alike) > _MANY:
            names = ", ".join(map(named, alike))
            yield said("{count} checks", count=len(alike)), said("{why}: {names}", why=why, names=names)
        else:
            yield from ((said(check) if " " in check else named(check), said(why)) for check in alike)


def _finding(finding: Finding) -> Iterator[RenderableType]:
    head = Text(said(finding.severity), style=_STYLE[finding.severity])
    head.append(f"  {printable(finding.name)}", style="bold")
    entry = CATALOGUE.get(finding.name)
    if entry:
        head.append(f"  {said(entry.title)}", style="not bold")
    yield head
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=_LABEL_WIDTH + 2)
    table.add_column(overflow="fold")
    for label, shown in (
        ("evidence", Text(printable(said(finding.evidence)))),
        ("where", _where(finding.where)),
        ("fix", Text(printable(said(finding.fix)))),
        ("see", _sources(finding.sources)),
    ):
        if shown:
            table.add_row(Text(f"  {said(label)}", style="dim"), shown)
    yield table


def _where(where: Where | None) -> Text:
    if where is None:
        return Text()
    shown = Text(printable(str(where)), style="underline")
    if where.code:
        shown.append(f"\n    {printable(where.code)}", style="not underline italic")
    return shown


def _sources(sources: Sequence[str]) -> Text:
    shown = []
    for source in sources:
        pieces = [
            Text(printable(text), style=Style(link=address) if address else "") for text, address in links(source)
        ]
        shown.append(Text(" ").join(pieces))
    return Text(", ").join(shown)
