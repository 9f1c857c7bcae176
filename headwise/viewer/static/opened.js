// Opens a page: reads its facts and chooses its language; an error is shown as a sentence instead of the page.

import { say, speak } from "./words.js";

const again = () => say("Write it again with headwise view.");

// open(facts, hostOf): shows the page; hostOf() gives its element, which is then in the document.
export async function opened(open) {
  const place = document.getElementById("page");
  const put = (made) => (place.replaceChildren(made), made);
  try {
    const facts = factsOf(document.getElementById("facts"));
    // The address first, then the writer of the file, then the browser.
    const asked = new URLSearchParams(location.hash.slice(1)).get("lang");
    document.documentElement.lang = speak([asked, facts.language, ...navigator.languages].filter(Boolean));
    await open(facts, () => put(document.createElement("div")));
  } catch (error) {
    const sentence = put(document.createElement("p"));
    sentence.setAttribute("role", "alert");
    sentence.textContent = say("This page cannot be shown: {why}", { why: error.message });
  }
}

function factsOf(block) {
  if (!block) throw new Error(`${say("the file is incomplete: its facts are missing.")} ${again()}`);
  try {
    return JSON.parse(block.textContent);
  } catch {
    throw new Error(`${say("the file is damaged: its facts cannot be read.")} ${again()}`);
  }
}

// The bytes of a block of the file. The block is removed from the page when it is read.
export function blockOf(name) {
  const block = document.getElementById(name);
  if (!block) throw new Error(`${say("The file is incomplete: {name} is missing.", { name })} ${again()}`);
  const text = block.textContent;
  block.remove();
  try {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text).buffer;
    const binary = atob(text);
    const out = new Uint8Array(binary.length);
    for (let i = 0; i < out.length; i++) out[i] = binary.charCodeAt(i);
    return out.buffer;
  } catch {
    throw new Error(`${say("The file is damaged: {name} cannot be read.", { name })} ${again()}`);
  }
}
