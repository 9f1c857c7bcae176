// Writes a workbook with live formulas in the browser: an overview, then one sheet a step, as headwise/worksheet/xlsx.py.

import { addressed, cell, isNumber, layOut, readable } from "./layout.js";
import { attributes, Look, STOPS } from "./look.js";
import { zipOf } from "./zip.js";

const SPREADSHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
const OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
const PACKAGE = "http://schemas.openxmlformats.org/package/2006";
const TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml";
const HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n';
const OVERVIEW = "Overview";
const HOW =
  "You can change blue numbers, such as a 1 of the mask to 0: all later steps are recalculated. Black numbers are " +
  "formulas: click on a cell to see its own. Every matrix is a named range. Above each matrix its formula is written " +
  "with names: X[i,j] is the cell of X in the same row and column, X[i,:] the same row, X[:,j] the same column.";
const GIVEN = ["input", "parameter", "option", "positions", "mask"]; // kinds of numbers that the reader may change
const [NUMBER_WIDTH, LABEL_WIDTH, LONGEST_LABEL] = [8.5, 9, 26];
const LEAST_COLUMNS = 9; // so that a sentence fits on the narrowest sheet

// steps: as layOut takes them. Returns a Blob.
export function bookOf({ title, about, steps }) {
  const look = new Look();
  const layouts = layOut(steps);
  const places = new Map(layouts.flatMap((each) => each.places).map((place) => [place.matrix.name, place]));
  const sheets = [overviewOf({ title, about, layouts }, look)];
  layouts.forEach((layout, number) => sheets.push(sheetOf(layout, [layouts[number - 1], layouts[number + 1]], places, look)));
  const names = [OVERVIEW, ...layouts.map(({ name }) => name)];
  const listed = names.map((name, i) => `<sheet name="${escaped(name)}" sheetId="${i + 1}" r:id="rId${i + 1}"/>`);
  const defined = [...places].map(([name, place]) => `<definedName name="${name}">${escaped(place.absolute)}</definedName>`);
  const related = (type, target, i) => `<Relationship Id="rId${i}" Type="${OFFICE}/${type}" Target="${target}"/>`;
  const pages = sheets.map((_, i) => related("worksheet", `worksheets/sheet${i + 1}.xml`, i + 1));
  const override = (path, type) => `<Override PartName="/${path}" ContentType="${TYPE}.${type}+xml"/>`;
  const files = [
    ["[Content_Types].xml", `<Types xmlns="${PACKAGE}/content-types"><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>${
      override("xl/workbook.xml", "sheet.main")}${override("xl/styles.xml", "styles")}${
      sheets.map((_, i) => override(`xl/worksheets/sheet${i + 1}.xml`, "worksheet")).join("")}</Types>`],
    ["_rels/.rels", `<Relationships xmlns="${PACKAGE}/relationships">${related("officeDocument", "xl/workbook.xml", 1)}</Relationships>`],
    ["xl/workbook.xml", `<workbook xmlns="${SPREADSHEET}" xmlns:r="${OFFICE}"><sheets>${listed.join("")}</sheets>` +
      `<definedNames>${defined.sort().join("")}</definedNames><calcPr fullCalcOnLoad="1"/></workbook>`],
    ["xl/_rels/workbook.xml.rels", `<Relationships xmlns="${PACKAGE}/relationships">${pages.join("")}${
      related("styles", "styles.xml", sheets.length + 1)}</Relationships>`],
    ["xl/styles.xml", look.xml],
    ...sheets.map((xml, i) => [`xl/worksheets/sheet${i + 1}.xml`, xml]),
  ];
  return new Blob(zipOf(files.map(([path, xml]) => [path, HEAD + xml])), { type: `${TYPE}.sheet` });
}

// A sheet that is being filled.
class Page {
  constructor(look) {
    Object.assign(this, { look, rows: new Map(), heights: new Map(), merged: [], links: [], rules: [], checks: [] });
  }

  put(row, col, xml) {
    if (!this.rows.has(row)) this.rows.set(row, new Map());
    this.rows.get(row).set(col, xml);
  }

  text(row, col, text, style, until = col) {
    const s = this.look.of(style, null, text);
    this.put(row, col, `<c r="${cell(row, col)}" s="${s}" t="inlineStr"><is><t xml:space="preserve">${escaped(text)}</t></is></c>`);
    for (let next = col + 1; next <= until; next++) this.put(row, next, `<c r="${cell(row, next)}" s="${s}"/>`);
    if (until > col) this.merged.push(`${cell(row, col)}:${cell(row, until)}`);
  }

