/* Keys, while the focus is inside the viewer and not on a control that has keys of its own. */
const middlePatch = () => (data.rows >> 1) * data.columns + (data.columns >> 1);

function movePinned(down, right) {
  const from = state.pinned >= 0 ? state.pinned : state.pointed >= 0 ? state.pointed : currentMap().strongest[0] ?? middlePatch();
  const { row, column } = rowColumn(from);
  change({ pinned: (clamp(row + down, 1, data.rows) - 1) * data.columns + clamp(column + right, 1, data.columns) - 1 });
}

const KEYS = {
  ArrowLeft: () => goToLayer(state.layer - 1),
  ArrowRight: () => goToLayer(state.layer + 1),
  ArrowUp: () => stepHead(-1),
  ArrowDown: () => stepHead(1),
  Home: () => goToLayer(1),
  End: () => goToLayer(data.layers),
  Enter: () => change({ pinned: state.pinned >= 0 ? -1 : state.pointed >= 0 ? state.pointed : currentMap().strongest[0] }),
  Escape: () => change({ pinned: -1, pointed: -1 }),
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
