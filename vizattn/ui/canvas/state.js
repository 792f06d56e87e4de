/* State: everything that only changes the view. Nothing here is ever sent anywhere. */
const part = name => element.querySelector(`[data-part="${name}"]`);
const root = part("root");

const PERCENTILES = [100, 99.9, 99.5, 99, 98];
const state = {
  layer: 1,             // counts from 1
  head: "mean",         // "mean" or 1, 2, … ; a method without heads has the one map 1
  pinned: -1,           // the patch that stays read, row by row from 0; -1 is none
  pointed: -1,          // the patch under the pointer
  range: "map", unit: "share", percentile: 99.5,
  colours: "viridis", opacity: 85, base: "grey", cells: "exact",
  playing: false,
};
let data = null;        // the explanation on show, made by data.js

const followers = [];   // what redraws after a change, in the order it was registered
const probe = { state, draws: [] };

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
const rowColumn = patch => ({ row: Math.floor(patch / data.columns) + 1, column: patch % data.columns + 1 });
const pointerIsCoarse = () => matchMedia("(pointer: coarse)").matches;
