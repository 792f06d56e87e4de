/* The wall: every layer and head at once. x is depth and y is head, as everywhere; on a phone the
   layers run down, because there are more of them. Tiles are made once and repainted in place. */
const wall = part("wall"), tileGrid = part("tiles");
const wallBar = new ColourBar(part("wallBar"), () => false);
let tiles = [], wallKey = "", wallRead = null;   // wallRead: the tile under the pointer or the focus

/* Numbers of a head: of the map on show, or of all its rows, which the server counts when first asked. */
const WALL_NUMBERS = {
  entropy: map => map.entropy,
  distance: (map, numbers, head) => numbers?.distance?.[head - 1] ?? null,
  sink: (map, numbers, head) => (numbers?.sink_share ? numbers.sink_share[head - 1] * 100 : null),
  prefix: map => map.undrawn * 100,
};
const NEEDS_COUNTING = ["distance", "sink"];

/* The question of the wall is the one that is pinned; where a layer cannot answer it, its tile stays empty. */
function wallMap(layer, head) {
  const resolved = resolvedIn(layer);
  return resolved.kind === "own" && resolved.why ? null : mapOf(layer, head);
}
function wallNumber(layer, head) {
  const map = wallMap(layer, head);
  return map && data.isShare ? WALL_NUMBERS[state.wallLabel](map, data.info(layer).statistics, head) : null;
}

function wallItems() {
  const items = [];
  for (let layer = 1; layer <= data.layers; layer++) {
    const heads = Array.from({ length: data.info(layer).maps }, (_, index) => ({ layer, head: index + 1, number: wallNumber(layer, index + 1) }));
    if (state.wallOrder === "layer") heads.sort(byNumber);
    items.push(...heads.map((item, row) => ({ ...item, row })));
  }
  return state.wallOrder === "all" ? items.sort(byNumber) : items;
}
const byNumber = (one, other) => (other.number ?? -Infinity) - (one.number ?? -Infinity);

function openTiles(items) {
  const down = root.clientWidth <= NARROW, all = state.wallOrder === "all", size = tileSize(down, all);
  tileGrid.textContent = "";
  tileGrid.className = all ? "tiles flow" : "tiles";
  tileGrid.style.setProperty("--tile-wide", size.wide + "px");
  tileGrid.style.setProperty("--tile-high", size.high + "px");
  tileGrid.style.gridTemplateColumns = all ? "" : `${size.names}px repeat(${down ? data.mostHeads : data.layers}, ${size.wide}px)`;
  if (!all) openNames(down);
  tiles = items.map(item => openTile(item, all ? null : down ? [item.layer + 1, item.row + 2] : [item.row + 2, item.layer + 1]));
}

function openTile({ layer, head }, at) {
  const button = make("button"), canvas = make("canvas"), label = make("span", "number");
  button.type = "button";
  if (at) button.style.gridArea = at.join(" / ");
  button.append(canvas, label);
  button.addEventListener("click", () => { change({ layer, head, view: "picture" }); part("stage").focus({ preventScroll: true }); });
  for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => readTile({ layer, head }));
  button.addEventListener("pointerleave", () => readTile(null));
  tileGrid.append(button);
  return { layer, head, button, canvas, label, painted: "" };
}

function openNames(down) {
  const name = (text, row, column) => {
    const node = make("span", row === 1 ? "name above" : "name", text);
    node.setAttribute("aria-hidden", "true");
    node.style.gridArea = `${row} / ${column}`;
    tileGrid.append(node);
  };
  for (let layer = 1; layer <= data.layers; layer++) {
    const text = layer === 1 && !down ? `${word("layer")} ${data.number(1)}` : String(data.number(layer));
    if (down) name(text, layer + 1, 1); else name(text, 1, layer + 1);
  }
  for (let row = 1; row <= data.mostHeads && data.perHead; row++) {
    const ranked = state.wallOrder === "layer", last = row === data.mostHeads;
    const text = ranked ? (row === 1 ? word("wallHighest") : last ? word("wallLowest") : "") : row === 1 && !down ? `${word("head")} 1` : String(row);
    if (down) name(text, 1, row + 1); else name(text, row + 1, 1);
  }
}

/* As large as fits on one screen, and never too small for a finger where fingers are used. */
function tileSize(down, all) {
  const { frame } = data.payload, shape = frame.width / frame.height, gap = down ? 6 : 8, names = all ? 0 : down ? 26 : 56;
  const columns = all ? Math.min(15, data.count) : down ? data.mostHeads : data.layers, rows = all ? Math.ceil(data.count / columns) : data.mostHeads;
  const room = wall.clientWidth - names - gap * columns;
  let wide = Math.min(160, Math.floor(room / columns));
  if (!down) {
    const high = Math.floor((tallest(40) - 24) / rows) - 28;
    if (wide / shape > high) wide = Math.round(Math.max(24, high) * shape);
  }
  wide = Math.max(pointerIsCoarse() ? 40 : 24, wide);
  return { wide, high: Math.max(8, Math.round(wide / shape)), names };
}

function readTile(tile) {
  wallRead = tile;
  drawWallWords();
}
function drawWallWords() {
  const { layer, head } = wallRead ?? { layer: state.layer, head: currentHead() }, answered = head === "mean" || wallMap(layer, head);
  setText(part("wallSentence"), answered ? sentence(layer, head) : word("wallNothing", { layer: data.number(layer) }));
  setText(part("wallDetail"), answered ? detail(layer, head) : "");
  setText(part("wallNote"), data.isShare ? word({ entropy: "wallEntropy", distance: "wallDistance", sink: "wallSink", prefix: "wallPrefix" }[state.wallLabel]) : "");
}

