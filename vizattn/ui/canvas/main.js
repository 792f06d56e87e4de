/* Main: an explanation arrives, is fetched, opened and drawn. The newest one wins. */
const emblem = part("emblem");
for (let row = 0; row < 4; row++) for (let column = 0; column < 6; column++) {
  const square = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ x: column * 12.5, y: row * 12.5, width: 11, height: 11 })) square.setAttribute(name, value);
  if ([8, 9, 14].includes(row * 6 + column)) square.setAttribute("class", "hot");
  emblem.append(square);
}

function fail(error) {
  part("failure").hidden = false;
  setText(part("failure"), word("broken", { reason: error instanceof Error ? error.message : String(error) }));
}

async function fetchBytes(file) {
  const answer = await fetch(file.url);
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

/* The photo is decoded before anything changes, so that map and photo appear together. */
async function fetchPhoto(file) {
  const image = new Image();
  image.src = file.url;
  await image.decode();
  return image.src;
}

let newest = 0, opened = null;
async function load(payload) {
  if (!payload || !payload.files || payload.id === opened) return;
  const turn = ++newest;
  opened = payload.id;
  try {
    const payloads = [payload, ...(payload.beside ?? [])];
    const [address, ...maps] = await Promise.all([fetchPhoto(payload.files.picture), ...payloads.map(each => fetchBytes(each.files.maps))]);
    if (turn !== newest) return;
    const [next, ...beside] = payloads.map((each, index) => openData(each, maps[index], address));
    open(next, beside);
    if (payload.answers) document.dispatchEvent(new CustomEvent("vizattn:explained", { detail: payload }));
  } catch (error) {
    if (turn !== newest) return;
    opened = null;
    fail(error);
  }
}

function openData(payload, bytes, address) {
  const made = new Data(payload, new Uint16Array(bytes), address);
  return Object.assign(made, {
    rows: new RowStore(made), answers: new Map(), lastAnswer: null, trouble: null,
    asked: { key: "", maps: new Map(), resolved: new Map() },
  });
}

/* Questions are put to one picture: with the next one they start anew. */
function open(next, beside = []) {
  const first = data === null;
  data = home = next;
  for (const each of [...beside].reverse()) shelve(each);
  shelve(next);
  if (beside.length) showBeside(beside);
  Object.assign(state, {
    layer: first ? data.layers : clamp(state.layer, 1, data.layers),
    pins: [], pointed: null, last: null, adding: false, held: false, ask: "own",
  });
  if (pending) { restoreView(pending); pending = null; }
  const layerRange = element.querySelector('[data-choice="range"] [data-value="layer"]');
  layerRange.hidden = data.mostHeads < 2;   // there, a layer is one map
  if (layerRange.hidden && state.range === "layer") state.range = "map";
  part("failure").hidden = true;
  setAttribute(root, "data-state", "open");
  openPicture();
  openStrip();
  openTimeline();
  nameData();
  layOut();
  draw();
  prepare(data);
  /* The arrow keys work at once, unless the person has gone elsewhere meanwhile. */
  if (document.activeElement?.id === "vizattn-run") part("stage").focus({ preventScroll: true });
  /* On a phone Run lies below: the answer comes into sight. */
  if (root.getBoundingClientRect().top < -innerHeight / 2) root.scrollIntoView({ block: "start" });
}

/* What was looked at in this visit stays at hand for a comparison. */
const MOST_SHELVED = 6;
function shelve(next) {
  if (!shelf.includes(next)) shelf.unshift(next);
  shelf.splice(MOST_SHELVED);
  state.panes = panesFor(next, shelf.find(each => each !== next));   // the first thing to compare with is the last one
}

/* Several maps of one question: each has a pane. */
function showBeside(beside) {
  beside.forEach((each, index) => { state.panes[index] = { from: each.payload.id, layer: 0, head: "mean" }; });
  Object.assign(state, { view: "compare", paneCount: beside.length + 1, ask: "own" });
}

/* Decode and sort the other layers in idle moments, so that the first visit is as quick as the second. */
function prepare(which) {
  let layer = 1;
  const next = () => {
    if (which !== data || layer > which.layers) return;
    for (const head of which.headNames(layer)) which.map(layer, head).sizes();
    layer += 1;
    setTimeout(next, 0);
  };
  setTimeout(next, 50);
}

/* What names the explanation, as text and nothing else. */
function nameData() {
  if (!data) return;
  const { picture: whole, input, model, method } = data.payload;
  setText(part("summary"), [whole.name, model.label, phrase(method.title)].join(" · "));
  const { rows, columns } = data.info(data.layers).place;
  const size = word("note", { width: whole.width, height: whole.height, a: input.width, b: input.height, columns, rows });
  setText(part("note"), `${size}, ${word(sawEverything() ? "noteWhole" : "noteCropped")}`);
  const remarks = [...(model.notes ?? []).map(phrase), ...undrawnLayers(), ...whatIsInside()];
  setText(part("remarks"), remarks.join(" "));
  part("remarks").hidden = !remarks.length;
  nameMethod();
  photo.alt = word("photoText", { file: whole.name });
  nameThumbs();
}

/* A file of its own says what it holds. */
function whatIsInside() {
  const { inside } = data.payload;
  if (!inside) return [];
  const bytes = inside.reduce((sum, number) => sum + (data.infos.find(({ layer }) => layer === number)?.rows?.bytes ?? 0), 0);
  return [inside.length ? word("insideRows", { n: data.count, layers: inside.map(layer => layer + 1).join(", "), size: megabytes(bytes) }) : word("insideMaps", { n: data.count })];
}

/* Layers that were captured and cannot be laid over the picture are named with the reason. */
function undrawnLayers() {
  const reasons = new Map();
  for (const { layer, reason } of data.payload.undrawn ?? []) reasons.set(reason, [...(reasons.get(reason) ?? []), layer + 1]);
  return [...reasons].map(([reason, layers]) => word("undrawn", { layers: layers.join(", "), reason: phrase(reason) }));
}

const showView = radioGroup(part("views"), () => state.view, view => change({ view, pointed: null }), ALL_ARROWS, "aria-selected");
let shownView = "";
followers.push(() => {
  showView();
  if (state.view === shownView) return;
  shownView = state.view;
  setAttribute(root, "data-view", state.view);
  setAttribute(body, "aria-labelledby", element.querySelector(`[role="tab"][data-value="${state.view}"]`).id);
  layOut();
  draw();
});

function speakLanguage() {
  translate(root);
  nameInspector();
  nameHelp();
  nameData();
  draw();
}

const toInputs = () => document.dispatchEvent(new CustomEvent("vizattn:change"));
part("change").addEventListener("click", toInputs);
part("emptyChange").addEventListener("click", toInputs);

/* Without a page around it the viewer follows the system's theme; inside one, the page's. */
function followTheme() {
  const dark = document.querySelector(".gradio-container, .va-alone") ? document.body.classList.contains("dark") : matchMedia("(prefers-color-scheme: dark)").matches;
  setAttribute(root, "data-theme", dark ? "dark" : "light");
}
new MutationObserver(followTheme).observe(document.body, { attributes: true, attributeFilter: ["class"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", followTheme);

followTheme();
onLanguage(speakLanguage);
speakLanguage();
window.__vizattn = Object.assign(probe, { shown: () => data?.payload.id });
if (wantsOther(props.value)) askForLinked(); else load(props.value);
watch("value", () => load(props.value));
