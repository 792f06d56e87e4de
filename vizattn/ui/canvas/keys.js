/* Keys, while the focus is inside the viewer and not on a control that has keys of its own. */
const strongestPoint = () => { const { place, strongest } = currentMap(); return place.centre(strongest[0]); };
const nextToAsk = () => state.pointed ?? state.last ?? strongestPoint();

/* Moves the patch that was pinned last. */
function movePinned(down, right) {
  if (!canAskPatches(state.layer)) return;
  const { place: where } = data.info(state.layer).queries, from = where.patchAt(state.pins.at(-1) ?? nextToAsk());
  const { row, column } = where.rowColumn(Math.max(0, from));
  const to = where.centre((clamp(row + down, 1, where.rows) - 1) * where.columns + clamp(column + right, 1, where.columns) - 1);
  change({ pins: [...state.pins.slice(0, -1), to], held: false, last: to });
}

/* On the wall arrows go from tile to tile, whichever way round it hangs. */
function step(right, down) {
  if (state.view === "wall" && root.clientWidth <= NARROW) [right, down] = [down, right];
  if (state.view === "wall" && currentHead() === "mean") state.head = 1;
  if (right) goToLayer(state.layer + right); else stepHead(down);
  if (tileGrid.contains(document.activeElement)) focusTile();
}

const KEYS = {
  ArrowLeft: () => step(-1, 0),
  ArrowRight: () => step(1, 0),
  ArrowUp: () => step(0, -1),
  ArrowDown: () => step(0, 1),
  1: () => change({ view: "picture" }),
  2: () => change({ view: "wall" }),
  3: () => change({ view: "compare" }),
  Home: () => goToLayer(1),
  End: () => goToLayer(data.layers),
  Enter: () => (aiming ? aimAt(nextToAsk()) : state.pins.length || !canAskPatches(state.layer) ? change({ pins: [], adding: false }) : pin(nextToAsk())),
  Escape: () => change({ pins: [], pointed: null, held: false, adding: false, ask: "own" }),
  c: () => change(state.held && !state.pins.length ? { held: false } : { pins: [], ask: "own", held: true }),
  d: () => turn(),
  " ": play,
  s: () => change({ cells: state.cells === "exact" ? "smooth" : "exact" }),
  "?": () => openHelp(),
};
const SHIFTED = {
  ArrowLeft: () => movePinned(0, -1), ArrowRight: () => movePinned(0, 1),
  ArrowUp: () => movePinned(-1, 0), ArrowDown: () => movePinned(1, 0),
};

root.addEventListener("keydown", event => {
  if (!data || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, dialog")) return;
  const range = event.target.closest("input"), press = event.key === " " || event.key === "Enter";
  if ((press && event.target.closest("button")) || (range && event.key !== "Escape" && event.key !== "?")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const act = event.shiftKey && SHIFTED[key] ? SHIFTED[key] : KEYS[key];
  if (!act) return;
  act();
  event.preventDefault();
  event.stopPropagation();
});
