// Why views that show or compute something for each token have nothing to show of very many.

import { say, whole } from "../words.js";

export const tooLong = ({ rows, cols }) =>
  say("This view shows each token, and {n} tokens are too many for it. The Head view shows them.", {
    n: whole(Math.max(rows.length, cols.length)),
  });
