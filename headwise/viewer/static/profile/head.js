// The page of one head: its numbers, histograms, classes of tokens, pairs, and its most typical texts.

import { button } from "../shell/controls.js";
import { element } from "../shell/element.js";
import { bars, rounded, share } from "./charts.js";
import { exampleOf } from "./examples.js";
import { say } from "../words.js";

export class HeadPage {
  constructor(app, head) {
    this.app = app;
    this.head = head;
    const { facts } = app;
    this.back = element("a", { className: "plain" }, element("span", { textContent: say("‹ All heads (Esc)") }));
    this.before = button({ icon: "left" }, say("The head before (←)"), () => this.step(-1));
    this.after = button({ icon: "right" }, say("The next head (→)"), () => this.step(1));
    this.title = element("h2", { tabIndex: -1, textContent: say("Layer {layer} · head {head}", { layer: head.layer, head: head.head }) });
    const path = element("bdi", { className: "path", textContent: facts.layers[head.layer].name });
    this.element = element(
      "article",
      { className: "profile-head" },
      element("div", { className: "profile-bar" }, this.back, this.before, this.after),
      element("div", { className: "naming" }, this.title, path),
      element("p", { className: "does" }, element("b", { textContent: say(head.kind) }), " ",
        say("{parts}.", { parts: say("{what}: {why}", { what: share(head.score), why: say(facts.kinds[head.kind]) }) })),
      section(say("The texts in which it is most itself"), say(EXAMPLES), ...head.examples.map((each, i) =>
        exampleOf(each, i, head, facts))),
      element("div", { className: "columns" },
        section(say("Where it looks: relative position"), say(POSITIONS), positions(head, facts)),
        section(say("What it looks at: classes of tokens"), say(CLASSES), classes(head, facts)),
        section(say("Strongest pairs of tokens"), pairsSaid(head), pairs(head)),
        section(say("Patterns"), "", patterns(head, facts))),
      section(say("Distributions over all queries"), say("Each bar counts queries. The last has what lies above, too."),
        histograms(head, facts)),
      section(say("From class to class"), say("The mean weight of the queries of a class (rows) on each class of keys."),
        matrix(head, facts)),
    );
  }

  step(by) {
    const { heads } = this.app.facts;
    const next = heads[this.head.place + by];
    if (next) this.app.set({ head: next.name });
  }

  update() {
    const { heads } = this.app.facts;
    this.back.href = this.app.address({ head: null });
    this.before.disabled = this.head.place === 0;
    this.after.disabled = this.head.place === heads.length - 1;
  }
}

const EXAMPLES =
  "The stronger its colour, the more weight a token gets from the query, which is outlined. Ordered by A log(A n): what the " +
  "largest weight A on another token adds to the divergence from even attention over n keys. Each has another pair.";
const POSITIONS = "The mean weight of a query on tokens of the text, by the position of the key less its own.";
const CLASSES = "The mean weight of a query; the line marks what even attention would give.";

function section(title, about, ...content) {
  const said = about ? [element("p", { className: "about", textContent: about })] : [];
  return element("section", {}, element("h3", { textContent: title }), ...said, ...content);
}

function positions(head, { offsets, self }) {
  const listed = offsets.map((offset, i) => [offset, head.offsets[i]]).sort((a, b) => b[1] - a[1]).slice(0, 3);
  const said = listed.map(([offset, weight]) => `${offset}: ${share(weight)}`).join(say(", "));
  const axis = [say("farther"), "−8", say("itself"), "+8", say("farther")].map((textContent) => element("small", { textContent }));
  return element("figure", { className: "positions" },
    bars(head.offsets, say("Weight by relative position. Most: {places}", { places: said }), { marked: self }),
    element("span", { className: "axis", ariaHidden: "true" }, ...axis),
    element("figcaption", { textContent: say("Most: {places}.", { places: said }) }));
}

