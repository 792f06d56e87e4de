/* The header: language, theme and help, which reach beyond one component. */
const part = name => element.querySelector(`[data-part="${name}"]`);
const root = element.querySelector(".va");

/* Gradio's own labels are fixed when the page is built; their text is exchanged in place. */
const LABELS = {
  "#vizattn-model [data-testid=block-info]": "model",
  "#vizattn-method [data-testid=block-info]": "method",
  "#vizattn-run": "run",
};
function relabel() {
  let found = 0;
  for (const [selector, key] of Object.entries(LABELS)) {
    const node = document.querySelector(selector);
    const text = node && [...node.childNodes].find(child => child.nodeType === Node.TEXT_NODE && child.data.trim());
    if (text) { found += 1; if (text.data !== word(key)) text.data = word(key); }
  }
  return found === Object.keys(LABELS).length;
}
if (document.querySelector(".gradio-container") && !relabel()) {
  const waiting = new MutationObserver(() => { if (relabel()) waiting.disconnect(); });
  waiting.observe(document.body, { childList: true, subtree: true });
}

const showLanguage = radioGroup(part("language"), () => language, value => {
  writePreference("language", value);
  document.dispatchEvent(new CustomEvent("vizattn:language", { detail: value }));
});
function speakLanguage() {
  document.documentElement.lang = language;
  translate(root);
  relabel();
  showLanguage();
}
/* The names of the methods stand in a list of Gradio's, which only the server fills. */
const nameMethods = () => trigger("language", { language });

const theme = readPreferences().theme;
if (theme) document.body.classList.toggle("dark", theme === "dark");
part("theme").addEventListener("click", () => {
  writePreference("theme", document.body.classList.toggle("dark") ? "dark" : "light");
});
part("help").addEventListener("click", () => document.dispatchEvent(new CustomEvent("vizattn:help")));
document.addEventListener("vizattn:change", () => {
  const bar = document.getElementById("vizattn-bar");
  bar?.scrollIntoView({ block: "start" });
  bar?.querySelector("button")?.focus({ preventScroll: true });
});

onLanguage(() => { speakLanguage(); nameMethods(); });
speakLanguage();
if (language !== "en") nameMethods();
