// The page: which text, layer, head and cell are looked at, and everything around the large map.

const THUMB = 48; // a thumbnail has at most this many cells a side
const MANY = 64; // in a text of more tokens most weights are small: it opens on a scale that shows them

const $ = (id) => document.getElementById(id);
const element = (name, properties, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

const source = embeddedSource(document);
// What is looked at; layer is a place in text.layers.
const at = { text: 0, layer: 0, head: 0, scale: source.texts[0].labels.length > MANY ? "root" : "linear" };
const map = new HeatMap($("map"), showCell);
const thumbs = new Map(); // canvas -> { layer, head, weights }
const waiting = new Set(); // thumbnails that are in sight and not yet computed
const sight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting && !thumbs.get(target)?.weights) waiting.add(target);
    else waiting.delete(target);
  }
  fillThumbs();
});

const text = () => source.texts[at.text];
const layer = () => text().layers[at.layer];

// What the map and the read-out ask of the source, for the head that is looked at now.
function tileOfHead() {
  const [asked, { layer: name }, { head }] = [text(), layer(), at];
  return (rows, cols, height, width) => asked.tile(name, head, rows, cols, height, width, "max");
}

function showText(number) {
  at.text = number;
  at.layer = Math.min(at.layer, text().layers.length - 1);
  const { labels, layers, cut } = text();
  const heads = Math.max(...layers.map((each) => each.heads));
  $("model").textContent = [
    `${layers.length} ${layers.length === 1 ? "layer" : "layers"} × ${heads} heads`,
    `${labels.length} tokens${cut ? ` (${cut} more did not fit)` : ""}`,
    `weights within ${source.tolerance} of the model's`,
  ].join(" · ");
  $("masked").hidden = layers.every((each) => !each.planes);
  map.cursor = null;
  map.setText(labels, getComputedStyle(document.body).fontFamily);
  buildHeads(layers, heads);
  buildWords(text());
  showHead();
}

function showHead() {
  at.head = Math.min(at.head, layer().heads - 1);
  for (const [canvas, { layer: row, head }] of thumbs) {
    const on = row === at.layer && head === at.head;
    canvas.parentNode.setAttribute("aria-pressed", on);
    canvas.parentNode.tabIndex = on ? 0 : -1;
  }
  for (const label of $("heads").querySelectorAll("span")) {
    label.className = label.dataset.layer === String(at.layer) || label.dataset.head === String(at.head) ? "on" : "";
  }
  const name = `layer ${layer().layer}, head ${at.head}`;
  $("map").setAttribute("aria-label", `Attention of ${name}: arrow keys move from cell to cell`);
  map.setHead(tileOfHead()).then(showLegend);
  if (map.cursor) showCell(map.cursor.row, map.cursor.col);
  else showHint();
}

// ---- the cell in question: its weight, and the text shaded by its row

function showHint() {
  delete $("cell").dataset.weight;
  delete $("cell").dataset.cell;
  $("cell").replaceChildren(element("div", {}, "Point at a cell to read its weight", place()));
}

const place = () => element("div", { textContent: `layer ${layer().layer} · head ${at.head}` });

let asked = 0;
async function showCell(row, col) {
  const question = ++asked;
  const { labels } = text();
  const weights = await tileOfHead()([row, row + 1], [0, labels.length], 1, labels.length);
  if (question !== asked) return; // the pointer is elsewhere by now
  const weight = weights[col];
  const masked = Number.isNaN(weight);
  const name = (token) => element("bdi", { textContent: labels[token], title: labels[token] });
  $("cell").dataset.weight = weight || 0;
  $("cell").dataset.cell = `${row},${col}`;
  $("cell").replaceChildren(
    element("b", { textContent: masked ? "masked" : digits(weight) }),
    element("div", {}, name(row), ` ${row} → `, name(col), ` ${col}`, place()),
  );
  const top = largest(weights);
  for (const [i, word] of words.entries()) {
    const { fill, ink } = css(weights[i] || 0, top, at.scale, style.table);
    const plain = Number.isNaN(weights[i]) || along(weights[i], top, at.scale) < 0.02;
    word.style.backgroundColor = plain ? "" : fill;
    word.style.color = plain ? "" : ink;
    word.classList.toggle("from", i === row);
  }
}

const digits = (weight) => (weight >= 1e-4 || weight === 0 ? weight.toPrecision(4) : weight.toExponential(3));

let words = [];
function buildWords({ pieces, gaps, special, unknown }) {
  words = pieces.map((piece, i) => {
    const word = element("span", { textContent: piece });
    word.classList.toggle("special", special[i]);
    word.classList.toggle("unknown", Boolean(unknown[i]));
    if (unknown[i]) word.title = "not in the vocabulary: the model reads [UNK]";
    word.addEventListener("pointerenter", () => {
      map.point(i, map.cursor?.col ?? i);
      map.reveal();
    });
    return word;
  });
  $("words").replaceChildren(...words.flatMap((word, i) => [gaps[i], word]));
}

// ---- the thumbnails

function buildHeads(layers, heads) {
  for (const canvas of thumbs.keys()) sight.unobserve(canvas);
  thumbs.clear();
  waiting.clear();
  const grid = $("heads");
  grid.style.gridTemplateColumns = `auto repeat(${heads}, minmax(22px, 1fr))`;
  grid.replaceChildren(element("span"));
  for (let head = 0; head < heads; head++) grid.append(mark("head", head, head));
  layers.forEach((each, row) => {
    grid.append(mark("layer", row, each.layer));
    for (let head = 0; head < heads; head++) grid.append(head < each.heads ? thumb(each.layer, row, head) : "");
  });
}

