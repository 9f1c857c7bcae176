// The page of a profile: all heads as cards, or the page of one head. The address holds what is shown.

import PAGE from "../page.css" with { type: "text" };
import STYLE from "./profile.css" with { type: "text" };
import { button, languageSwitch } from "../shell/controls.js";
import { element, listed, styled } from "../shell/element.js";
import { Cards } from "./cards.js";
import { HeadPage } from "./head.js";
import { Theme } from "../shell/theme.js";
import { aboutSaid, say, whole } from "../words.js";

const FIRST = { head: null, sort: "place", order: "down", layer: "", kind: "", token: "", theme: "auto", lang: "" };

export class ProfileApp {
  constructor(host, facts) {
    this.host = host;
    this.facts = facts;
    this.state = { ...FIRST };
    this.root = host.attachShadow({ mode: "open" });
    styled(this.root, [PAGE, STYLE]);
    this.themes = new Theme(() => this.paint());
    this.theme = button({ icon: "auto" }, say("Theme"), () => this.turn());
    this.stage = element("main", { className: "profile-stage", tabIndex: -1 });
    this.cards = new Cards(this);
    this.root.append(element("div", { className: "app" }, this.header(), this.stage));
    addEventListener("hashchange", () => this.read());
    this.root.addEventListener("keydown", (event) => this.press(event));
    document.addEventListener("keydown", (event) => event.target === document.body && this.press(event));
    this.read();
  }

  header() {
    const { facts } = this;
    const said = [
      say("{n} heads", { n: facts.heads.length }),
      facts.texts === 1 ? say("1 text") : say("{n} texts", { n: whole(facts.texts) }),
      say("{n} tokens", { n: whole(facts.tokens) }),
      say("windows of {n} tokens at most", { n: facts.length }),
    ];
    said.push(aboutSaid(facts.about));
    if (!facts.complete) said.push(say("not complete: the run goes on or was interrupted"));
    return element(
      "header",
      {},
      element("h1", { textContent: facts.title, dir: "auto" }),
      element("p", { className: "facts" }, ...listed(said)),
      element("span", { className: "corner" }, languageSwitch((lang) => this.speak(lang)), this.theme),
    );
  }

  // ---- the state

  read() {
    const said = new URLSearchParams(location.hash.slice(1));
    const next = Object.fromEntries(Object.entries(FIRST).map(([name, first]) => [name, said.get(name) ?? first]));
    if (next.head !== null && !this.facts.heads.some(({ name }) => name === next.head)) next.head = null;
    if (!["up", "down"].includes(next.order)) next.order = "down";
    if (!["auto", "light", "dark"].includes(next.theme)) next.theme = "auto";
    const moved = next.head !== this.state.head;
    this.state = next;
    this.show(moved);
  }

  // The address of this state with some fields changed.
  address(given) {
    const next = Object.entries({ ...this.state, ...given }).filter(([name, value]) => value !== FIRST[name]);
    return `#${new URLSearchParams(next)}`;
  }

  // Set fields. A change of the head is a new page, which Back leaves; other changes replace the address.
  set(given) {
    const address = this.address(given);
    if ("head" in given) {
      location.hash = address;
      return;
    }
    this.state = { ...this.state, ...given };
    try {
      history.replaceState(null, "", address);
    } catch {} // a page in a frame may have no address
    this.show(false);
  }

  show(moved) {
    this.paint();
    const head = this.facts.heads.find(({ name }) => name === this.state.head);
    if (head) {
      if (this.page?.head !== head) this.page = new HeadPage(this, head);
      if (this.page.element.parentNode !== this.stage) this.stage.replaceChildren(this.page.element);
      this.page.update();
    } else {
      const from = moved ? this.page?.head : null;
      if (this.cards.element.parentNode !== this.stage) this.stage.replaceChildren(this.cards.element);
      this.page = null;
      this.cards.update();
      if (from) this.cards.focus(from);
    }
    if (moved && head) {
      this.stage.scrollTop = 0;
      this.page.title.focus();
    }
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
    const typed = event.composedPath()[0];
    if (typed instanceof HTMLInputElement || typed instanceof HTMLSelectElement) return;
    if (event.key === "t") this.turn();
    else if (event.key === "/" && !this.state.head) this.cards.search.focus();
    else if (event.key === "Escape" && this.state.head) this.set({ head: null });
    else if (event.key === "ArrowLeft" && this.state.head) this.page.step(-1);
    else if (event.key === "ArrowRight" && this.state.head) this.page.step(1);
    else return;
    event.preventDefault();
  }

  // When the language changes, every sentence is made anew.
  speak(lang) {
    this.set({ lang });
    location.reload();
  }

  // ---- the theme

  turn() {
    this.set({ theme: this.themes.after(this.state.theme) });
  }

  paint() {
    const { theme } = this.state;
    this.host.dataset.theme = this.themes.shown(theme);
    document.documentElement.style.colorScheme = theme === "auto" ? "" : theme;
    this.themes.mark(this.theme, theme);
  }
}
