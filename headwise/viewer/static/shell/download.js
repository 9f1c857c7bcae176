// Gives the reader a file to save.

import { element } from "./element.js";

export function download(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
