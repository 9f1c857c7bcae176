// The model behind a live page: a prompt and edits are sent to the server, which answers with the facts of that run.

import { fetchFrom, serverSource } from "./source.js";

// The source of a run's numbers; its `live` says of which prompt and edits, and what the model predicts.
// asked: { prompt, edits, position }.
export async function liveSource(base, asked, { signal } = {}) {
  const body = JSON.stringify(asked);
  const answer = await fetchFrom(base, "run", {}, { method: "POST", body, signal });
  return serverSource(await answer.json(), base);
}
