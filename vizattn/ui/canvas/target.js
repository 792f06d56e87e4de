/* Target: what a method explains. Of a model with classes up to four of them; of one without, what its
   embedding is compared with. What there is to choose from is asked for when the panel opens.
   The component's value is {takes, method, model, choice, shown, examples}; `known` comes from the server. */
const part = name => element.querySelector(`[data-part="${name}"]`);
const root = part("root"), panel = part("panel"), search = part("search");
const MOST = 4, MOST_LISTED = 250;
const { takes, examples } = props.value;
let { method, model, choice } = props.value;
let known = null, labels = null, shown = null, asking = false, rows = [], active = -1, warned = "";

const isClasses = () => choice.kind === "classes";
const applies = () => takes.includes(method);
const write = () => { props.value = { takes, method, model, choice, shown, examples }; };
function choose(next) {
  choice = next;
  write();
  show();
}

/* Names: of a class the first of its names, where they are known. */
const fullName = index => labels?.[index] ?? [...(known?.top ?? []), ...(known?.chosen ?? [])].find(([number]) => number === index)?.[1] ?? word("targetNumber", { n: index });
const className = index => fullName(index).split(",")[0];
function chosenName() {
  const { kind, classes, x, y, text, file } = choice;
  if (kind === "classes") return classes.map(className).join(", ");
  if (kind === "patch") return Number.isFinite(x) && Number.isFinite(y) ? word("targetPatchAt", { x: Math.round(x), y: Math.round(y) }) : word("targetPatch");
  if (kind === "text") return text ? `“${text}”` : word("targetText");
  if (kind === "picture") return file?.orig_name ?? word("targetPicture");
  return known && !known.error ? word(known.classes ? "targetTop" : "targetOwn") : word("targetAuto");
}

