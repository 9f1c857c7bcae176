"""Adds the results of formulas to a workbook: openpyxl writes only the formulas.

Without them, a program that shows a file but cannot calculate (a preview, a mail program, pandas) shows empty cells.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"

Results = Mapping[str, Mapping[str, float | str]]  # sheet, address -> the result of the formula there


def fill_in(path: Path, results: Results) -> None:
    """Write the results into the workbook at `path`."""
    out = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        parts = {part: name for name, part in _parts(old).items()}
        for item in old.infolist():
            data = old.read(item)
            found = results.get(parts.get(item.filename, ""))
            new.writestr(item, _filled(data, found) if found else data)
    path.write_bytes(out.getvalue())


def _parts(book: zipfile.ZipFile) -> dict[str, str]:
    """The file of each sheet, by the sheet's name."""
    sheets = ElementTree.fromstring(book.read("xl/workbook.xml")).iter(f"{{{MAIN}}}sheet")
    links = ElementTree.fromstring(book.read("xl/_rels/workbook.xml.rels")).iter(f"{{{PACKAGE}}}Relationship")
    targets = {link.attrib["Id"]: link.attrib["Target"] for link in links}
    found = {sheet.attrib["name"]: targets[sheet.attrib[f"{{{LINKS}}}id"]] for sheet in sheets}
    return {name: target.lstrip("/") if target.startswith("/") else f"xl/{target}" for name, target in found.items()}


def _filled(data: bytes, results: Mapping[str, float | str]) -> bytes:
    for prefix, uri in set(re.findall(rb'xmlns:?(\w*)="([^"]+)"', data)):
        ElementTree.register_namespace(prefix.decode(), uri.decode())
    tree = ElementTree.fromstring(data)
    for cell in tree.iter(f"{{{MAIN}}}c"):
        result = results.get(cell.attrib["r"])
        if result is None:
            continue
        value = cell.find(f"{{{MAIN}}}v")
        value = ElementTree.SubElement(cell, f"{{{MAIN}}}v") if value is None else value
        value.text = result if isinstance(result, str) else repr(result)
        # Otherwise the text would be read as an index of a shared string.
        if isinstance(result, str):
            cell.attrib["t"] = "str"
        else:
            cell.attrib.pop("t", None)
    return ElementTree.tostring(tree, encoding="UTF-8", xml_declaration=True)
