// The tabs of the views: https://www.w3.org/WAI/ARIA/apg/patterns/tabs/

import { element } from "./element.js";
import { say } from "../words.js";

export class Tabs {
  // more: elements at the end of the row.
  constructor(app, more) {
    this.app = app;
    this.list = element("div", { className: "tablist", role: "tablist", ariaLabel: say("Views") });
    this.tabs = app.views.map(({ View }) => {
      const tab = element("button", { type: "button", textContent: say(View.title), role: "tab", id: `tab-${View.id}` });
      tab.dataset.view = View.id;
      tab.setAttribute("aria-controls", "panel");
      tab.addEventListener("click", () => app.state.set({ view: View.id }));
      return tab;
    });
    this.list.append(...this.tabs);
    this.list.addEventListener("keydown", (event) => {
      const tabs = this.tabs.filter((tab) => !tab.hidden);
      const last = tabs.length - 1;
      const at = tabs.findIndex((tab) => tab.dataset.view === app.state.view);
      const [before, after] = [at ? at - 1 : last, at === last ? 0 : at + 1];
      const next = { ArrowLeft: before, ArrowRight: after, Home: 0, End: last }[event.key];
      if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      tabs[next].click();
      tabs[next].focus();
    });
    this.element = element("div", { className: "tabs" }, this.list, ...more);
  }

  update(changed) {
    if (!["view", "input", "stack", "layer"].some((field) => changed.has(field))) return;
    const shown = this.app.shownViews;
    this.tabs.forEach((tab, i) => {
      const { View } = this.app.views[i];
      tab.hidden = !shown.includes(View);
      const on = View.id === this.app.state.view;
      tab.ariaSelected = String(on);
      tab.tabIndex = on ? 0 : -1;
      const why = View.why(this.app);
      tab.classList.toggle("empty", Boolean(why));
      tab.title = why ?? `${say(View.title)} (${shown.indexOf(View) + 1})`;
      if (on) tab.scrollIntoView({ block: "nearest", inline: "nearest", container: "nearest" });
    });
  }
}