const written = number => (number === null ? "…" : state.wallLabel === "entropy" || state.wallLabel === "distance" ? number.toFixed(1) : significant(number));
function paintTile(tile, tops) {
  const { layer, head, button, canvas, label } = tile, map = wallMap(layer, head), number = wallNumber(layer, head);
  const key = [data.asked.key, Boolean(map), state.colours, tops.key(layer)].join();
  if (key !== tile.painted) {
    tile.painted = key;
    canvas.classList.toggle("blank", !map);
    if (map) paintMap(canvas, map, tops.of(layer, map), 1, false);
  }
  const name = data.perHead ? word("wallTile", { layer: data.number(layer), head }) : word("layerOf", { layer: data.number(layer), n: data.depth });
  const text = number === null && !data.isShare ? "" : written(number), short = state.wallOrder === "all" ? word("wallShort", { layer: data.number(layer), head }) : state.wallOrder === "layer" ? `${head}` : "";
  setText(label, data.perHead && short ? `${short}${state.wallOrder === "all" ? "\n" : " · "}${text}` : text);
  const current = layer === state.layer && head === currentHead();
  button.classList.toggle("lit", current);
  setAttribute(button, "aria-current", current);
  button.tabIndex = current || (tile === tiles[0] && currentHead() === "mean") ? 0 : -1;
  const whole = map ? `${name}. ${word(WALL_WORDS[state.wallLabel])} ${text}. ${word("wallStrongest", { value: format(map.maximum) })}` : `${name}. ${word("wallNothing", { layer: data.number(layer) })}`;
  setAttribute(button, "aria-label", whole);
  button.title = whole;
}
const WALL_WORDS = { entropy: "labelEntropy", distance: "labelDistance", sink: "labelSink", prefix: "labelPrefix" };

/* The scales of all tiles, each worked out once. */
function wallTops() {
  const tops = new Map(), range = state.wallRange;
  return {
    of(layer, map) {
      if (range === "fixed") return state.fixed;
      if (range === "map") return percentileOf([map.sizes()], state.percentile);
      const key = range === "layer" ? layer : 0;
      if (!tops.has(key)) tops.set(key, range === "layer" ? topOf(layer, 1, "layer") : data.top("model", layer, map, state.percentile));
      return tops.get(key);
    },
    key: layer => [range, range === "layer" ? layer : 0, state.percentile, state.fixed].join("/"),
  };
}

/* Of all maps on the wall the one with the largest value: it decides whether the scale clips. */
function brightest() {
  const maps = tiles.map(({ layer, head }) => wallMap(layer, head)).filter(Boolean);
  return maps.reduce((best, map) => (map.maximum > best.maximum ? map : best), maps[0] ?? data.map(data.layers, 1));
}
/* How many values on the wall lie above the top of its one scale. */
function wallAbove(top) {
  let above = 0, all = 0;
  for (const { layer, head } of tiles) {
    const map = wallMap(layer, head);
    if (map) { above += countAbove(map.sizes(), top); all += map.values.length; }
  }
  return { k: above.toLocaleString(language), n: all.toLocaleString(language) };
}

/* Rows of all layers, one after another; heads are counted likewise when a label needs it. */
function fillWall() {
  const asks = question().kind !== "own" || state.direction === "from";
  const missing = data.infos.findIndex((_, index) => resolvedIn(index + 1).why === "askLoading");
  if (asks && missing >= 0) data.rows.want(missing + 1);
  if (NEEDS_COUNTING.includes(state.wallLabel) && data.perHead) countHeads(data);
}
async function countHeads(which) {
  if (which.counting || !server.count) return;
  which.counting = true;
  for (const info of which.infos) {
    if (info.statistics || which !== data || state.view !== "wall") continue;
    const answer = await server.count({ id: which.payload.id, layer: info.layer });
    if (!answer?.statistics) { which.uncounted = answer?.word ?? "lost"; break; }
    info.statistics = answer.statistics;
    if (which === data) draw();
  }
  which.counting = which.uncounted !== undefined;
}

const showWallLabel = chooseFrom("wallLabel"), showWallOrder = chooseFrom("wallOrder");
function drawWall() {
  if (state.view !== "wall") return;
  fillWall();
  const items = wallItems(), order = state.wallOrder === "model" ? "" : items.map(({ layer, head }) => `${layer}.${head}`).join(" ");
  const key = [data.payload.id, state.wallOrder, order, language, wall.clientWidth, root.clientWidth <= NARROW, tallest(40)].join("|");
  if (key !== wallKey) { wallKey = key; openTiles(items); }
  const tops = wallTops();
  for (const tile of tiles) paintTile(tile, tops);
  part("wallLabels").hidden = !data.isShare;
  const counted = data.perHead && (Boolean(server.count) || data.infos.every(info => info.statistics));
  for (const name of NEEDS_COUNTING) element.querySelector(`[data-choice="wallLabel"] [data-value="${name}"]`).hidden = !counted;
  part("wallOrders").hidden = !data.isShare || !data.perHead;
  showWallLabel();
  showWallOrder();
  const one = brightest(), top = tops.of(data.layers, one);
  setText(part("wallTitle"), word({ model: "wallModel", fixed: "wallModel", layer: "wallLayer", map: "wallMap" }[state.wallRange], { n: data.count, value: format(top) }));
  wallBar.draw(one, top, null, 1);
  wallBar.node.hidden = !["model", "fixed"].includes(state.wallRange);
  drawWallWords();
}
followers.push(drawWall);

/* Arrow keys on a tile move the focus along. */
function focusTile() {
  tiles.find(({ layer, head }) => layer === state.layer && head === currentHead())?.button.focus();
}
