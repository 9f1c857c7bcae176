// The entry point of the page of a profile: what every head did over a corpus.

import { ProfileApp } from "./profile/app.js";

const place = document.getElementById("page");

try {
  const block = document.getElementById("facts");
  if (!block) throw new Error("the file is incomplete: its facts are missing. Write it again with headwise view.");
  const host = document.createElement("div");
  place.replaceChildren(host);
  window.headwise = { app: new ProfileApp(host, JSON.parse(block.textContent)) }; // for tests and the console
} catch (error) {
  const sentence = document.createElement("p");
  sentence.setAttribute("role", "alert");
  sentence.textContent = `This page cannot be shown: ${error.message}`;
  place.replaceChildren(sentence);
}
