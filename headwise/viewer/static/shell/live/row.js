// The row of edits: buttons for edits of the current head and the pinned cell, and the edits that were made, as chips.

import { ALL, SCOPES, blocked, has, isOff, toggled } from "../../data/edits.js";
import { element, filled, icon } from "../element.js";
import { say } from "../../words.js";

const SCOPE_TEXTS = { head: "in this head", layer: "in this layer", everywhere: "everywhere" };

export class EditRow {
  constructor(app, live) {
    Object.assign(this, { app, live });
    this.head = element("button", { type: "button", className: "toggle switch" });
    this.head.addEventListener("click", () => live.switchHead());
    this.hint = element("span", { className: "hint", role: "status" });
    this.edge = element("span", { className: "edge" });
    this.scopes = element("span", { className: "choices", role: "group", ariaLabel: say("Block this edge") });
    for (const scope of SCOPES) {
      const button = element("button", { type: "button", textContent: say(SCOPE_TEXTS[scope]) });
      button.dataset.scope = scope;
      button.addEventListener("click", () => live.blockEdge(scope));
      this.scopes.append(button);
    }
    this.block = element("span", { className: "block-edge" }, this.edge, this.scopes);
    this.list = element("ul", { className: "chips", ariaLabel: say("Edits") });
    this.reset = element("button", { type: "button", className: "plain reset" }, element("span", { textContent: say("Reset") }));
    this.reset.title = say("Take back all edits");
    this.reset.addEventListener("click", () => {
      this.head.focus(); // this button is removed
      app.state.set({ edits: [] });
    });
    this.done = element("div", { className: "done" }, this.list, this.reset);
    const can = element("div", { className: "can" }, this.head, this.block, this.hint);
    this.element = element("section", { className: "edits", ariaLabel: say("Edits of attention") }, can, this.done);
  }

  update() {
    const { app, live } = this;
    const { state, layer } = app;
    const { head, edits, pinRow, pinCol } = state;
    const isHeadOff = isOff(edits, layer.number, head);
    const name = app.plainHeadName(state.layer, head);
    this.head.textContent = isHeadOff ? say("Switch on {head}", { head: name }) : say("Switch off {head}", { head: name });
    this.head.title = isHeadOff
      ? say("Switch on this head: its output counts again (o)")
      : say("Switch off this head: its output becomes 0 (o)");
    this.head.classList.toggle("on", isHeadOff);
    const why = live.carried ? "" : live.whyNoEdge(pinRow, pinCol);
    this.hint.hidden = !why;
    this.hint.textContent = why ?? "";
    this.block.hidden = live.carried || Boolean(why);
    if (!this.block.hidden) this.showEdge(edits, layer.number, head, pinRow, pinCol);
    this.showChips(edits);
  }

  // Say why an edge cannot be blocked; where the hint says it already, point at it.
  tell(why) {
    if (this.hint.textContent !== why) return this.app.say(why);
    this.hint.textContent = why; // so that it is read aloud again
    this.hint.scrollIntoView({ block: "nearest" });
    this.hint.animate([{ background: "var(--accent)", color: "var(--paper)" }, {}], 900);
  }

  showEdge(edits, layer, head, query, key) {
    const { rows, cols } = this.app.stack;
    const name = (axis, place) => element("bdi", { textContent: axis.labels[place], title: `${axis.labels[place]} ${place}` });
    this.edge.replaceChildren(...filled(say("Block {from} → {to}"), { from: name(rows, query), to: name(cols, key) }));
    for (const button of this.scopes.children) {
      const { scope } = button.dataset;
      const there = has(edits, blocked(scope, layer, head, query, key));
      button.ariaPressed = String(there);
      const where = { scope: say(SCOPE_TEXTS[scope]) };
      const does = there ? say("Unblock this edge {scope}", where) : say("Block this edge {scope}", where);
      button.title = scope === "head" ? `${does} (e)` : does;
    }
  }

  showChips(edits) {
    this.done.hidden = !edits.length;
    const key = JSON.stringify([edits, this.app.stack.rows.labels]);
    if (key === this.listed) return; // unchanged, so that the focus stays
    const at = [...this.list.children].findIndex((chip) => chip.contains(this.app.root.activeElement));
    this.listed = key;
    this.list.replaceChildren(...edits.map((edit) => this.chip(edit)));
    if (at < 0) return;
    const next = this.list.children[Math.min(at, edits.length - 1)]?.querySelector("button") ?? this.head;
    next.focus();
  }

  chip(edit) {
    const { app } = this;
    const name = this.nameOf(edit);
    const remove = element("button", { type: "button", className: "plain", ariaLabel: say("Remove: {edit}", { edit: name }), title: say("Remove") }, icon("close"));
    remove.addEventListener("click", () => app.state.set({ edits: toggled(app.state.edits, edit) }));
    const chip = element("li", { className: `chip ${edit.kind}` }, element("span", { textContent: name, title: name }), remove);
    return chip;
  }

  nameOf({ kind, layer, heads, query, key }) {
    const place = layer === ALL ? say("all layers") : say("layer {n}", { n: layer });
    const all = ` · ${say("all heads")}`;
    const of = heads === ALL ? (layer === ALL ? "" : all) : ` · ${say("head {n}", { n: heads.join(say(", ")) })}`;
    if (kind === "ablate") return say("{heads} off", { heads: `${place}${of || all}` });
    const { rows, cols } = this.app.stack;
    const label = (axis, at) => `${axis.labels[at] ?? "?"} ${at}`;
    return `${label(rows, query)} ↛ ${label(cols, key)} · ${layer === ALL && heads === ALL ? say("everywhere") : place + of}`;
  }
}
