// Running text as a picture: the spans are drawn at their positions in the browser.

// Scripts whose letters join or are reordered.
const JOINED =
  /[\p{Script=Arabic}\p{Script=Syriac}\p{Script=Mongolian}\p{Script=Nko}\p{Script=Devanagari}\p{Script=Bengali}]/u;
const MARGIN = 12;

// blocks: elements with an optional h2 and one RunningText each; caption: the text above them.
export function textPicture(blocks, caption, style) {
  for (const block of blocks) block.classList.add("whole"); // lay out the hidden parts too
  const boxes = blocks.map((block) => block.getBoundingClientRect());
  const left = Math.min(...boxes.map((box) => box.left));
  const top = Math.min(...boxes.map((box) => box.top));
  const width = Math.ceil(Math.max(...boxes.map((box) => box.right)) - left);
  const head = caption.picture(width);
  const [dx, dy] = [MARGIN - left, MARGIN + head.height - top];
  const all = (what) => blocks.flatMap((block) => [...block.querySelectorAll(what)]);
  const parts = all("h2, .generated, .cut").map((each) => plainPart(each, dx, dy));
  const runs = all(".paragraph").flatMap((each) => runsOf(each, dx, dy, style));
  for (const block of blocks) block.classList.remove("whole");
  return {
    width: width + 2 * MARGIN,
    height: Math.ceil(Math.max(...boxes.map((box) => box.bottom)) - top + head.height + 2 * MARGIN),
    draw(context) {
      head.draw(context, MARGIN, MARGIN);
      context.textBaseline = "middle";
      for (const part of parts) drawText(context, part, part.text, part.x);
      for (const run of runs) drawRun(context, run, style);
    },
  };
}

function plainPart(node, dx, dy) {
  const box = node.getBoundingClientRect();
  const style = getComputedStyle(node);
  const place = { x: box.left + dx, y: box.top + dy + box.height / 2 };
  return { text: node.textContent, ...place, font: fontOf(style), ink: style.color };
}

// The pieces of a paragraph, in runs whose letters join, because these must be shaped together.
function runsOf(paragraph, dx, dy, style) {
  const runs = [];
  let touches = false;
  const { direction } = getComputedStyle(paragraph);
  for (const span of paragraph.children) {
    const computed = getComputedStyle(span);
    const { backgroundColor, color, paddingLeft } = computed;
    const font = fontOf(computed);
    const has = (name) => span.classList.contains(name);
    const fill = has("masked") ? style.hatch : backgroundColor === "rgba(0, 0, 0, 0)" ? null : backgroundColor;
    const frame = has("asked") && { begins: has("asked-first"), ends: has("asked-last") };
    const pad = parseFloat(paddingLeft);
    for (const { text, box } of piecesOf(span)) {
      const { width, height } = box;
      const place = { x: box.left + dx, y: box.top + dy + height / 2, width, height };
      const piece = { text, font, ink: color, fill, frame, direction, pad, ...place };
      const before = runs.at(-1);
      const joins = touches && JOINED.test(text) && Math.abs(before[0].y - piece.y) < 1 && before[0].font === font;
      if (joins) before.push(piece);
      else runs.push([piece]);
      touches = JOINED.test(text);
    }
  }
  return runs;
}

// A span is one piece, or one per line.
function piecesOf(span) {
  const boxes = span.getClientRects();
  const text = span.textContent;
  if (boxes.length === 1) return [{ text, box: boxes[0] }];
  const range = document.createRange();
  const found = [];
  let at = 0;
  for (const letter of text) {
    range.setStart(span.firstChild, at);
    range.setEnd(span.firstChild, (at += letter.length));
    const box = range.getBoundingClientRect();
    const last = found.at(-1);
    if (last && Math.abs(last.box.top - box.top) < 1) {
      const [left, right] = [Math.min(last.box.left, box.left), Math.max(last.box.right, box.right)];
      last.text += letter;
      last.box = { left, right, top: box.top, width: right - left, height: box.height };
    } else found.push({ text: letter, box });
  }
  return found;
}

function drawRun(context, run, style) {
  for (const piece of run) drawGround(context, piece);
  const text = run.map((piece) => piece.text).join("");
  const left = Math.min(...run.map((piece) => piece.x));
  if (run.length === 1) drawText(context, run[0], text, left + run[0].pad);
  for (const piece of run.length > 1 ? run : []) {
    context.save();
    context.beginPath();
    context.rect(piece.x, piece.y - piece.height, piece.width, 2 * piece.height);
    context.clip();
    drawText(context, piece, text, left);
    context.restore();
  }
  for (const piece of run) drawFrame(context, piece, style);
}

function drawGround(context, { fill, x, y, width, height }) {
  if (!fill) return;
  context.fillStyle = fill;
  context.fillRect(x, y - height / 2, width, height);
}

function drawFrame(context, { frame, x, y, width, height, direction }, style) {
  if (!frame) return;
  const top = y - height / 2;
  context.fillStyle = style.accent;
  for (const edge of [top - 2, top + height]) context.fillRect(x, edge, width, 2);
  const [left, right] = direction === "rtl" ? [frame.ends, frame.begins] : [frame.begins, frame.ends];
  if (left) context.fillRect(x - 2, top - 2, 2, height + 4);
  if (right) context.fillRect(x + width, top - 2, 2, height + 4);
}

function drawText(context, { font, ink, y, direction = "ltr" }, text, x) {
  context.font = font;
  context.fillStyle = ink;
  context.textAlign = "left";
  context.direction = direction;
  context.fillText(text, x, y);
}

const fontOf = ({ fontWeight, fontSize, fontFamily }) => `${fontWeight} ${fontSize} ${fontFamily}`;