  number(row, col, value, style, digits, formula = null) {
    const known = formula === null ? "" : `<f>${escaped(formula)}</f>`;
    const [type, shown] = Number.isFinite(value) ? ["", value] : [' t="str"', "−∞"];
    this.put(row, col, `<c r="${cell(row, col)}" s="${this.look.of(style, digits)}"${type}>${known}<v>${shown}</v></c>`);
  }

  link(row, col, text, target) {
    this.text(row, col, text, "link");
    this.links.push(`<hyperlink ref="${cell(row, col)}" location="${escaped(`'${target}'!A1`)}" display="${escaped(text)}"/>`);
  }

  // widths: of the columns, in digits. frozen: the first cell that scrolls.
  xml(widths, frozen) {
    const cols = widths.map((width, i) => `<col min="${i + 1}" max="${i + 1}" width="${width}" customWidth="1"/>`);
    const [, column, row] = /^([A-Z]+)(\d+)$/.exec(frozen);
    const [x, y] = [column.charCodeAt(0) - 65, row - 1];
    const pane = `<pane${attributes({ xSplit: x || null, ySplit: y })} topLeftCell="${frozen}" activePane="${x ? "bottomRight" : "bottomLeft"}" state="frozen"/>`;
    const lines = [...this.rows].sort(([a], [b]) => a - b).map(([number, cells]) => {
      const height = this.heights.get(number);
      const inside = [...cells].sort(([a], [b]) => a - b).map(([, each]) => each).join("");
      return `<row r="${number}"${height ? ` ht="${height}" customHeight="1"` : ""}>${inside}</row>`;
    });
    const some = (name, parts) => (parts.length ? `<${name} count="${parts.length}">${parts.join("")}</${name}>` : "");
    return [
      `<worksheet xmlns="${SPREADSHEET}"><sheetPr><pageSetUpPr fitToPage="1"/></sheetPr>`,
      `<sheetViews><sheetView showGridLines="0" workbookViewId="0">${pane}</sheetView></sheetViews>`,
      `<cols>${cols.join("")}</cols><sheetData>${lines.join("")}</sheetData>`,
      some("mergeCells", this.merged.map((area) => `<mergeCell ref="${area}"/>`)),
      this.rules.join(""),
      some("dataValidations", this.checks),
      this.links.length ? `<hyperlinks>${this.links.join("")}</hyperlinks>` : "",
      '<pageSetup paperSize="9" orientation="landscape" fitToWidth="1" fitToHeight="0"/></worksheet>',
    ].join("");
  }
}

// ---- one step

function sheetOf({ name, step, places: own }, [before, after], places, look) {
  const page = new Page(look);
  const widths = widthsOf(own);
  const columns = widths.length;
  page.text(1, 1, step.title, "title", columns);
  page.text(2, 1, step.sentence, "sentence", columns);
  page.text(3, 1, step.symbols, "symbols", columns);
  page.heights.set(1, 26).set(2, 16 * linesOf(step.sentence, 1.05 * sum(widths)) + 2);
  const targets = [[OVERVIEW, OVERVIEW], before && [`← ${before.name}`, before.name], after && [`${after.name} →`, after.name]];
  targets.filter(Boolean).forEach(([text, target], i) => page.link(4, [1, 3, 7][i], text, target));
  for (const place of own) {
    matrixOn(page, place, name, places);
    if (isNumber(place.matrix)) continue;
    const room = sum(widths.slice(place.col - 1, place.col + place.matrix.cols.labels.length));
    const height = 12.5 * linesOf(originOf(place.matrix), 0.95 * room) + 2;
    page.heights.set(place.row + 1, Math.max(height, page.heights.get(place.row + 1) ?? 0));
  }
  return page.xml(widths, "B5");
}

