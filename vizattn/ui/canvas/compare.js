/* Compare: two to four pictures with one question and one pointer. A is the view itself; the others
   choose their layer, head and explanation. `within` lets every part draw as if a pane were the view. */
const compare = part("compare"), paneRow = part("panes"), LETTERS = ["A", "B", "C", "D"];
let panes = [], panesKey = "";

function within(pane, act) {
  const kept = [data, state.layer, state.head];
  [data, state.layer, state.head] = [pane.which(), pane.layer(), pane.head()];
  try { return act(); } finally { [data, state.layer, state.head] = kept; }
}

/* What pane `index` shows: {from: an explanation's id or "", layer: 0 for A's or a number, head}. */
const paneState = index => state.panes[index - 1];
const whichOf = index => shelf.find(each => each.payload.id === paneState(index)?.from) ?? home;
function layerOf(index) {
  const { layer } = paneState(index), which = whichOf(index);
  return layer ? clamp(layer, 1, which.layers) : clamp(Math.round(state.layer / home.layers * which.layers), 1, which.layers);
}

/* Three stand in one row, four in two. */
const paneColumns = () => (root.clientWidth <= NARROW ? 1 : state.paneCount === 3 && root.clientWidth > WIDE ? 3 : 2);
function openPanes() {
  paneRow.textContent = "";
  paneRow.style.setProperty("--columns", paneColumns());
  panes = LETTERS.slice(0, state.paneCount).map((letter, index) => openPane(letter, index));
}

function openPane(letter, index) {
  const node = part("paneTemplate").content.firstElementChild.cloneNode(true), piece = name => node.querySelector(`[data-pane="${name}"]`);
  const pane = {
    index, node, piece, letter,
    which: () => (index ? whichOf(index) : home),
    layer: () => (index ? layerOf(index) : homeState.layer),
    head: () => (index ? pane.which().head(pane.layer(), isFeature(paneState(index).head) ? "mean" : paneState(index).head) : home.head(homeState.layer, homeState.head)),
    feature: () => (index && isFeature(paneState(index).head) ? paneState(index).head : null),
    bar: new ColourBar(piece("bar"), () => false),
  };
  setText(piece("letter"), letter);
  piece("stage").setAttribute("aria-describedby", part("hint").id);
  for (const name of ["from", "layer", "head"]) piece(name).addEventListener("change", event => choosePane(index, name, event.target.value));
  listenOn(piece("picture"));
  paneRow.append(node);
  return pane;
}

function choosePane(index, name, value) {
  const read = name === "from" ? value : name === "head" && (value === "mean" || isFeature(value)) ? value : Number(value);
  if (!index) return change(name === "layer" ? { layer: read } : { head: read });
  const changed = { ...paneState(index), [name]: read };
  return change({ panes: state.panes.map((each, at) => (at === index - 1 ? changed : each)) });
}

function fillChoices(pane) {
  const { index, piece } = pane, which = pane.which(), letter = pane.letter, key = [which.payload.id, pane.layer(), shelf.map(each => each.payload.id), language].join();
  if (pane.filled !== key) {
    pane.filled = key;
    const options = (node, list) => node.replaceChildren(...list.map(([value, text]) => new Option(text, value)));
    options(piece("from"), shelf.map(each => [each.payload.id, explanationName(each)]));
    options(piece("layer"), [...(index ? [[0, word("paneSame")]] : []), ...which.infos.map((info, at) => [at + 1, `${word("layer")} ${info.layer + 1}`])]);
    options(piece("head"), which.headNames(pane.layer()).map(head => [head, head === "mean" ? word("headMean") : which.perHead ? `${word("head")} ${head}` : phrase(which.payload.method.title)]));
    if (index && server.features) for (const name of FEATURES) piece("head").append(new Option(word({ colours: "featureColoursShort", lengths: "featureLengthsShort" }[name]), name));
    for (const [name, label] of [["from", "explanation"], ["layer", "layer"], ["head", "head"]]) setAttribute(piece(name), "aria-label", `${letter}: ${word(label)}`);
  }
  piece("from").hidden = !index || shelf.length < 2;
  piece("head").hidden = piece("head").options.length < 2;
  piece("layer").hidden = Boolean(pane.feature());
  piece("from").value = which.payload.id;
  piece("layer").value = index ? paneState(index).layer : homeState.layer;
  piece("head").value = pane.feature() ?? pane.head();
}
/* Only what tells the explanations of this visit apart. */
function explanationName(which) {
  const name = ({ payload }) => [phrase(payload.method.target ?? ""), payload.picture.name, payload.model.label, phrase(payload.method.title), Object.values(payload.asked?.settings ?? {}).join(" ")];
  const names = shelf.map(name), telling = name(which).filter((text, at) => text && names.some(each => each[at] !== text));
  return (telling.length ? telling : name(which).slice(0, 4)).filter(Boolean).join(" · ");
}

/* Without a choice the panes show other heads, and other layers where there are no heads. */
function panesFor(which, before) {
  const depth = share => Math.max(1, Math.round(which.layers * share));
  const panes = which.mostHeads > 1 ? [1, 2, 3].map(head => ({ from: "", layer: 0, head })) : [0.75, 0.5, 0.25].map(share => ({ from: "", layer: depth(share), head: 1 }));
  return before ? [{ from: before.payload.id, layer: 0, head: "mean" }, ...panes.slice(1)] : panes;
}

