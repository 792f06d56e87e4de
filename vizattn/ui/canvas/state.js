/* State: everything that only changes the view. Nothing here is ever sent anywhere. */
const part = name => element.querySelector(`[data-part="${name}"]`);
const root = part("root");

const PERCENTILES = [100, 99.9, 99.5, 99, 98];
const state = {
  view: "picture",      // "picture", "wall", "compare"
  layer: 1,             // counts from 1, over the layers that can be drawn
  head: "mean",         // "mean" or 1, 2, … ; a method without heads has the one map 1
  ask: "own",           // who asks when no patch does: "own" (the model's query), "class", "register", "mean"
  held: false,          // whether that question stays while the pointer reads
  pins: [],             // the patches that ask: points {x, y} in pixels of the original picture, at most two
  pointed: null,        // where the pointer is, likewise; when nothing is held or pinned it asks
  direction: "to",      // "to": what the asked looks at; "from": what looks at the asked
  wallRange: "model", wallLabel: "entropy", wallOrder: "model",
  fixed: 0,             // the top of the range "fixed": that of the view in which it was chosen
  range: "map", unit: "share", percentile: 99.5,
  colours: "viridis", opacity: 85, base: "grey", cells: "exact",
  paneCount: 2, same: false, difference: false,
  panes: [{ from: "", layer: 0, head: 1 }, { from: "", layer: 0, head: 2 }, { from: "", layer: 0, head: 3 }],
  playing: false,
};
let data = null;        // the explanation that is drawn, made by data.js
let home = null;        // the explanation on show; while a pane is drawn, `data` is the pane's
const shelf = [];       // explanations of this visit, the newest first: what can be compared

let aiming = false;     // whether a patch chosen here is what the method is to explain, and asks nothing
document.addEventListener("vizattn:aiming", ({ detail }) => { if (detail !== aiming) { aiming = detail; draw(); } });

const followers = [];   // what redraws after a change, in the order it was registered
const probe = { state, draws: [], map: () => currentMap(), mapOf: (layer, head) => mapOf(layer, head), resolved: () => resolvedIn(state.layer) };

function draw() {
  if (!data) return;
  const start = performance.now();
  for (const follow of followers) follow();
  if (probe.draws.push(performance.now() - start) > 500) probe.draws.shift();
}

function change(changes) {
  Object.assign(state, changes);
  draw();
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const goToLayer = layer => change({ layer: clamp(layer, 1, data.layers) });
const pointerIsCoarse = () => matchMedia("(pointer: coarse)").matches;
/* Free, the pointer asks. Once a question is pinned, it reads. */
const isFree = () => !state.pins.length && !state.held && !aiming;