// The name, size, formula, labels and cells of a matrix.
function matrixOn(page, place, sheet, places) {
  const { matrix, row, col } = place;
  const { rows, cols, formula, kind, digits } = matrix;
  page.text(row, col, nameOf(matrix), "name");
  if (isNumber(matrix)) page.text(row, col + 2, originOf(matrix), "aside");
  else {
    page.text(row + 1, col, originOf(matrix), "origin", col + cols.labels.length);
    page.text(row + 2, col, cornerOf(matrix), "corner");
  }
  cols.labels.forEach((label, j) => label && page.text(row + 2, col + 1 + j, label, "column"));
  const style = GIVEN.includes(kind) ? "given" : kind === "output" ? "output" : "number";
  rows.labels.forEach((label, i) => {
    if (label) page.text(place.at(i + 1, 1)[0], col, label, "row");
    cols.labels.forEach((_, j) => {
      const text = formula && addressed(formula, i + 1, j + 1, sheet, places);
      page.number(...place.at(i + 1, j + 1), matrix.value(i, j), style, digits, text);
    });
  });
  const area = place.address(null, null);
  const rule = (inside) => page.rules.push(`<conditionalFormatting sqref="${area}">${inside}</conditionalFormatting>`);
  if (kind === "weights") {
    const places = [0, 0.5, 1].map((number) => `<cfvo type="num" val="${number}"/>`);
    const colours = STOPS.map((colour) => `<color rgb="FF${colour}"/>`);
    rule(`<cfRule type="colorScale" priority="1"><colorScale>${[...places, ...colours].join("")}</colorScale></cfRule>`);
  } else if (kind === "mask") {
    rule('<cfRule type="cellIs" dxfId="0" priority="1" operator="equal"><formula>0</formula></cfRule>');
    page.checks.push(`<dataValidation type="whole" errorTitle="Mask" error="1 = may attend, 0 = may not" showErrorMessage="1" sqref="${area}"><formula1>0</formula1><formula2>1</formula2></dataValidation>`);
  } else if (formula?.includes("−∞")) {
    rule(`<cfRule type="expression" dxfId="1" priority="1"><formula>ISTEXT(${place.address(1, 1)})</formula></cfRule>`);
  }
}

// ---- the first sheet

function overviewOf({ title, about, layouts }, look) {
  const page = new Page(look);
  [[title, "title", 26], [about, "sentence", 18], [HOW, "sentence", 36]].forEach(([text, style, height], i) => {
    page.text(i + 1, 1, text, style, 3);
    page.heights.set(i + 1, height);
  });
  ["Step", "What it does", "In symbols"].forEach((text, i) => page.text(5, i + 1, text, "head"));
  layouts.forEach(({ name, step: { sentence, symbols } }, i) => {
    const row = 6 + i;
    page.link(row, 1, name, name);
    page.text(row, 2, sentence, "text");
    page.text(row, 3, symbols, "symbols");
    page.heights.set(row, 15 * Math.max(linesOf(sentence, 76), linesOf(symbols, 44), linesOf(name, 33)) + 3);
  });
  return page.xml([34, 60, 40], "A6");
}

// ---- texts and widths

function originOf({ formula, kind }) {
  if (formula) return `= ${readable(formula)}`;
  return kind === "mask" ? "1 = may, 0 = may not: change it" : "change it";
}

const cornerOf = ({ rows, cols }) => `${rows.letter} ╲ ${cols.letter}`.replace(/^[ ╲]+|[ ╲]+$/g, "");

function nameOf(matrix) {
  if (isNumber(matrix)) return matrix.name;
  const { name, rows, cols } = matrix;
  const size = `[${rows.letter || 1} × ${cols.letter || 1}]`;
  return cols.labels.length === 1 ? `${name}  ${size}` : `${name}  ${size} = [${rows.labels.length} × ${cols.labels.length}]`;
}

// The width of each column: labels, numbers and names of single numbers fit.
function widthsOf(places) {
  const widths = [];
  const widen = (col, wanted) => (widths[col] = Math.max(widths[col] ?? 0, Math.min(LONGEST_LABEL, wanted)));
  for (const { matrix, col } of places) {
    const { rows, cols, digits } = matrix;
    const texts = isNumber(matrix) ? [matrix.name] : [...rows.labels, cornerOf(matrix)];
    widen(col - 1, Math.max(LABEL_WIDTH, ...texts.map((text) => 1.1 * wide(text) + 2)));
    cols.labels.forEach((label, j) => {
      const longest = rows.labels.reduce((most, _, i) => Math.max(most, matrix.value(i, j).toFixed(digits).length), wide(label));
      widen(col + j, Math.max(NUMBER_WIDTH, 1.1 * longest + 2));
    });
  }
  for (let i = 0; i < Math.max(widths.length, LEAST_COLUMNS); i++) widths[i] ??= NUMBER_WIDTH;
  return widths;
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const linesOf = (text, room) => Math.ceil(wide(text) / Math.max(1, Math.floor(room)));
const wide = (text) => [...text].reduce((count, letter) => count + (/[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60]/.test(letter) ? 2 : 1), 0);

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

// Text for XML, which has no other control characters than these.
function escaped(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\ufffe\uffff]|\p{Surrogate}/gu, "\ufffd").replace(/[&<>"]/g, (letter) => ENTITIES[letter]);
}