/* The list: the model's own choice, its first five, then all; a search finds names and numbers. */
const number = index => index.toLocaleString(language);
function listed() {
  const asked = search.value.trim().toLowerCase(), all = Array.from({ length: known.classes }, (_, index) => index);
  if (asked) {
    const likely = new Map(known.top.map(([index], rank) => [index, rank])), rank = index => likely.get(index) ?? (fullName(index).toLowerCase().startsWith(asked) ? 10 : 11);
    const found = all.filter(index => fullName(index).toLowerCase().includes(asked) || String(index) === asked);
    return found.sort((one, other) => rank(one) - rank(other) || one - other).map(index => ({ index }));
  }
  const first = known.top.map(([index]) => ({ index })), heading = known.classes > first.length;
  return [{ index: "own" }, ...(heading ? [{ title: word("targetFirst") }] : []), ...first, ...(heading ? [{ title: word("targetAll", { n: number(known.classes) }) }, ...all.map(index => ({ index }))] : [])];
}
function openRow({ index, title }, at) {
  const node = make("li");
  node.id = `va-target-${at}`;
  if (title) { node.setAttribute("role", "presentation"); node.className = "label"; node.textContent = title; return node; }
  const share = known.top.find(([number]) => number === index)?.[2];
  node.setAttribute("role", "option");
  node.dataset.at = at;
  node.append(make("i", "tick"), make("span", "name", index === "own" ? word("targetTop") : fullName(index)));
  if (index !== "own" && labels?.length && labels[index] !== String(index)) node.append(make("span", "number", String(index)));
  if (share !== undefined) {
    node.append(make("b", "", percentOfWhole(share)));
    node.style.setProperty("--share", share);
  }
  return node;
}
function fillList() {
  const all = listed(), some = all.slice(0, MOST_LISTED);
  rows = some.map(row => row.index);
  part("list").replaceChildren(...some.map(openRow));
  active = search.value.trim() ? rows.findIndex(index => index !== undefined) : -1;
  warned = all.length > some.length ? word("targetMore", { n: number(all.length - some.length) }) : rows.length ? "" : word("targetNone");
  markList();
}
function markList() {
  for (const node of part("list").querySelectorAll("[role=option]")) {
    const index = rows[node.dataset.at], on = index === "own" ? !isClasses() : isClasses() && choice.classes.includes(index);
    setAttribute(node, "aria-selected", on);
    node.classList.toggle("active", Number(node.dataset.at) === active);
  }
  const node = active < 0 ? null : document.getElementById(`va-target-${active}`);
  if (node) { setAttribute(search, "aria-activedescendant", node.id); node.scrollIntoView({ block: "nearest" }); }
  else search.removeAttribute("aria-activedescendant");
  setText(part("note"), warned || word("targetMost", { n: MOST }));
}
function toggle(index) {
  if (index === undefined) return;
  const before = isClasses() ? choice.classes : [], classes = before.includes(index) ? before.filter(each => each !== index) : [...before, index];
  warned = classes.length > MOST ? word("targetFull", { n: MOST }) : "";
  if (warned) return markList();
  choose(index === "own" || !classes.length ? { kind: "own" } : { kind: "classes", classes });
}
function move(step) {
  for (let at = active + step; at >= 0 && at < rows.length; at += step) if (rows[at] !== undefined) { active = at; break; }
  markList();
}
part("list").addEventListener("pointerdown", event => event.preventDefault());   // the search keeps the focus
part("list").addEventListener("click", event => {
  const node = event.target.closest("[role=option]");
  if (!node) return;
  active = Number(node.dataset.at);
  toggle(rows[active]);
});
search.addEventListener("input", fillList);
search.addEventListener("keydown", event => {
  const act = { ArrowDown: () => move(1), ArrowUp: () => move(-1), Enter: () => toggle(rows[active]) }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

/* Without classes: one kind of likeness, and what it needs. */
part("kinds").addEventListener("change", ({ target: radio }) => {
  if (radio.type !== "radio") return;
  const fresh = { text: { text: part("text").value.trim() }, picture: { file: null } };
  choose({ kind: radio.value, ...fresh[radio.value] });
  ({ text: part("text"), patch: part("x") })[radio.value]?.focus();
});
part("text").addEventListener("input", () => choose({ kind: "text", text: part("text").value.trim() }));
part("text").addEventListener("keydown", event => { if (event.key === "Enter") { open(false); run(); } });
for (const axis of ["x", "y"]) part(axis).addEventListener("keydown", event => { if (event.key === "Enter") { open(false); run(); } });
for (const axis of ["x", "y"]) part(axis).addEventListener("input", () => {
  const at = name => (part(name).value === "" ? undefined : Number(part(name).value));
  choose({ kind: "patch", x: at("x"), y: at("y") });
});
const chooseFile = file => choose({ kind: "picture", file });
for (const example of examples) {
  const button = make("button"), image = make("img");
  button.type = "button";
  button.title = example.name;
  button.setAttribute("aria-label", example.name);
  image.src = example.thumb.url;
  image.alt = "";
  button.append(image);
  button.addEventListener("click", () => chooseFile({ ...example.file, orig_name: example.name }));
  part("thumbs").append(button);
}
part("upload").addEventListener("click", () => part("file").click());
part("file").addEventListener("change", async () => {
  const [file] = part("file").files;
  part("file").value = "";
  if (!file) return;
  try {
    const { path, url } = await upload(file);
    chooseFile({ path, url, orig_name: file.name, mime_type: file.type, size: file.size, meta: { _type: "gradio.FileData" } });
  } catch {
    document.dispatchEvent(new CustomEvent("vizattn:status", { detail: { kind: "error", word: "uploadFailed" } }));
  }
});
function showKinds() {
  for (const radio of part("kinds").querySelectorAll("[type=radio]")) radio.checked = radio.value === choice.kind;
  for (const node of part("kinds").querySelectorAll("[data-more]")) node.hidden = node.dataset.more !== choice.kind;
  part("textKind").hidden = !known.text;
  for (const axis of ["x", "y"]) if (document.activeElement !== part(axis)) part(axis).value = choice.kind === "patch" && Number.isFinite(choice[axis]) ? Math.round(choice[axis]) : "";
  if (choice.kind === "text" && document.activeElement !== part("text")) part("text").value = choice.text;
  [...part("thumbs").children].forEach((button, at) => setAttribute(button, "aria-pressed", choice.file?.path === examples[at].file.path));
}

/* The panel asks once for each picture and model; after a run it knows already, but for the names. */
const isOpen = () => !panel.hidden;
const isComplete = () => known && !known.error && (!known.classes || labels);
function open(now) {
  if (now === isOpen()) return;
  panel.hidden = !now;
  if (now && !isComplete() && !asking) {
    asking = true;
    known = known?.error ? null : known;
    write();
    trigger("open", {});
  }
  if (now) search.value = "";
  show();
  stayInside();
  if (now) focusFirst();
}
/* Near the right edge of the window the panel moves to the left. */
function stayInside() {
  if (isOpen()) panel.style.left = Math.min(0, document.documentElement.clientWidth - 16 - panel.offsetWidth - root.getBoundingClientRect().left) + "px";
}
addEventListener("resize", stayInside);
function focusFirst() {
  if (!isComplete()) panel.focus();
  else (known.classes ? search : part("kinds").querySelector(":checked"))?.focus();
}
const run = () => document.getElementById("vizattn-run")?.click();
part("open").addEventListener("click", () => open(!isOpen()));
document.addEventListener("pointerdown", event => { if (!root.contains(event.target)) open(false); });
root.addEventListener("focusout", event => { if (event.relatedTarget && !root.contains(event.relatedTarget)) open(false); });
root.addEventListener("keydown", event => {
  if (event.key !== "Escape" || !isOpen()) return;
  event.stopPropagation();
  open(false);
  part("open").focus();
});

/* A choice that the model cannot answer is let go. */
function learn(answers) {
  known = answers;
  labels = answers.labels ?? labels;
  asking = false;
  const fits = known.error || choice.kind === "own" || (known.classes ? isClasses() && choice.classes.every(index => index < known.classes) : !isClasses() && (known.text || choice.kind !== "text"));
  if (!fits) choice = { kind: "own" };
  write();
  if (isOpen() && isComplete() && known.classes) fillList();
  show();
}

function show() {
  root.lang = language;
  root.hidden = !applies();
  setText(part("label"), word(known?.classes || isClasses() ? "targetClass" : "targetAny"));
  setText(part("open"), chosenName());
  setAttribute(part("open"), "aria-label", `${part("label").textContent}: ${chosenName()}`);
  part("open").title = chosenName();
  search.placeholder = word("targetSearch");
  setAttribute(part("open"), "aria-expanded", isOpen());
  const ready = isComplete();
  part("said").hidden = Boolean(ready);
  part("said").classList.toggle("failed", Boolean(known?.error));
  setText(part("saidText"), known?.error ?? word("running"));
  part("classes").hidden = !ready || !known.classes;
  part("kinds").hidden = !ready || Boolean(known.classes);
  if (ready && isOpen()) { if (known.classes) { if (part("list").children.length) markList(); else fillList(); } else showKinds(); }
  document.dispatchEvent(new CustomEvent("vizattn:aiming", { detail: applies() && choice.kind === "patch" }));
}

watch("value", () => {
  if (!props.value.known) return;
  const had = isOpen() && panel.contains(document.activeElement);
  learn(props.value.known);
  if (had) focusFirst();
});
document.addEventListener("vizattn:method", ({ detail }) => { method = detail; write(); show(); });
document.addEventListener("vizattn:model", ({ detail }) => {
  if (detail === model) return;
  model = detail;
  labels = null;
  forget();
  choose({ kind: "own" });
});
/* A patch is one of the picture on show: with another picture it is chosen anew. */
document.addEventListener("vizattn:picked", () => {
  forget();
  if (choice.kind === "patch") choose({ kind: "own" });
});
function forget() {
  known = shown = null;
  part("list").replaceChildren();
  write();
  show();
}
/* A run says what its model answers; the names of its classes are sent when the panel opens, once. */
document.addEventListener("vizattn:explained", ({ detail: { id, asked, answers } }) => {
  if (asked.model !== model) return;
  shown = id;
  part("list").replaceChildren();
  learn(answers);
});
document.addEventListener("vizattn:aimed", ({ detail: { x, y } }) => {
  choose({ kind: "patch", x, y });
  run();
});

/* A link names model, method and choice. */
function readLink() {
  model = inLink("model") ?? model;
  method = inLink("method") ?? method;
  try { choice = { kind: "own", ...JSON.parse(inLink("target")) }; } catch { /* somebody else's text */ }
  if (isClasses() && !Array.isArray(choice.classes)) choice = { kind: "own" };
  write();
}
if (inLink("method")) readLink();
const speakLanguage = () => { translate(root); part("list").replaceChildren(); show(); };
onLanguage(speakLanguage);
speakLanguage();
