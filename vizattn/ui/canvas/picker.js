/* The picker: examples, and a picture of one's own that stays when an example is looked at in between.
   The component's value is {examples, chosen: an example's name or "own", file: its file data}. */
const part = name => element.querySelector(`[data-part="${name}"]`);
const root = part("root"), own = part("own");
const examples = props.value.examples;
let chosen = props.value.chosen, owned = null;

for (const example of examples) {
  const button = make("button"), image = make("img");
  button.type = "button";
  button.setAttribute("role", "radio");
  button.setAttribute("aria-label", example.name);
  button.title = example.name;
  button.dataset.value = example.name;
  image.src = (example.thumb ?? example.file).url;
  image.alt = "";
  button.append(image);
  part("thumbs").append(button);
}

function pick(name, byLink = false) {
  chosen = name;
  const file = name === "own" ? owned : examples.find(example => example.name === name)?.file ?? null;
  props.value = { examples, chosen, file };
  if (!byLink) document.dispatchEvent(new CustomEvent("vizattn:picked"));
  show();
}
const showThumbs = radioGroup(part("thumbs"), () => chosen, pick);

function show() {
  showThumbs();
  own.classList.toggle("chosen", chosen === "own");
  part("ownIcon").toggleAttribute("hidden", owned !== null);
  part("ownThumb").hidden = owned === null;
  if (owned && part("ownThumb").src !== owned.url) part("ownThumb").src = owned.url;
}

/* The panel with upload, camera and clipboard is Gradio's; this opens and closes it. */
const panel = () => document.getElementById("vizattn-own");
function openPanel(open) {
  if (open && panel()) panel().style.setProperty("--from-left", `${own.getBoundingClientRect().left - panel().parentElement.getBoundingClientRect().left}px`);
  document.body.classList.toggle("vizattn-own-open", open);
  setAttribute(own, "aria-expanded", open);
}
own.addEventListener("click", () => {
  if (owned && chosen !== "own") pick("own");   // back to it first; a second press opens the panel
  else openPanel(!document.body.classList.contains("vizattn-own-open"));
});
document.addEventListener("pointerdown", event => {
  if (!own.contains(event.target) && !panel()?.contains(event.target)) openPanel(false);
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && own.getAttribute("aria-expanded") === "true") { openPanel(false); own.focus(); }
});

/* The page says which picture of one's own its input holds now: {detail: file data or null}. */
document.addEventListener("vizattn:picture", ({ detail: file }) => {
  owned = file;
  if (file) openPanel(false);
  if (file || chosen === "own") pick(file ? "own" : examples[0]?.name ?? "");
  else show();
});

/* Paste or drop anywhere. */
async function send(file) {
  try {
    const { path, url } = await upload(file);
    owned = { path, url, orig_name: file.name, mime_type: file.type, size: file.size, meta: { _type: "gradio.FileData" } };
    pick("own");
    trigger("send", {});   // the page's own picture input shows it too
  } catch {
    document.dispatchEvent(new CustomEvent("vizattn:status", { detail: { kind: "error", word: "uploadFailed" } }));
  }
}
const imageIn = transfer => [...(transfer?.files ?? [])].find(file => file.type.startsWith("image/"));
document.addEventListener("paste", event => {
  const file = imageIn(event.clipboardData);
  if (file && !event.target.closest?.("input, textarea, #vizattn-own")) { event.preventDefault(); send(file); }
});
document.addEventListener("dragover", event => { if ([...event.dataTransfer.types].includes("Files")) event.preventDefault(); });
document.addEventListener("drop", event => {
  if (event.target.closest?.("#vizattn-own")) return;
  event.preventDefault();
  const file = imageIn(event.dataTransfer);
  if (file) send(file);
});

const speakLanguage = () => translate(root);
onLanguage(speakLanguage);
speakLanguage();
if (examples.some(example => example.name === inLink("picture"))) pick(inLink("picture"), true); else show();