function classes(head, facts) {
  const most = Math.max(...head.classes, ...facts.even, 1e-9);
  const rows = facts.classes.map((name, i) => {
    const bar = element("i", { className: "part", ariaHidden: "true" });
    bar.style.setProperty("--part", `${(head.classes[i] / most) * 100}%`);
    bar.style.setProperty("--even", `${(facts.even[i] / most) * 100}%`);
    return row(say(name), element("td", { className: "wide" }, bar), share(head.classes[i]), share(facts.even[i]));
  });
  return table([say("class"), "", say("weight"), say("if even")], rows);
}

function pairsSaid({ error }) {
  const about = say("The weight of all queries whose largest weight on another token of the text was on that one.");
  return error ? `${about} ${say("Each may have up to {n} more.", { n: rounded(Math.ceil(100 * error) / 100) })}` : about;
}

function pairs(head) {
  if (!head.pairs.length) return element("p", { textContent: say("It attends to no other token of the text.") });
  const most = head.pairs[0][2];
  const rows = head.pairs.map(([query, key, weight]) => {
    const bar = element("i", { className: "part", ariaHidden: "true" });
    bar.style.setProperty("--part", `${(weight / most) * 100}%`);
    return row(`${query} → ${key}`, element("td", { className: "wide" }, bar), rounded(weight));
  });
  return element("div", { className: "scrolls", tabIndex: 0, role: "region", ariaLabel: say("Pairs") },
    table([say("query → key"), "", say("weight")], rows));
}

function patterns(head, facts) {
  const rows = Object.entries(facts.patterns).map(([name, sentence]) => {
    const made = row(say(name.replaceAll("_", " ")), share(head.patterns[name]));
    const n = head.supports[name];
    made.title = n === undefined ? say(sentence) : `${say(sentence)} ${say("Queries: {n}.", { n })}`;
    return made;
  });
  const means = facts.measures.map(({ name, unit, sentence }) => {
    const said = unit === "share" ? share(head.means[name]) : `${rounded(head.means[name])} ${say(unit)}`;
    const made = row(say(name.replaceAll("_", " ")), said);
    made.title = say(sentence);
    return made;
  });
  return table(["", say("mean")], [...rows, ...means]);
}

function histograms(head, { measures }) {
  const charts = measures.map(({ name, unit, edges }, i) => {
    const counts = head.histograms[i];
    const place = counts.indexOf(Math.max(...counts));
    const range = { low: rounded(edges[place]), high: rounded(edges[place + 1]), unit: say(unit) };
    const said = say("the tallest bar is {low} to {high} {unit}", range);
    const title = say(name.replaceAll("_", " "));
    const axis = [edges[0], edges[edges.length / 2 | 0], edges.at(-1)].map((edge) =>
      element("small", { textContent: rounded(edge) }));
    return element("figure", {}, element("figcaption", {}, element("b", { textContent: title }),
      ` ${say("in {unit}: {most}", { unit: say(unit), most: said })}`),
    bars(counts, `${title}: ${said}`), element("span", { className: "axis" }, ...axis));
  });
  return element("div", { className: "histograms" }, ...charts);
}

function matrix(head, { classes, asked }) {
  const rows = classes.map((name, i) => (asked[i] ? row(say(name), ...head.matrix[i].map(cell)) : null)).filter(Boolean);
  return element("div", { className: "scrolls", tabIndex: 0, role: "region", ariaLabel: say("From class to class") },
    table([say("from \\ to"), ...classes.map((name) => say(name))], rows));
}

function cell(weight) {
  const made = element("td", { className: "heat", textContent: share(weight) });
  made.style.setProperty("--part", `${Math.min(1, weight) * 60}%`);
  return made;
}

function row(name, ...cells) {
  const made = cells.map((each) => (each instanceof Element ? each : element("td", { textContent: each })));
  return element("tr", {}, element("th", { scope: "row", textContent: name }), ...made);
}

function table(titles, rows) {
  const head = titles.map((textContent) => element(textContent ? "th" : "td", { textContent }));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}
