// The entry point of the page of a patching experiment.

import { opened } from "./opened.js";
import { PatchingApp } from "./patching/app.js";
import { untranslated } from "./words.js";

opened((facts, hostOf) => {
  window.headwise = { app: new PatchingApp(hostOf(), facts), untranslated }; // for tests and the console
});
