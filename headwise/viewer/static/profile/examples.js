// An example of a head: its text, shaded by the row of one query; all weights of the row on demand; and the way to the
// other views.

import { element } from "../shell/element.js";
import { share } from "./charts.js";
import { say, whole } from "../words.js";

const AROUND = 24; // tokens on either side of query and key that are shown first

export function exampleOf(example, place, head, facts) {
  const window = facts.windows[example.window];
  const { labels } = window;
  const top = Math.max(...example.weights.filter((_, i) => !window.special[i]), 1e-9);
  const caption = element("p", { className: "caption" },
    element("b", {}, element("bdi", { textContent: labels[example.query] }), " → ",
      element("bdi", { textContent: labels[example.key] })),
    ` ${share(example.weights[example.key])}${say(", ")}`,
    element("small", { textContent: say("score {score} · text {text}", {
        score: example.score.toFixed(2), text: whole(window.text),
      }) }));
  const text = element("p", { className: "tokens", dir: "auto" });
  const first = Math.max(0, Math.min(example.query, example.key) - AROUND);
  const past = Math.min(labels.length, Math.max(example.query, example.key) + AROUND + 1);
  if (first) text.append("… ");
  for (let i = first; i < past; i++) text.append(...token(i, example, window, top));
  if (past < labels.length) text.append(" …");
  return element("figure", { className: "example", tabIndex: -1 }, caption, text, wholeRow(example, window),
    links(example, place, head, window, facts));
}

function token(i, { query, weights }, { labels, special, pieces }, top) {
  const label = labels[i];
  const text = pieces[i].trimStart();
  const space = special[i] || special[i - 1] ? " " : pieces[i].slice(0, pieces[i].length - text.length);
  const shown = element("span", { className: "token", textContent: text || label });
  shown.title = `${label}: ${weights[i].toFixed(4)}`;
  shown.style.setProperty("--part", `${special[i] ? 0 : Math.min(1, weights[i] / top) * 70}%`);
  if (special[i]) shown.classList.add("special");
  if (i === query) shown.classList.add("query");
  return [i === 0 ? "" : space, shown];
}

// The whole row, by weight; made when it is opened.
function wholeRow({ weights }, { labels }) {
  const body = element("ol", { className: "row" });
  const details = element("details", {}, element("summary", { textContent: say("The whole row") }), body);
  details.addEventListener("toggle", () => {
    if (!details.open || body.firstChild) return;
    const order = weights.map((weight, i) => [weight, i]).sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    body.append(...order.map(([weight, i]) => element("li", {}, element("bdi", { textContent: labels[i] }),
      element("small", { textContent: ` ${say("{weight} at {place}", { weight: weight.toFixed(4), place: i })}` }))));
  });
  return details;
}

function links(example, place, head, window, facts) {
  if (facts.serves) {
    const shown = `#view=head&layer=${head.layer}&head=${head.head}&row=${example.query}`;
    const href = `text?layer=${head.layer}&head=${head.head}&example=${place}${shown}`;
    return element("p", { className: "links" }, element("a", { href, target: "_blank", rel: "noopener",
      textContent: say("Open this text in the attention views") }));
  }
  const command = element("code", { textContent: window.command });
  const copy = element("button", { className: "toggle", textContent: say("Copy"), onclick: async () => {
    try {
      await navigator.clipboard.writeText(window.command);
      copy.textContent = say("Copied");
    } catch {
      getSelection().selectAllChildren(command);
      copy.textContent = say("Selected: copy it");
    }
  } });
  return element("details", { className: "links" },
    element("summary", { textContent: say("Open this text in the attention views") }),
    element("p", {}, command, " ", copy));
}
