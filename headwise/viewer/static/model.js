// The entry point of a page that carries a model.

import { Carried } from "./model/carried.js";
import { start } from "./start.js";

start((...given) => new Carried(...given).run);
