// How numbers are written in this view: six digits, and all of them in the tooltip.

import { element } from "../../shell/element.js";

export function digits(number) {
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number < 0 ? "−∞" : "∞";
  const size = Math.abs(number);
  const text = size === 0 || (size >= 1e-4 && size < 1e6) ? String(Number(number.toPrecision(6))) : number.toExponential(3);
  return text.replace(/-/g, "−");
}

export const short = (number) => (Number.isFinite(number) ? number.toFixed(3).replace("-", "−") : digits(number));

// An element with a number; pointing at it shows all of its digits.
export const numbered = (name, number, properties = {}) =>
  element(name, { ...properties, textContent: digits(number), title: String(number) });
