// The next-token probabilities of the edited run beside those of the plain one: bars to both sides of each token.

import { element } from "../element.js";
import { say } from "../../words.js";

const SMALL = 1e-4; // differences below are not written
const VISIBLE = { " ": "␣", "\n": "⏎", "\t": "⇥" }; // white space of a token

export class Predictions {
  constructor(app) {
    this.app = app;
    this.select = element("select", { ariaLabel: say("After which token") });
    this.select.addEventListener("change", () => {
      app.state.set({ after: this.select.value === "" ? null : Number(this.select.value) });
    });
    this.after = element("label", { className: "picker" }, element("span", { textContent: say("after token") }), this.select);
    this.summary = element("p", { className: "summary", role: "status" });
    this.body = element("tbody");
    const heading = (textContent, className) => element("th", { textContent, className, scope: "col" });
    this.what = heading("", "token");
    const row = element("tr", {}, heading(say("plain"), "plain-side"), this.what, heading(say("edited"), "edited-side"));
    this.table = element("table", {}, element("thead", {}, row), this.body);
    this.why = element("p", { className: "none" });
    this.title = element("h2", { id: "predictions-title" });
    const top = element("div", { className: "heading" }, this.title, this.after);
    this.element = element("aside", { className: "predictions", tabIndex: 0 }, top, this.summary, this.table, this.why);
    this.element.setAttribute("aria-labelledby", "predictions-title");
  }

  update() {
    const { live } = this.app.source;
    if (live === this.shown) return;
    this.shown = live;
    const found = live.predictions;
    for (const part of [this.after, this.summary, this.table]) part.hidden = !found;
    this.element.hidden = !found && !live.why;
    this.title.textContent = found?.of === "sentences" ? say("Similar sentences") : say("Predictions");
    this.why.hidden = Boolean(found);
    this.why.textContent = live.why && say(live.why);
    if (!found) return;
    this.after.hidden = Boolean(found.of);
    this.what.textContent = { labels: say("label"), sentences: say("cosine") }[found.of] ?? say("next token");
    this.element.classList.toggle("sentences", found.of === "sentences");
    if (!found.of) this.offer(live.position);
    this.summary.textContent = this.said(found);
    this.body.replaceChildren(...found.tokens.map((token) => this.line(token)));
    this.element.dataset.run = live.run;
  }

  offer(position) {
    const { labels } = this.app.stack.rows;
    const last = labels.length - 1;
    const options = labels.map((label, at) => element("option", { value: at, textContent: `${at} · ${label}` }));
    options.pop();
    this.select.replaceChildren(...options, element("option", { value: "", textContent: say("{name} ({what})", { name: `${last} · ${labels[last]}`, what: say("last") }) }));
    this.select.value = position === null || position === last ? "" : String(position);
  }

  // How far the runs are apart, in a sentence.
  said({ of, tokens, distance, divergence }) {
    const { edits, emptied } = this.app.source.live;
    if (of === "sentences") return say("How similar the text is to each sentence: the cosine of their vectors, with all heads and after the edits.");
    const first = of === "labels" ? [`${tokens[0].text} ${percent(tokens[0].edited)}.`] : []; // it is read aloud
    if (!edits.length) return [...first, say("No edits: both runs are the same.")].join(" ");
    const kl = divergence === null ? say("infinite") : say("{n} nats", { n: divergence.toPrecision(3) });
    const said = [...first, say("Total variation {distance} · KL(plain ‖ edited) {kl}.", { distance: distance.toFixed(3), kl })];
    if (emptied === 1) said.push(say("1 query was left without any key."));
    else if (emptied) said.push(say("In {n} places a query was left without any key.", { n: emptied }));
    return said.join(" ");
  }

  line({ id, text, plain, edited }) {
    const isShare = this.shown.predictions.of !== "sentences";
    const side = (name, share) => {
      const bar = element("i", { ariaHidden: "true" });
      bar.style.setProperty("--share", Math.max(0, share));
      return element("td", { className: name }, element("b", { textContent: isShare ? percent(share) : signed(share) }), bar);
    };
    const shown = text.replace(/^ +| +$| {2,}|[\n\t]/g, (space) => [...space].map((one) => VISIBLE[one]).join(""));
    const far = Math.abs(edited - plain);
    const change = `${edited > plain ? "+" : "−"}${isShare ? hundredths(far) : far.toFixed(3)}`;
    const difference = far < (isShare ? SMALL : 0.0005) ? "" : isShare ? say("{n} points", { n: change }) : change;
    const title = this.shown.predictions.of ? shown : `${shown} · ${say("token {n}", { n: id })}`;
    const name = element("th", { scope: "row", className: "token", title });
    name.append(element("bdi", { textContent: shown }), element("small", { textContent: difference || "\u00a0" }));
    const line = element("tr", {}, side("plain-side", plain), name, side("edited-side", edited));
    Object.assign(line.dataset, { token: id, plain, edited });
    return line;
  }
}

// A probability with the digits that tell small ones apart.
const percent = (share) => (share >= 1e-4 ? `${hundredths(share)}%` : share > 0 ? "<0.01%" : "0%");

const signed = (cosine) => cosine.toFixed(3).replace("-", "−");

const hundredths = (share) => (100 * share).toFixed(share >= 0.1 ? 1 : 2);
