// The entry point of the page of a profile: what every head did over a corpus.

import { opened } from "./opened.js";
import { ProfileApp } from "./profile/app.js";
import { untranslated } from "./words.js";

opened((facts, hostOf) => {
  window.headwise = { app: new ProfileApp(hostOf(), facts), untranslated }; // for tests and the console
});
