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
    const row = element("tr", {}, heading(say("plain"), "plain-side"), heading(say("next token"), "token"), heading(say("edited"), "edited-side"));
    this.table = element("table", {}, element("thead", {}, row), this.body);
    this.why = element("p", { className: "none" });
    const title = element("h2", { textContent: say("Predictions"), id: "predictions-title" });
    const top = element("div", { className: "heading" }, title, this.after);
    this.element = element("aside", { className: "predictions" }, top, this.summary, this.table, this.why);
    this.element.setAttribute("aria-labelledby", "predictions-title");
  }

  update() {
    const { live } = this.app.source;
    if (live === this.shown) return;
    this.shown = live;
    const found = live.predictions;
    for (const part of [this.after, this.summary, this.table]) part.hidden = !found;
    this.why.hidden = Boolean(found);
    this.why.textContent = live.why && say(live.why);
    if (!found) return;
    this.offer(live.position);
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
  said({ distance, divergence }) {
    const { edits, emptied } = this.app.source.live;
    if (!edits.length) return say("No edits: both runs are the same.");
    const kl = divergence === null ? say("infinite") : say("{n} nats", { n: divergence.toPrecision(3) });
    const said = [say("Total variation {distance} · KL(plain ‖ edited) {kl}.", { distance: distance.toFixed(3), kl })];
    if (emptied === 1) said.push(say("1 query was left without any key."));
    else if (emptied) said.push(say("In {n} places a query was left without any key.", { n: emptied }));
    return said.join(" ");
  }

  line({ id, text, plain, edited }) {
    const side = (name, share) => {
      const bar = element("i", { ariaHidden: "true" });
      bar.style.setProperty("--share", share);
      return element("td", { className: name }, element("b", { textContent: percent(share) }), bar);
    };
    const shown = text.replace(/^ +| +$| {2,}|[\n\t]/g, (space) => [...space].map((one) => VISIBLE[one]).join(""));
    const difference = Math.abs(edited - plain) < SMALL ? "" : say("{n} points", { n: `${edited > plain ? "+" : "−"}${hundredths(Math.abs(edited - plain))}` });
    const name = element("th", { scope: "row", className: "token", title: `${shown} · ${say("token {n}", { n: id })}` });
    name.append(element("bdi", { textContent: shown }), element("small", { textContent: difference || "\u00a0" }));
    const line = element("tr", {}, side("plain-side", plain), name, side("edited-side", edited));
    Object.assign(line.dataset, { token: id, plain, edited });
    return line;
  }
}

// A probability with the digits that tell small ones apart.
const percent = (share) => (share >= 1e-4 ? `${hundredths(share)}%` : share > 0 ? "<0.01%" : "0%");

const hundredths = (share) => (100 * share).toFixed(share >= 0.1 ? 1 : 2);
