// One weight as a workbook with live formulas: the steps, names and formulas of headwise/worksheet/of_weight.py.

import { bookOf } from "../../xlsx/book.js";
import { say } from "../../words.js";

const [KEYS, DIMENSIONS] = [1024, 512]; // the most that a workbook opens with in seconds
const LONGEST = 24; // letters of a label
const ONE = { letter: "", labels: [""] };

// terms: of termsOf; query, keys: their names; col: the key of the weight. Returns a Blob.
export function workbookOf(terms, { title, query, keys, col }) {
  if (terms.steps.length > KEYS || terms.dim > DIMENSIONS) {
    throw new Error(say("A worksheet holds up to {keys} keys of {dims} dimensions.", { keys: KEYS, dims: DIMENSIONS }));
  }
  return bookOf({
    title,
    about: "The numbers of a model: one query, its keys, and every step up to the attention weight.",
    steps: stepsOf(terms, shortened(query), keys.map(shortened), col),
  });
}

const shortened = (label) => {
  const letters = [...label];
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : label;
};

function stepsOf(terms, query, labels, col) {
  const { dim, q, keyOf, steps, scale, softcap, sink, biased, highest, sum } = terms;
  const keys = { letter: "K", labels };
  const elements = { letter: "D", labels: Array.from({ length: dim }, (_, d) => `d${d + 1}`) };
  const matrix = (name, rows, cols, value, formula, kind = "result", digits = 4) => ({ name, rows, cols, value, formula, kind, digits });
  const given = (name, rows, cols, value, kind, digits) => matrix(name, rows, cols, value, null, kind, digits);
  const number = (name, value, formula, kind, digits) => matrix(name, ONE, ONE, () => value, formula, kind, digits);
  const ofKeys = (name, field, formula, kind, digits) => matrix(name, keys, ONE, (i) => Number(steps[i][field]), formula, kind, digits);
  const found = [];
  const step = (title, sentence, symbols, ...grid) => found.push({ title, sentence, symbols, grid: grid.filter((row) => row.length) });

  step(
    "Query and keys",
    "The vector of the query, and that of every key, as the model computed them.",
    "q [1 × D],  k [K × D]",
    [given("Query", { letter: "", labels: [query] }, elements, (_, d) => q[d], "input")],
    [given("Keys", keys, elements, (i, d) => keyOf(i)[d], "input")],
  );
  step(
    "Products",
    "Query and key are multiplied element by element; the sum of the products is large if they point in the same direction.",
    "s = Σ q · k",
    [
      ofKeys("Scores", "dot", "SUM(Products[i,:])"),
      matrix("Products", keys, elements, (i, d) => q[d] * keyOf(i)[d], "Query[1,j]*Keys[i,j]"),
    ],
  );
  step(
    "Scale",
    "Sums of many products are large, so all scores are multiplied by a small number.",
    "s' = scale · s,  scale = 1/√D by default",
    [number("Scale", scale, null, "option", 6)],
    [ofKeys("Scaled", "scaled", "Scale*Scores[i,1]")],
  );
  let last = "Scaled";
  if (softcap !== null) {
    step(
      "Softcap",
      "The softcap limits every score: tanh compresses large ones.",
      "s' = softcap · tanh(s' / softcap)",
      [number("Softcap", softcap, null, "option")],
      [ofKeys("Capped", "capped", `Softcap*TANH(${last}[i,1]/Softcap)`)],
    );
    last = "Capped";
  }
  if (biased) {
    const sums = (i) => steps[i].capped + steps[i].bias;
    step(
      "Add the bias",
      "The bias of query and key is added to the score.",
      "s' = s' + b",
      [ofKeys("Bias", "bias", null, "parameter"), matrix("Biased", keys, ONE, sums, `${last}[i,1]+Bias[i,1]`)],
    );
    last = "Biased";
  }
  step(
    "Mask",
    "Which key the query may attend to: 1 = may, 0 = may not. A masked score becomes −∞, and its weight 0.",
    "s' = s' where the mask is 1, else −∞",
    [ofKeys("Mask", "allowed", null, "mask", 0), ofKeys("Masked", "score", `IF(Mask[i,1]=1,${last}[i,1],"−∞")`)],
  );
  const sunk = sink !== null;
  step(
    "Softmax: exponentials",
    "The highest score is subtracted, so that nothing overflows; this changes no weight. Then the exponential makes every " +
      `score positive.${sunk ? " The sink adds one more term to the sum, and has no key." : ""}`,
    `E = exp(s' − highest),  sum = Σ E${sunk ? " + exp(sink − highest)" : ""}`,
    sunk ? [number("Sink", sink, null, "parameter")] : [],
    [number("Highest", highest === -Infinity ? 0 : highest, `MAX(Masked[:,1]${sunk ? ",Sink" : ""})`)],
    [number("Sum_of_row", sum, `SUM(Exponentials)${sunk ? "+EXP(Sink-Highest)" : ""}`)],
    [ofKeys("Exponentials", "exp", "IF(ISNUMBER(Masked[i,1]),EXP(Masked[i,1]-Highest),0)")],
  );
  const total = steps.reduce((all, { weight }) => all + weight, 0);
  step(
    "Attention weights",
    `Each exponential is divided by the sum. The weight of ${labels[col]} (key ${col}) is row ${col + 1}.`,
    "A = E / sum",
    [number("Weight", steps[col].weight, `INDEX(Weights,${col + 1},1)`, "output", 6)],
    [number("Total", total, "SUM(Weights)")],
    [ofKeys("Weights", "weight", "IF(Sum_of_row=0,0,Exponentials[i,1]/Sum_of_row)", "weights", 6)],
  );
  return found;
}