/* What a pane minus A comes to, where both lie on the same grid. */
function differenceOf(map, first) {
  if (map.place.rows !== first.place.rows || map.place.columns !== first.place.columns) return null;
  return Object.assign(summarise(map.place, map.values.map((value, patch) => value - first.values[patch]), []), { signed: true });
}

function drawPane(pane, map, top, differs) {
  const { piece } = pane, whole = data.payload.picture, feature = pane.feature(), resolved = resolvedIn(state.layer);
  const read = feature ? (state.pointed ? map.place.patchAt(local(state.pointed)) : -1) : readPatch();
  if (pane.address !== data.address) {
    pane.address = data.address;
    piece("photo").src = data.address;
    place(piece("outside"), percentBox(data.payload.frame));
    piece("outside").hidden = sawEverything();
  }
  place(piece("overlay"), percentBox(map.place.frame));
  paintMap(piece("overlay"), map, top, overlayOpacity(), state.cells === "smooth");
  setAttribute(piece("picture"), "data-base", state.base);
  setAttribute(piece("picture"), "data-cells", state.cells);
  mark(piece("peak"), map.place, map.maximum > 0 && !differs && !map.rgb ? map.strongest[0] : -1, whole);
  markAsked([piece("asked"), piece("second")], feature ? { info: resolved.info } : resolved, whole);
  mark(piece("reading"), map.place, read, whole);
  markAimed(piece("aimed"), whole);
  placeTip(piece("tip"), map, read, whole);
  pane.bar.draw(map, top, read < 0 ? null : map.values[read], overlayOpacity());
  pane.bar.node.style.visibility = map.rgb || map.waiting ? "hidden" : "";
  const said = feature && featureWords(data, feature, map.waiting ? null : map);
  const first = said ? said[0] : differs ? word("paneDifference", { letter: pane.letter }) : sentence(), second = said ? said[1] : differs ? sentence() : resolved.why ? why(resolved) : detail();
  setText(piece("sentence"), first);
  setText(piece("detail"), second);
  setAttribute(piece("stage"), "aria-label", word("mapText", { text: `${pane.letter}. ${first} ${second}` }));
  setAttribute(piece("overlay"), "aria-label", word("mapText", { text: `${first} ${second}` }));
}

/* Nothing yet, on the grid where something will be. */
function waitingMap() {
  const where = data.info(state.layer).place;
  return Object.assign(summarise(where, new Float32Array(where.patches), []), { bare: true, waiting: true });
}

const homeState = { layer: 1, head: "mean" };
function drawCompare() {
  if (state.view !== "compare") return;
  Object.assign(homeState, { layer: state.layer, head: state.head });
  const key = [state.paneCount, home.payload.id, paneColumns()].join();
  if (key !== panesKey) { panesKey = key; openPanes(); sizePanes(); }
  const shown = panes.map(pane => within(pane, () => { refreshAsked(); return pane.feature() ? featureMap(data, pane.feature()) ?? waitingMap() : currentMap(); })), first = shown[0];
  const maps = shown.map((map, index) => (index && state.difference && !map.bare && differenceOf(map, first)) || map);
  const own = maps.map((map, index) => (map === shown[index] && !map.bare ? within(panes[index], () => topOf(state.layer, currentHead(), "map")) : percentileOf([map.sizes()], state.percentile)));
  const same = Math.max(...own.filter((_, index) => maps[index] === shown[index] && !maps[index].bare));
  panes.forEach((pane, index) => {
    fillChoices(pane);
    const differs = maps[index] !== shown[index], apart = differs || maps[index].bare;
    within(pane, () => drawPane(pane, maps[index], state.same && !apart ? same : own[index], differs));
  });
  drawOverlap(shown);
}

/* How much of two maps is shared: each scaled to sum 1, the smaller of the two added up. */
function drawOverlap([first, second]) {
  const comparable = state.paneCount === 2 && data.isShare && !second.bare && first.place.patches === second.place.patches && first.place.columns === second.place.columns;
  part("overlapBar").hidden = part("overlapNote").hidden = !comparable;
  let shared = 0;
  if (comparable) first.values.forEach((value, patch) => { shared += Math.min(value / first.sum, second.values[patch] / second.sum); });
  part("overlapPiece").style.width = shared * 100 + "%";
  setText(part("overlap"), second.bare ? "" : state.paneCount > 2 ? word("overlapTwo") : comparable ? word("overlapValue", { value: percent(shared) }) : word("overlapNone"));
  for (const name of ["same", "difference"]) part(name).checked = state[name];
  showCount();
}
const showCount = radioGroup(part("paneCount"), () => state.paneCount, value => change({ paneCount: Number(value) }));
for (const name of ["same", "difference"]) part(name).addEventListener("change", event => change({ [name]: event.target.checked }));

function sizePanes() {
  if (state.view !== "compare" || !panes.length) return;
  const narrow = root.clientWidth <= NARROW, columns = paneColumns(), rows = narrow ? 1 : Math.ceil(panes.length / columns), gap = 24;
  const room = Math.floor((compare.clientWidth - gap * (columns - 1)) / columns);
  const height = narrow ? Infinity : rows > 1 ? 320 : tallest(220);
  for (const pane of panes) {
    const { width, height: high } = pane.which().payload.picture, ratio = width / high, wide = Math.floor(Math.min(room, height * ratio));
    pane.node.style.setProperty("--wide", wide + "px");
    pane.node.style.setProperty("--high", Math.round(wide / ratio) + "px");
  }
}
followers.push(drawCompare);
