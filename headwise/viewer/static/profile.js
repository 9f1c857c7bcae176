// The entry point of the page of a profile: what every head did over a corpus.

import { ProfileApp } from "./profile/app.js";
import { say, speak, untranslated } from "./words.js";

const place = document.getElementById("page");

try {
  const block = document.getElementById("facts");
  if (!block) throw new Error(`${say("the file is incomplete: its facts are missing.")} ${say("Write it again with headwise view.")}`);
  const facts = JSON.parse(block.textContent);
  const asked = new URLSearchParams(location.hash.slice(1)).get("lang");
  document.documentElement.lang = speak([asked, facts.language, ...navigator.languages].filter(Boolean));
  const host = document.createElement("div");
  place.replaceChildren(host);
  window.headwise = { app: new ProfileApp(host, facts), untranslated }; // for tests and the console
} catch (error) {
  const sentence = document.createElement("p");
  sentence.setAttribute("role", "alert");
  sentence.textContent = say("This page cannot be shown: {why}", { why: error.message });
  place.replaceChildren(sentence);
}
