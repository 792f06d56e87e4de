/* Links: every view is a query string. What equals the defaults is left out. */
const LINKED = {
  view: oneOf("picture", "wall", "compare"), head: value => (value === "mean" ? value : whole(value)),
  ask: oneOf("own", "class", "register", "mean"), held: value => value === "true", direction: oneOf("to", "from"),
  wallRange: oneOf("map", "layer", "model", "fixed"), fixed: value => (Number(value) > 0 && Number.isFinite(Number(value)) ? Number(value) : undefined), wallLabel: oneOf("entropy", "distance", "sink", "prefix"), wallOrder: oneOf("model", "layer", "all"),
  range: oneOf("map", "layer", "model", "fixed"), unit: oneOf("share", "times"), percentile: value => oneOf(...PERCENTILES.map(String))(value) && Number(value),
  colours: oneOf(...Object.keys(LOOKUP).filter(name => name !== SIGNED)), opacity: value => clamp(Number(value), 0, 100),
  paneCount: value => Number(oneOf("2", "3", "4")(value)), same: value => value === "true", difference: value => value === "true",
  base: oneOf("colour", "grey", "off"), cells: oneOf("exact", "smooth"),
};
const DEFAULTS = Object.fromEntries(Object.keys(LINKED).map(name => [name, state[name]]));
function oneOf(...allowed) { return value => (allowed.includes(value) ? value : undefined); }
function whole(value) { return /^[1-9]\d{0,4}$/.test(value) ? Number(value) : undefined; }

function linkOf() {
  const { id, asked } = data.payload, link = new URLSearchParams();
  const changed = asked?.settings && Object.keys(asked.settings).length;
  for (const [name, value] of Object.entries({ picture: asked?.picture, id: asked?.picture ? null : id, model: asked?.model, method: asked?.method, settings: changed ? JSON.stringify(asked.settings) : null, target: asked?.target ? JSON.stringify(asked.target) : null }))
    if (value) link.set(name, value);
  link.set("layer", data.number(state.layer));
  for (const name of Object.keys(LINKED)) if (state[name] !== DEFAULTS[name]) link.set(name, state[name]);
  if (state.view === "compare") link.set("panes", state.panes.slice(0, state.paneCount - 1).map(({ layer, head }) => `${layer}.${head}`).join(" "));
  if (state.pins.length) link.set("pins", state.pins.map(({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" "));
  return link;
}

/* What a link says of the view, checked value by value: a link is somebody else's text. */
function viewOf(link) {
  const found = {};
  for (const [name, read] of Object.entries(LINKED)) {
    const value = link.has(name) ? read(link.get(name)) : undefined;
    if (value !== undefined && !Number.isNaN(value)) found[name] = value;
  }
  const pins = (link.get("pins") ?? "").split(" ").map(text => text.split(",").map(Number)).filter(pair => pair.length === 2 && pair.every(Number.isFinite));
  const panes = (link.get("panes") ?? "").split(" ").map(text => /^(\d{1,4})\.(mean|[1-9]\d{0,3})$/.exec(text)).filter(Boolean);
  found.panes = state.panes.map((pane, index) => (panes[index] ? { from: "", layer: Number(panes[index][1]), head: panes[index][2] === "mean" ? "mean" : Number(panes[index][2]) } : pane));
  found.pins = pins.slice(0, 2).map(([x, y]) => ({ x, y }));
  found.number = whole(link.get("layer") ?? "");
  return found;
}
function restoreView({ number, pins, ...found }) {
  found.panes = found.panes.map((pane, index) => ({ ...pane, from: state.panes[index].from }));   // what came with it lies beside it
  const layer = data.infos.findIndex(info => info.layer + 1 === number) + 1;
  Object.assign(state, found, layer ? { layer } : {}, { pins: pins.filter(each => seen(each)) });
}

/* On the first visit: the link's view goes over the explanation that it names, once that is here. */
const standsAlone = !document.querySelector(".gradio-container");
const arrived = new URLSearchParams(standsAlone ? location.hash.slice(1) : location.search);
let pending = arrived.has("layer") ? viewOf(arrived) : null;
function wantsOther(payload) {
  if (standsAlone || (!arrived.has("picture") && !arrived.has("id"))) return false;
  const asked = payload?.asked ?? {}, settings = JSON.stringify(asked.settings ?? {}), target = JSON.stringify(asked.target ?? null);
  return arrived.has("picture") ? ["picture", "model", "method"].some(name => asked[name] !== arrived.get(name)) || settings !== (arrived.get("settings") ?? "{}") || target !== (arrived.get("target") ?? "null")
    : payload?.id !== arrived.get("id");
}
function targetInLink() {
  try { return JSON.parse(arrived.get("target")); } catch { return null; }
}
function askForLinked() {
  const asked = { ...Object.fromEntries(["id", "picture", "model", "method"].map(name => [name, arrived.get(name)])), settings: settingsInLink(), target: targetInLink() };
  document.dispatchEvent(new CustomEvent("vizattn:status", { detail: { kind: "waiting" } }));
  trigger("restore", asked);
}

/* The address follows the view, so that a reload comes back to it. */
let following = 0;
function follow() {
  clearTimeout(following);
  following = setTimeout(() => {
    const address = standsAlone ? `#${linkOf()}` : `?${linkOf()}`;
    try { history.replaceState(history.state, "", address); } catch { /* in a frame without an address */ }
  }, 400);
}

let toasting = 0;
function toast(text) {
  setText(part("toast"), text);
  part("toast").classList.add("shown");
  clearTimeout(toasting);
  toasting = setTimeout(() => part("toast").classList.remove("shown"), 3200);
}
async function copyLink() {
  const address = new URL(standsAlone ? `#${linkOf()}` : `?${linkOf()}`, location.href).href;
  try {
    await navigator.clipboard.writeText(address);
    toast(word(data.payload.asked?.picture || standsAlone ? "linkCopied" : "linkCopiedOwn"));
  } catch {
    showLink(address);
  }
}
/* Where the clipboard is refused, the link is there to be copied by hand. */
function showLink(address) {
  part("linkText").value = address;
  part("linkDialog").showModal();
  part("linkText").select();
}
part("linkClose").addEventListener("click", () => part("linkDialog").close());
part("copy").addEventListener("click", () => { if (data) copyLink(); });
followers.push(follow);
probe.link = () => String(linkOf());
