/* Asking: who asks (the class token, registers, all patches, a patch) and in which direction. */
const askGroup = part("asks");
const ASKS = { class: "askClass", register: "askRegister", mean: "askMean", pool: "askPool", other: "askOwn" };

/* The model's own query, then whatever else this layer lets one ask. A choice is held: the pointer reads. */
function askChoices(layer) {
  const { query, queries } = data.info(layer), own = ASKS[query.kind] ? query.kind : "other", others = [];
  if (data.perHead && data.rows.offers(layer)) {
    for (const role of ["class", "register"]) if (queries.place.prefix.includes(role) && own !== role) others.push(role);
    if (queries.patches && own !== "mean") others.push("mean");
  }
  return [["own", ASKS[own]], ...others.map(role => [role, ASKS[role]])];
}

let askKey = "", askButtons = [];
function openAsks(choices) {
  askButtons.forEach(({ button }) => button.remove());
  askButtons = choices.map(([value, key]) => {
    const button = make("button");
    button.type = "button";
    button.append(pinIcon(), make("span"));
    button.addEventListener("click", () => change(state.held && state.ask === value && !state.pins.length ? { held: false, ask: "own" } : { ask: value, held: true, pins: [], adding: false }));
    askGroup.insertBefore(button, part("askPatch"));
    return { button, value, key };
  });
}
function pinIcon() {
  const icon = part("askPatch").querySelector("svg").cloneNode(true);
  return icon;
}

part("askPatch").addEventListener("click", () => {
  if (state.pins.length) change({ pins: [], adding: false });
  else pin(state.last ?? state.pointed ?? middle(), false);
});
part("askSecond").addEventListener("click", () => change(state.pins.length > 1 ? { pins: [state.pins[0]], adding: false } : { adding: !state.adding }));

function middle() {
  const { queries } = data.info(state.layer);
  return queries.place.centre((queries.place.rows >> 1) * queries.place.columns + (queries.place.columns >> 1));
}

const chooseDirection = radioGroup(part("direction"), () => state.direction, direction => change({ direction }));
const turn = () => { if (canTurn()) change({ direction: state.direction === "to" ? "from" : "to" }); };
const canTurn = () => data.perHead && data.infos.some((_, index) => data.rows.offers(index + 1));
const canAskPatches = layer => {
  const { queries } = data.info(layer);
  return queries.patches && data.payload.method.has_query !== false && (data.perHead ? data.rows.offers(layer) || Boolean(server.ask) : Boolean(server.ask));
};

function drawAsks() {
  askGroup.hidden = data.payload.method.has_query === false;   // the target alone decides
  const choices = askChoices(state.layer), key = choices.join("|");
  if (key !== askKey) { askKey = key; openAsks(choices); }
  const patches = question().kind === "patch", resolved = resolvedIn(state.layer);
  for (const { button, value, key: name } of askButtons) {
    const on = !patches && state.ask === value;
    setText(button.lastChild, word(name));
    button.classList.toggle("on", on);
    button.classList.toggle("pinned", on && state.held);
    setAttribute(button, "aria-pressed", on && state.held);
  }
  const asks = part("askPatch");
  asks.disabled = !canAskPatches(state.layer);
  asks.classList.toggle("on", patches);
  asks.classList.toggle("pinned", state.pins.length > 0);
  setAttribute(asks, "aria-pressed", state.pins.length > 0);
  setText(asks.lastChild, patchesName(resolved));
  part("askSecond").hidden = !state.pins.length;
  setAttribute(part("askSecond"), "aria-pressed", Boolean(state.adding) || state.pins.length > 1);
  setText(part("askSecond").lastChild, state.pins.length > 1 ? "−" : "+");
  const label = word(state.pins.length > 1 ? "askOne" : "askSecond");
  setAttribute(part("askSecond"), "aria-label", label);
  part("askSecond").title = label;
  part("direction").hidden = !canTurn();
  chooseDirection();
}
/* While a patch is pinned the next layers are fetched beforehand, so that going there is immediate. */
function fetchNeighbours() {
  if (!state.pins.length || !data.perHead || resolvedIn(state.layer).why) return;
  for (const layer of [state.layer - 1, state.layer + 1]) if (layer >= 1 && layer <= data.layers) data.rows.want(layer);
}
followers.push(fetchNeighbours);

function patchesName({ patches, direction, info }) {
  if (!patches?.length) return word("askPatch");
  const where = direction === "from" ? info.place : info.queries.place;
  const names = patches.map(patch => { const { row, column } = where.rowColumn(patch); return `${row}, ${column}`; });
  return `${word("askPatch")} ${names.join(" + ")}`;
}
followers.push(drawAsks);
