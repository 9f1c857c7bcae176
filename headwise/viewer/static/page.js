// The entry point of a page: a self-contained file, or the page of the local server.

import { App } from "./app.js";
import { liveSource } from "./data/live.js";
import { embeddedSource, serverSource } from "./data/source.js";
import { Live } from "./shell/live/live.js";
import { State } from "./state.js";
import { say, speak, untranslated } from "./words.js";

const again = () => say("Write it again with headwise view.");
const place = document.getElementById("page");

open().catch((error) => {
  const sentence = document.createElement("p");
  sentence.setAttribute("role", "alert");
  sentence.textContent = say("This page cannot be shown: {why}", { why: error.message });
  place.replaceChildren(sentence);
});

async function open() {
  const facts = factsOf(document.getElementById("facts"));
  // The address first, then the writer of the file, then the browser.
  const asked = new URLSearchParams(location.hash.slice(1)).get("lang");
  document.documentElement.lang = speak([asked, facts.language, ...navigator.languages].filter(Boolean));
  const base = location.pathname.replace(/[^/]*$/, "");
  const known = facts.source === "server" ? serverSource(facts, base) : embeddedSource(facts, blockOf);
  const source = known.live ? await asAddressed(known, base) : known;
  const host = document.createElement("div");
  place.replaceChildren(host); // before the app, which reads colours from its style
  const app = new App(host, source, { page: true, base, first: known.live });
  const follow = () => (document.documentElement.style.colorScheme = app.state.theme === "auto" ? "" : app.state.theme);
  app.state.on(follow); // for scroll bars and overscroll, which are outside of the host
  follow();
  // Another language: every sentence is made anew, and the address holds the rest.
  app.state.on((changed) => {
    if (!changed.has("language")) return;
    history.replaceState(null, "", `#${app.state.write()}`);
    location.reload();
  });
  window.headwise = { source, app, state: app.state, untranslated }; // for tests and the console
}

// The run of the prompt and the edits in the address, if there are any. If it is refused, the page itself says why.
async function asAddressed(source, base) {
  const { prompt, edits, after } = new State(Live.first(source.live)).read(location.hash);
  if (JSON.stringify([prompt, edits, after]) === JSON.stringify(Object.values(Live.first(source.live)))) return source;
  return liveSource(base, { prompt, edits, position: after }).catch(() => source);
}

function factsOf(block) {
  if (!block) throw new Error(`${say("the file is incomplete: its facts are missing.")} ${again()}`);
  try {
    return JSON.parse(block.textContent);
  } catch {
    throw new Error(`${say("the file is damaged: its facts cannot be read.")} ${again()}`);
  }
}

// The bytes of a block of the file. The block is removed from the page when it is read.
function blockOf(name) {
  const block = document.getElementById(name);
  if (!block) throw new Error(`${say("The file is incomplete: {name} is missing.", { name })} ${again()}`);
  const text = block.textContent;
  block.remove();
  try {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text).buffer;
    const binary = atob(text);
    const out = new Uint8Array(binary.length);
    for (let i = 0; i < out.length; i++) out[i] = binary.charCodeAt(i);
    return out.buffer;
  } catch {
    throw new Error(`${say("The file is damaged: {name} cannot be read.", { name })} ${again()}`);
  }
}
