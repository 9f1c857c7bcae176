// The look of a workbook's cells: as headwise/worksheet/look.py and colour.py.

const [FAINT, GIVEN, GROUND, HEAD, BOX] = ["6B6773", "1D4ED8", "EEF4FF", "F1F0F4", "DDDBE2"];
const FORBIDDEN = "E4E3E7";
export const STOPS = ["FFFFFF", "FDD89B", "F07F3C"]; // the colours of the weights 0, ½ and 1

const label = { size: 10, bold: true, ground: HEAD, box: true };
const number = { size: 10, align: "right", box: true };
const STYLES = {
  plain: { size: 11 },
  title: { size: 18, bold: true, vertical: "center" },
  sentence: { size: 11, wrap: true },
  symbols: { size: 11, italic: true, colour: FAINT, wrap: true },
  link: { size: 10, underline: true, colour: GIVEN },
  name: { size: 11, bold: true },
  aside: { size: 9, italic: true, colour: FAINT },
  origin: { size: 9, italic: true, colour: FAINT, wrap: true },
  corner: { size: 9, colour: FAINT, align: "center", ground: HEAD, box: true },
  column: { ...label, align: "center" },
  row: { ...label, align: "right" },
  head: { ...label, size: 11 },
  text: { size: 10, wrap: true },
  given: { ...number, colour: GIVEN, ground: GROUND },
  number,
  output: { ...number, bold: true },
};

// Collects the styles that cells ask for, and writes them.
export class Look {
  constructor() {
    this.known = new Map();
    this.of("plain");
  }

  // The index of a style; digits: of numbers, after the point. text: it may look like a formula, but is text.
  of(style, digits = null, text = "") {
    const quoted = /^[=+\-@]/.test(text);
    const key = [style, digits, quoted].join();
    if (!this.known.has(key)) this.known.set(key, { ...STYLES[style], digits, quoted });
    return [...this.known.keys()].indexOf(key);
  }

  get xml() {
    const all = [...this.known.values()];
    const fonts = all.map(({ size, bold, italic, underline, colour }) => {
      const signs = `${bold ? "<b/>" : ""}${italic ? "<i/>" : ""}${underline ? "<u/>" : ""}`;
      return `<font>${signs}<sz val="${size}"/>${colour ? `<color rgb="FF${colour}"/>` : ""}<name val="Calibri"/></font>`;
    });
    const solid = (colour) => `<fill><patternFill patternType="solid"><fgColor rgb="FF${colour}"/></patternFill></fill>`;
    const grounds = all.map(({ ground }) => (ground ? solid(ground) : "<fill><patternFill/></fill>"));
    const side = (name) => `<${name} style="thin"><color rgb="FF${BOX}"/></${name}>`;
    const box = `<border>${["left", "right", "top", "bottom"].map(side).join("")}</border>`;
    const formats = [...new Set(all.map(({ digits }) => digits).filter((digits) => digits !== null))];
    const cells = all.map(({ align, vertical, wrap, box: boxed, digits, quoted }, i) => {
      const format = digits === null ? 0 : 164 + formats.indexOf(digits);
      const placed = attributes({ horizontal: align, vertical: vertical ?? (wrap ? "top" : null), wrapText: wrap ? 1 : null });
      const applied = `applyNumberFormat="1" applyFont="1" applyFill="1" applyBorder="1" applyAlignment="1"`;
      const quote = quoted ? ' quotePrefix="1"' : "";
      return `<xf numFmtId="${format}" fontId="${i}" fillId="${i + 2}" borderId="${boxed ? 1 : 0}" xfId="0"${quote} ${applied}><alignment${placed}/></xf>`;
    });
    const code = (digits) => (digits ? `0.${"0".repeat(digits)}` : "0");
    const counted = (name, parts) => `<${name} count="${parts.length}">${parts.join("")}</${name}>`;
    const grey = `<fill><patternFill><bgColor rgb="FF${FORBIDDEN}"/></patternFill></fill>`;
    return [
      '<styleSheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">',
      counted("numFmts", formats.map((digits, i) => `<numFmt numFmtId="${164 + i}" formatCode="${code(digits)}"/>`)),
      counted("fonts", fonts),
      counted("fills", ["<fill><patternFill/></fill>", '<fill><patternFill patternType="gray125"/></fill>', ...grounds]),
      counted("borders", ["<border/>", box]),
      '<cellStyleXfs count="1"><xf/></cellStyleXfs>',
      counted("cellXfs", cells),
      '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles>',
      counted("dxfs", [`<dxf>${grey}</dxf>`, `<dxf><font><color rgb="FF${FAINT}"/></font>${grey}</dxf>`]),
      "</styleSheet>",
    ].join("");
  }
}

export const attributes = (given) =>
  Object.entries(given).map(([name, value]) => (value === null || value === undefined ? "" : ` ${name}="${value}"`)).join("");