function mark(kind, place, name) {
  const label = element("span", { textContent: name, title: `${kind} ${name}` });
  label.dataset[kind] = place;
  return label;
}

function thumb(name, row, head) {
  const size = Math.min(text().labels.length, THUMB);
  const canvas = element("canvas", { width: size, height: size });
  const button = element("button", { title: `layer ${name}, head ${head}` }, canvas);
  button.setAttribute("aria-label", button.title);
  button.addEventListener("click", () => {
    Object.assign(at, { layer: row, head });
    showHead();
  });
  thumbs.set(canvas, { layer: row, head, weights: null });
  sight.observe(canvas);
  return button;
}

// The time that is left in an idle moment; Safari knows of none.
const whenIdle = window.requestIdleCallback ?? ((go) => setTimeout(() => go({ timeRemaining: () => 0 }), 4));
const idle = () => new Promise((go) => whenIdle(go, { timeout: 500 }));

let filling = false;
async function fillThumbs() {
  if (filling) return;
  filling = true;
  for (let moment = await idle(); waiting.size; ) {
    if (moment.timeRemaining() < 4) moment = await idle();
    const [canvas] = waiting;
    const facts = thumbs.get(canvas);
    waiting.delete(canvas);
    if (!facts) continue; // of a text that is no longer shown
    const { labels, layers } = text();
    const size = Math.min(labels.length, THUMB);
    const all = [0, labels.length];
    facts.weights = await text().tile(layers[facts.layer].layer, facts.head, all, all, size, size, "max");
    paintThumb(canvas, facts);
  }
  filling = false;
}

function paintThumb(canvas, { weights }) {
  if (!weights) return;
  const image = picture(weights, canvas.height, canvas.width, largest(weights), at.scale, style.table);
  canvas.getContext("2d").putImageData(image, 0, 0);
  canvas.parentNode.dataset.ready = "";
}

// ---- colours

const darkness = matchMedia("(prefers-color-scheme: dark)");
let style;

function restyle() {
  const value = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  style = { scale: at.scale, table: ramp(darkness.matches), hatch: hatch(value("--hatch"), value("--hatch-line")) };
  for (const name of ["paper", "ink", "faint", "accent"]) style[name] = value(`--${name}`);
  for (const button of document.querySelectorAll("[data-scale]")) {
    button.setAttribute("aria-pressed", button.dataset.scale === at.scale);
  }
  const { width } = $("ramp");
  const even = Float32Array.from({ length: width }, (_, i) => i);
  $("ramp").getContext("2d").putImageData(picture(even, 1, width, width - 1, "linear", style.table), 0, 0);
  map.recolour(style);
  for (const [canvas, facts] of thumbs) paintThumb(canvas, facts);
}

function hatch(fill, line) {
  const size = 6 * devicePixelRatio;
  const canvas = new OffscreenCanvas(size, size);
  const context = canvas.getContext("2d");
  context.fillStyle = fill;
  context.fillRect(0, 0, size, size);
  context.strokeStyle = line;
  context.lineWidth = devicePixelRatio;
  context.beginPath();
  for (const shift of [-size, 0, size]) {
    context.moveTo(shift - 1, size + 1);
    context.lineTo(shift + size + 1, -1);
  }
  context.stroke();
  return context.createPattern(canvas, "repeat");
}

function showLegend() {
  const tick = (t) => String(Number((map.top * SCALES[at.scale].back(t)).toPrecision(2)));
  const ticks = [(at.scale === "log" ? "≤ " : "") + tick(0), tick(0.5), tick(1)];
  $("ticks").replaceChildren(...ticks.map((textContent) => element("span", { textContent })));
}

function setScale(scale) {
  at.scale = scale;
  restyle();
  showLegend();
  if (map.cursor) showCell(map.cursor.row, map.cursor.col);
}

// ---- what a person does

const KEYS = {
  ArrowUp: () => map.step(-1, 0),
  ArrowDown: () => map.step(1, 0),
  ArrowLeft: () => map.step(0, -1),
  ArrowRight: () => map.step(0, 1),
  "[": () => turn("layer", -1, text().layers.length),
  "]": () => turn("layer", 1, text().layers.length),
  ",": () => turn("head", -1, layer().heads),
  ".": () => turn("head", 1, layer().heads),
  "+": () => map.zoom(1.5),
  "=": () => map.zoom(1.5),
  "-": () => map.zoom(1 / 1.5),
  0: () => map.reset(),
};

function turn(what, by, count) {
  at[what] = (at[what] + by + count) % count;
  showHead();
}

document.addEventListener("keydown", (event) => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select")) return;
  event.preventDefault();
  act();
});
$("in").addEventListener("click", KEYS["+"]);
$("out").addEventListener("click", KEYS["-"]);
$("fit").addEventListener("click", KEYS[0]);
for (const button of document.querySelectorAll("[data-scale]")) {
  button.addEventListener("click", () => setScale(button.dataset.scale));
}
darkness.addEventListener("change", restyle);

$("picker").hidden = source.texts.length < 2;
$("text").append(...source.texts.map(({ gaps, pieces, special }, i) => {
  const words = pieces.map((piece, j) => (special[j] ? "" : gaps[j] + piece)).join("").trim();
  return element("option", { value: i, textContent: words.length > 60 ? `${words.slice(0, 60)}…` : words });
}));
$("text").addEventListener("change", (event) => showText(Number(event.target.value)));
restyle();
showText(0);

// For tests, and for a curious reader's console.
window.headwise = { source, map, weight: (text, ...cell) => source.texts[text].weight(...cell) };
