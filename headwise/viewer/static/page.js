// The entry point of a page: a self-contained file, or the page of the local server.

import { start } from "./start.js";

start();
