// The slider below which weights are not drawn: fine for small weights, which are the most.

import { element } from "./element.js";
import { say } from "../words.js";

const STEPS = 100;
const weightOf = (step) => Number(((step / STEPS) ** 2).toPrecision(2));
const stepOf = (weight) => Math.round(STEPS * Math.sqrt(weight));

export function thresholdSlider(state) {
  const input = element("input", { type: "range", min: 0, max: STEPS, step: 1, ariaLabel: say("Hide weights below") });
  const said = element("output");
  const made = element("label", { className: "threshold" }, element("span", { textContent: say("Hide below") }), input, said);
  input.addEventListener("input", () => state.set({ threshold: weightOf(Number(input.value)) }));
  made.show = (threshold) => {
    input.value = stepOf(threshold);
    said.textContent = input.ariaValueText = String(threshold);
  };
  return made;
}
