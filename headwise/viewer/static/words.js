// The words of the page in the reader's language.
//
// The English sentence is the key: say("{n} tokens", { n: 12 }) looks it up in the table of the language, and falls back on
// itself. So a view is read as it is written, and a sentence that nobody translated is English, not a code.

import ZH from "./zh.json" with { type: "text" };

const TABLES = { zh: JSON.parse(ZH) };

export const LANGUAGES = { en: "English", zh: "中文" };

let table = {};
let language = "en";

// The first language of the list that we have; "zh-Hans-CN" is zh. English if there is none. A document has one language.
export function speak(wanted) {
  const found = wanted.map((tag) => tag.toLowerCase().split("-")[0]).find((tag) => tag in LANGUAGES) ?? "en";
  table = TABLES[found] ?? {};
  return (language = found);
}

// The current language, and the next one, to which a reader may switch.
export function spoken() {
  return language;
}

export function otherLanguage() {
  const tags = Object.keys(LANGUAGES);
  return tags[(tags.indexOf(language) + 1) % tags.length];
}

// Where a page comes from: its model, its date and the version of headwise.
export function aboutSaid({ model, date, version }) {
  const values = { model, date, version };
  return model ? say("{model} · written on {date} by headwise {version}", values) : say("Written on {date} by headwise {version}", values);
}

// A whole number: 1,048,576.
export const whole = (number) => number.toLocaleString("en");

// A share of 1, with two digits: 64 %. Chinese sets no space before the sign.
const SHARE = new Intl.NumberFormat("en", { style: "percent", maximumSignificantDigits: 2 });
export const percent = (share) => SHARE.format(share).replace("%", language === "zh" ? "%" : " %");

// The sentences that stayed English for lack of a translation: a test reads them.
export const untranslated = new Set();

// A sentence in the reader's language, with {name} replaced by its value.
export function say(english, values = {}) {
  if (english && language !== "en" && !(english in table)) untranslated.add(english);
  return (table[english] ?? english).replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}
