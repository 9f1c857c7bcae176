// The theme: "light", "dark", or "auto", the theme of the system.

import { icon } from "./element.js";
import { say } from "../words.js";

export class Theme {
  #darkness = matchMedia("(prefers-color-scheme: dark)");

  // changed(): called when the system changes its theme.
  constructor(changed, signal) {
    this.#darkness.addEventListener("change", changed, { signal });
  }

  // The shown theme: "light" or "dark".
  shown(theme) {
    return theme === "auto" ? (this.#darkness.matches ? "dark" : "light") : theme;
  }

  // From the system's theme to the other one first, so that every step except the last changes something.
  after(theme) {
    const [system, other] = this.#darkness.matches ? ["dark", "light"] : ["light", "dark"];
    return { auto: other, [other]: system, [system]: "auto" }[theme];
  }

  // The icon and the title of the button.
  mark(button, theme) {
    const names = { auto: say("that of the system"), light: say("light"), dark: say("dark") };
    button.replaceChildren(icon(theme));
    button.title = button.ariaLabel = say("Theme: {theme} (t)", { theme: names[theme] });
  }
}
