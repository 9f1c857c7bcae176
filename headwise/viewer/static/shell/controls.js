// The controls of the shell and the views. Each is an element with a `show(value)` that marks the current value. A
// choice calls `choose(value)` and does not mark itself: the changed state does.

import { hasSink } from "../data/opening.js";
import { COLOURS } from "../map/colour.js";
import { element, icon } from "./element.js";
import { LANGUAGES, otherLanguage, say } from "../words.js";

// The colour scales: options for `choices`. The last one scales by rows, so it is only for maps.
export const SCALE_CHOICES = [
  ["linear", "linear", "Colour in proportion to the weight"],
  ["root", "√", "Square root: small weights stand out"],
  ["log", "log", "Logarithmic: four powers of ten below the largest weight"],
  ["row", "row", "Relative to the largest weight of the row"],
];

// Options of a table like the one above, in the reader's language.
export const said = (options) => options.map(([value, ...texts]) => [value, ...texts.map((text) => say(text))]);

// One of a few, side by side. options: [[value, text, tooltip], ...]
export function choices(label, options, choose) {
  const made = element("span", { className: "choices", role: "group", ariaLabel: label });
  made.offer = (offered) => {
    const buttons = offered.map(([value, textContent, title = ""]) => {
      const button = element("button", { type: "button", textContent, title });
      if (title && !/\p{L}/u.test(textContent)) button.ariaLabel = title; // a sign: √
      button.dataset.value = value;
      button.addEventListener("click", () => choose(value));
      return button;
    });
    made.replaceChildren(...buttons);
  };
  made.show = (value) => {
    for (const button of made.children) button.ariaPressed = String(button.dataset.value === String(value));
  };
  made.offer(options);
  return made;
}

// One of many, in a drop-down list. options: [[value, text], ...]; the chosen value is passed as a string.
export function picker(label, options, choose) {
  const select = element("select");
  const made = element("label", { className: "picker" }, element("span", { textContent: label }), select);
  made.offer = (offered) => {
    select.replaceChildren(...offered.map(([value, textContent]) => element("option", { value, textContent })));
  };
  made.show = (value) => (select.value = String(value));
  select.addEventListener("change", () => choose(select.value));
  made.offer(options);
  return made;
}

// On or off.
export function toggle(text, title, choose) {
  const made = element("button", { type: "button", className: "toggle", textContent: text, title });
  made.show = (on) => (made.ariaPressed = String(Boolean(on)));
  made.addEventListener("click", () => choose(made.ariaPressed !== "true"));
  made.show(false);
  return made;
}

// ---- controls of fields of the state that several views use

export const scaleControl = (state, options = SCALE_CHOICES) =>
  choices(say("Colour scale"), said(options), (scale) => state.set({ scale }));

export const colourControl = (state) => picker(say("Colours"), said(COLOURS), (colours) => state.set({ colours }));

// Only offered where there is a sink, unless it hides more than that: `what`.
export function sinkControl(app, what) {
  const title = what ?? say("Hide the first token that any query may attend to; weights do not change");
  const made = toggle(say("Hide the sink"), title, (sink) => app.state.set({ sink }));
  const { show } = made;
  made.show = (on) => {
    show(on);
    made.hidden = !on && !what && !hasSink(app.stack);
  };
  return made;
}

// A share below which weights are not drawn, 0 = all are. Fine steps near 0, where most weights are.
export function thresholdControl(state) {
  const title = say("Smaller weights are not drawn; no weight changes");
  const range = element("input", { type: "range", min: 0, max: 100, step: 1, title, ariaLabel: say("Hide weights below") });
  const value = element("output");
  const made = element("label", { className: "slider", title }, element("span", { textContent: say("hide below") }), range, value);
  made.show = (share) => {
    const place = Math.round(100 * Math.sqrt(share));
    if (Number(range.value) !== place) range.value = place;
    value.textContent = share ? String(Number(share.toPrecision(2))) : "0";
    range.ariaValueText = value.textContent;
  };
  range.addEventListener("input", () => state.set({ threshold: Number(((range.value / 100) ** 2).toPrecision(2)) }));
  return made;
}

// Buttons that zoom. acts: out, back and in, each [title, function]; back is called so.
export function zoomControl(back, acts) {
  const buttons = acts.map(([title, act], i) => button(["−", back, "+"][i], title, act));
  return element("span", { className: "zoom", role: "group", ariaLabel: say("Zoom") }, ...buttons);
}

// ---- buttons

// content: a text, or `{ icon, text }` with the name of an icon and an optional text.
export function button(content, title, act) {
  const { icon: name, text = "" } = typeof content === "string" ? { text: content } : content;
  const made = element("button", { type: "button", className: "plain", title });
  if (name) made.append(icon(name));
  if (text) made.append(element("span", { textContent: text }));
  else made.ariaLabel = title;
  made.addEventListener("click", act);
  return made;
}

// A button with the name of the other language, written in that language.
export function languageSwitch(choose) {
  const language = otherLanguage();
  const made = element("button", { type: "button", className: "plain language", lang: language }, element("span", { textContent: LANGUAGES[language] }));
  made.addEventListener("click", () => choose(language));
  return made;
}
