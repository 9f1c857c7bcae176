// Starts the page of a self-contained file, or of the local server.

import { App } from "./app.js";
import { embeddedSource, liveSource, serverSource } from "./data/source.js";
import { learn } from "./data/opening.js";
import { blockOf, opened } from "./opened.js";
import { Live } from "./shell/live/live.js";
import { State } from "./state.js";
import { untranslated } from "./words.js";

// carriedRun(facts, source, blockOf): how the page itself runs the model that it carries.
export function start(carriedRun = null) {
  return opened(async (facts, hostOf) => {
    const base = location.pathname.replace(/[^/]*$/, "");
    const onServer = facts.source === "server";
    const known = onServer ? serverSource(facts, base) : embeddedSource(facts, blockOf);
    const runOf = onServer ? (asked, options) => liveSource(base, asked, options) : carriedRun?.(facts, known, blockOf);
    const source = known.live ? await asAddressed(known, runOf) : known;
    if (source !== known) known.close?.();
    const app = new App(hostOf(), source, { page: true, runOf, first: known.live });
    const follow = () => (document.documentElement.style.colorScheme = app.state.theme === "auto" ? "" : app.state.theme);
    app.state.on(follow); // for scroll bars and overscroll, which are outside of the host
    follow();
    // When the language changes, every sentence is made anew; the address holds the rest.
    app.state.on((changed) => {
      if (!changed.has("language")) return;
      history.replaceState(null, "", `#${app.state.write()}`);
      location.reload();
    });
    window.headwise = { source, app, state: app.state, untranslated }; // for tests and the console
  });
}

// The run of the prompt and the edits in the address, if there are any. If it is refused, the page itself says why.
async function asAddressed(source, runOf) {
  const { prompt, edits, after } = new State(Live.first(source.live)).read(location.hash);
  if (JSON.stringify([prompt, edits, after]) === JSON.stringify(Object.values(Live.first(source.live)))) return source;
  const run = await runOf({ prompt, edits, position: after }).catch(() => source);
  if (run.insights) learn(run, await run.insights);
  return run;
}
