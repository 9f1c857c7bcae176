// The search for a token: the number of matches, and steps from one to the next.

import { element, icon } from "./element.js";
import { say } from "../words.js";

export class Search {
  constructor(app) {
    this.app = app;
    this.field = element("input", {
      type: "search", placeholder: say("Search for a token"), ariaLabel: say("Search for a token"), spellcheck: false, dir: "auto",
      title: say("A word, or # and a number (/). Enter: next, Shift+Enter: previous"),
    });
    this.field.setAttribute("autocomplete", "off");
    this.count = element("span", { className: "count", role: "status" });
    this.element = element("label", { className: "search" }, icon("search"), this.field, this.count);
    this.field.addEventListener("input", () => this.look());
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.isComposing) this.step(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape" && this.field.value) this.clear();
      else if (event.key === "Escape") this.field.blur();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  focus() {
    this.field.focus();
    this.field.select();
  }

  clear() {
    this.field.value = "";
    this.look();
  }

  update(changed) {
    if ((changed.has("input") || changed.has("stack")) && this.app.found) this.look();
  }

  // Find the matching tokens of the rows, then those of the columns if these are different tokens.
  look() {
    const { rows, cols } = this.app.stack;
    const query = plain(this.field.value).trim();
    this.at = -1;
    this.places = [];
    if (query) {
      const found = { rows: new Set(matches(rows, query)), cols: new Set(matches(cols, query)), query };
      this.places = [...found.rows].map((row) => ({ row }));
      if (rows !== cols) this.places.push(...[...found.cols].map((col) => ({ col })));
      this.app.mark(found);
    } else this.app.mark(null);
    this.tell();
  }

  step(by) {
    const { length } = this.places ?? [];
    if (!length) return;
    this.at = this.at < 0 ? (by > 0 ? 0 : length - 1) : (this.at + by + length) % length;
    const { state, stack } = this.app;
    const { row = state.row ?? 0, col = state.col ?? Math.min(row, stack.cols.length - 1) } = this.places[this.at];
    state.set({ row, col });
    this.tell();
  }

  tell() {
    const { length } = this.places;
    const where = this.at < 0 ? length : say("{n} of {count}", { n: this.at + 1, count: length });
    this.count.textContent = this.field.value.trim() ? (length ? String(where) : say("none")) : "";
  }
}

function matches(axis, query) {
  const number = /^#(\d+)$/.exec(query);
  if (number) return Number(number[1]) < axis.length ? [Number(number[1])] : [];
  const fits = (token) => [axis.labels[token], axis.pieces?.[token] ?? ""].some((text) => plain(text).includes(query));
  return Array.from(axis.labels.keys()).filter(fits);
}

const plain = (text) => text.normalize("NFC").toLowerCase();
