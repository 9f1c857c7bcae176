// From the sum of the products to the weight, one line per step, each with the numbers that go into it.

import { element } from "../../shell/element.js";
import { say } from "../../words.js";
import { digits, numbered } from "./numbers.js";

// The steps of one key: [[name, what is computed, the number], …]. terms: of termsOf.
export function stepsOf({ scale, softcap, sink, biased, highest, sum, empty }, step, keys) {
  const found = [
    [say("Sum of the products"), "Σ q·k", step.dot],
    [say("Scale"), `${digits(step.dot)} × ${digits(scale)}`, step.scaled],
  ];
  if (softcap !== null) {
    found.push([say("Softcap"), `${digits(softcap)} · tanh(${digits(step.scaled)} / ${digits(softcap)})`, step.capped]);
  }
  if (biased) found.push([say("Bias"), `${digits(step.capped)} + ${digits(step.bias)}`, step.capped + step.bias]);
  found.push([say("Mask"), step.allowed ? say("may attend: the score stays") : say("may not attend: the score becomes −∞"), step.score]);
  if (empty) return [...found, [say("Weight"), say("the query attends to nothing"), 0]];
  const among = sink === null ? say("over {n} keys", { n: keys }) : say("over {n} keys and the sink", { n: keys });
  found.push(
    [say("Exponential"), `exp(${digits(step.score)} − ${digits(highest)})`, step.exp],
    [say("Sum of the row"), `Σ exp(s − ${digits(highest)})${say(", ")}${among}`, sum],
    [say("Weight"), `${digits(step.exp)} ÷ ${digits(sum)}`, step.weight],
  );
  return found;
}

export function stepsTable() {
  const body = element("tbody");
  const made = element("table", { className: "steps" }, element("caption", { textContent: say("From the products to the weight") }), body);
  made.show = (steps) => {
    body.replaceChildren(...steps.map(([name, how, number], i) => {
      const cells = [
        element("th", { scope: "row", textContent: name }),
        element("td", { className: "how", textContent: how }),
        numbered("td", number, { className: "number" }),
      ];
      return element("tr", { className: i === steps.length - 1 ? "weight" : "" }, ...cells);
    }));
  };
  return made;
}
