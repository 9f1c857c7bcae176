// All heads as cards: sorted, filtered by layer and kind, and searched by token.

import { button, picker } from "../shell/controls.js";
import { element } from "../shell/element.js";
import { bars, rounded, share } from "./charts.js";
import { found, matcher } from "./matching.js";
import { say } from "../words.js";

export class Cards {
  constructor(app) {
    this.app = app;
    const { facts } = app;
    this.numbers = numbersOf(facts);
    this.sort = picker(
      say("Sort by"),
      [...this.numbers].map(([key, { title }]) => [key, say(title)]),
      (sort) => app.set({ sort }),
    );
    this.order = button("order", say("Turn the order"), () =>
      app.set({ order: app.state.order === "down" ? "up" : "down" }),
    );
    const layers = facts.layers.map(({ name }, i) => [String(i), `${i} · ${name}`]);
    this.layer = picker(say("Layer"), [["", say("all")], ...layers], (layer) => app.set({ layer }));
    const kinds = Object.keys(facts.kinds).filter((kind) => facts.heads.some((head) => head.kind === kind));
    const offered = [["", say("anything")], ...kinds.map((kind) => [kind, say(kind)])];
    this.kind = picker(say("Does"), offered, (kind) => app.set({ kind }));
    this.search = element("input", {
      type: "search",
      placeholder: say("Token ( / )"),
      ariaLabel: say("Search heads by a token of their pairs and examples"),
      spellcheck: false,
      oninput: () => app.set({ token: this.search.value }),
    });
    this.count = element("span", { className: "count", role: "status" });
    this.about = element("p", { className: "about" });
    this.list = element("ul", { className: "cards" });
    const controls = [this.sort, this.order, this.layer, this.kind, this.search, this.count];
    this.element = element(
      "section",
      { className: "profile-heads", ariaLabel: say("Heads") },
      element("div", { className: "profile-bar" }, ...controls),
      this.about,
      this.list,
    );
    this.cards = new Map(facts.heads.map((head) => [head, this.card(head)]));
  }

  card(head) {
    const { facts } = this.app;
    const note = element("span", { className: "note" });
    const number = element("span", { className: "sorted" });
    const link = element(
      "a",
      { className: "card" },
      element(
        "span",
        { className: "line" },
        element("b", { textContent: say("Layer {layer} · head {head}", { layer: head.layer, head: head.head }) }),
        number,
      ),
      element(
        "span",
        { className: "line" },
        element("span", { className: "kind", textContent: say(head.kind), title: say(facts.kinds[head.kind]) }),
        element("span", { className: "score", textContent: share(head.score), title: say("The number behind its kind.") }),
      ),
      bars(head.offsets, say("Weight by relative position: most at {place}", { place: most(head, facts) }), { marked: facts.self }),
      element(
        "span",
        { className: "axis", ariaHidden: "true" },
        ...[say("before"), say("itself"), say("after")].map((textContent) => element("small", { textContent })),
      ),
      meter(say("entropy"), head.means.entropy, head.relative, rounded(head.means.entropy)),
      meter(say("sink"), head.means.first_visible, head.means.first_visible, share(head.means.first_visible)),
      meter(say("special"), head.means.special, head.means.special, share(head.means.special)),
      note,
    );
    return { item: element("li", {}, link), link, note, number };
  }

  update() {
    const { state, facts } = this.app;
    this.sort.show(this.numbers.has(state.sort) ? state.sort : "place");
    this.layer.show(state.layer);
    this.kind.show(state.kind);
    if (this.search.value !== state.token) this.search.value = state.token;
    const sorted = this.numbers.get(state.sort) ?? this.numbers.get("place");
    const down = state.order === "down";
    const first = state.sort === "place" || !this.numbers.has(state.sort);
    this.order.replaceChildren(element("span", { textContent: down === first ? say("↑ lowest first") : say("↓ highest first") }));
    this.about.textContent = sorted.sentence;
    const fits = matcher(state.token);
    const shown = facts.heads.filter((head) => {
      if (state.layer !== "" && String(head.layer) !== state.layer) return false;
      if (state.kind !== "" && head.kind !== state.kind) return false;
      return !fits || found(head, facts.windows, fits);
    });
    const sign = down === first ? 1 : -1;
    shown.sort((a, b) => sign * (sorted.of(a) - sorted.of(b)) || a.place - b.place);
    for (const head of shown) this.fill(head, first ? null : sorted, fits);
    this.list.replaceChildren(...shown.map((head) => this.cards.get(head).item));
    this.count.textContent = say("{n} of {count} heads", { n: shown.length, count: facts.heads.length });
    if (!shown.length) this.about.textContent = say("No head fits. Choose all layers and anything, or search another token.");
  }

  fill(head, sorted, fits) {
    const { link, note, number } = this.cards.get(head);
    const { windows } = this.app.facts;
    link.href = this.app.address({ head: head.name });
    number.textContent = sorted ? rounded(sorted.of(head)) : "";
    const hit = fits && found(head, windows, fits);
    const pair = hit?.pair ?? head.pairs[0];
    if (hit?.example) {
      const { labels } = windows[hit.example.window];
      note.textContent = say("in an example: {token}", { token: labels.find(fits) });
    } else note.textContent = pair ? `${pair[0]} → ${pair[1]}` : say("no pair of tokens");
    const why = hit ? say("The pair with the most weight that has the token") : say("The pair with the most weight");
    note.title = pair && !hit?.example ? why : "";
  }

  // Back from the page of a head: its card.
  focus(head) {
    this.cards.get(head).link.focus();
  }
}

// What heads can be sorted by: key -> {title, sentence, of}.
function numbersOf({ measures, kinds, patterns }) {
  const found = new Map([
    ["place", { title: "layer and head", sentence: say("Each card is a head: the weight by relative position of the key, " +
      "from 16 tokens before to 16 after, then how widely it attends, and what goes to the first and to special " +
      "tokens. Open one for its histograms, pairs and texts."), of: (head) => head.place }],
    ["score", { title: "what it does most", sentence: `${say("The number behind its kind.")} ${say("{parts}.", { parts:
      Object.entries(kinds).map(([kind, rule]) => say("{what}: {why}", { what: say(kind), why: say(rule) })).join(" · ") })}`, of: (head) => head.score }],
  ]);
  for (const { name, sentence, unit } of measures)
    found.set(name, { title: name.replaceAll("_", " "), 
      sentence: `${say(sentence)} ${say("Mean over all queries, in {unit}.", { unit: say(unit) })}`,
      of: (head) => head.means[name] });
  for (const [name, sentence] of Object.entries(patterns))
    found.set(name, { title: name.replaceAll("_", " "), sentence: say(sentence), of: (head) => head.patterns[name] });
  return found;
}

function meter(name, value, part, said) {
  const bar = element("i", { ariaHidden: "true" });
  bar.style.setProperty("--part", `${Math.min(1, Math.max(0, part)) * 100}%`);
  return element(
    "span",
    { className: "meter" },
    element("small", { textContent: name }),
    bar,
    element("small", { className: "value", textContent: said }),
  );
}

const most = (head, { offsets }) => offsets[head.offsets.indexOf(Math.max(...head.offsets))];
