/* Words: one table, the language in force, and numbers as people read them. */
const STORE = "vizattn";
const readPreferences = () => {
  try { return JSON.parse(localStorage.getItem(STORE)) ?? {}; } catch { return {}; }
};
const writePreference = (name, value) => {
  try { localStorage.setItem(STORE, JSON.stringify({ ...readPreferences(), [name]: value })); } catch { /* a private window forgets */ }
};

let language = readPreferences().language ?? (/^ko/i.test(navigator.language) ? "ko" : "en");

/* A key's sentence with its {places} filled in. */
const word = (key, values = {}) =>
  (STRINGS[language][key] ?? STRINGS.en[key] ?? key).replace(/\{(\w+)\}/g, (place, name) => values[name] ?? place);

/* Text from the registry, where a translation is known; else as it is. A translation may have {places}. */
const phrase = text => STRINGS[language].phrases[text] ?? patterned(text) ?? text;
function patterned(text) {
  for (const [known, translation] of Object.entries(STRINGS[language].phrases)) {
    if (!known.includes("{")) continue;
    const names = [...known.matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
    const pieces = known.split(/\{\w+\}/).map(piece => piece.replace(/[.*+?^$()|[\]\\]/g, "\\$&"));
    const found = new RegExp(`^${pieces.join("(.+)")}$`).exec(text);
    if (found) return translation.replace(/\{(\w+)\}/g, (_, name) => found[names.indexOf(name) + 1]);
  }
  return null;
}

const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const setAttribute = (node, name, value) => { if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value); };

/* Fill every element that names its word; `root` carries the language for fonts and screen readers. */
function translate(root) {
  root.lang = language;
  for (const node of root.querySelectorAll("[data-word]")) setText(node, word(node.dataset.word));
  for (const node of root.querySelectorAll("[data-label]")) {
    setAttribute(node, "aria-label", word(node.dataset.label));
    if (node.tagName === "BUTTON") node.title = word(node.dataset.label);
  }
}

/* What the address named when the page was opened. */
const arrivedAt = new URLSearchParams(location.search);
const inLink = name => arrivedAt.get(name);
function settingsInLink() {
  try { return JSON.parse(inLink("settings")) ?? {}; } catch { return {}; }
}

/* Components are separate islands in the page; the document carries what all of them follow. */
function onLanguage(act) {
  document.addEventListener("vizattn:language", event => { language = event.detail; act(); });
}

const make = (tag, className = "", text = "") => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
};

const percentSign = () => (language === "ko" ? "%" : "\u202f%");
const timesSign = () => (language === "ko" ? "배" : "×");

/* Two significant digits: 14, 1.5, 0.43, 0.060. */
function significant(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 9.95) return value.toFixed(0);
  if (size >= 0.995) return value.toFixed(1);
  if (size >= 0.0995) return value.toFixed(2);
  if (size >= 0.00995) return value.toFixed(3);
  return value < 0 ? value.toExponential(1) : "< 0.01";
}
const percent = share => (share < 0 ? "\u2212" : "") + significant(Math.abs(share) * 100) + percentSign();
/* A share close to the whole keeps one decimal, so that 99.96 % is never called 100 %. */
function percentOfWhole(share) {
  if (share < 1 && share > 0.999) return "> 99.9" + percentSign();
  if (share > 0 && share < 0.001) return "< 0.1" + percentSign();
  return (share * 100).toFixed(1) + percentSign();
}

/* A radio group of native buttons: click, arrow keys, and one tab stop. Returns what shows the choice. */
const ALL_ARROWS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
function radioGroup(group, current, choose, arrows = ALL_ARROWS, attribute = "aria-checked") {
  const buttons = () => [...group.querySelectorAll("[data-value]")];
  group.addEventListener("click", event => {
    const button = event.target.closest("[data-value]");
    if (button) choose(button.dataset.value);
  });
  group.addEventListener("keydown", event => {
    const step = arrows[event.key];
    if (!step || event.shiftKey) return;
    const all = buttons(), at = Math.max(0, all.findIndex(button => button.dataset.value === String(current())));
    const next = all[(at + step + all.length) % all.length];
    event.preventDefault();
    event.stopPropagation();
    next.focus();
    choose(next.dataset.value);
  });
  return () => {
    const all = buttons(), chosen = String(current()), known = all.some(button => button.dataset.value === chosen);
    all.forEach((button, index) => {
      const on = button.dataset.value === chosen;
      setAttribute(button, attribute, on);
      button.tabIndex = on || (!known && index === 0) ? 0 : -1;
    });
  };
}
