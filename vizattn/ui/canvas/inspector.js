/* The inspector: how values become colours, and the numbers behind them. */
const chooseFrom = (name, text = value => value) => radioGroup(
  element.querySelector(`[data-choice="${name}"]`), () => state[name], value => change({ [name]: text(value) }));

for (const name of Object.keys(LOOKUP).filter(each => each !== SIGNED)) {
  const swatch = make("button"), table = LOOKUP[name], stops = [];
  for (let step = 0; step < 256; step += 15) stops.push(`rgb(${table.subarray(step * 3, step * 3 + 3).join()})`);
  swatch.type = "button";
  swatch.setAttribute("role", "radio");
  swatch.setAttribute("aria-label", name);
  swatch.title = name;
  swatch.dataset.value = name;
  swatch.style.backgroundImage = `linear-gradient(90deg, ${stops.join()})`;
  part("swatches").append(swatch);
}
for (const percentile of PERCENTILES) part("percentile").append(new Option("", percentile));

/* The wall keeps a range of its own: there, one scale for all is the use of it. */
const chooseRange = radioGroup(element.querySelector('[data-choice="range"]'), currentRange, chooseRangeOf);
function chooseRangeOf(value) {
  const name = state.view === "wall" ? "wallRange" : "range";
  change({ ...(value === "fixed" && state[name] !== "fixed" ? { fixed: currentTop() } : {}), [name]: value });
}
const choices = [chooseRange, ...["unit", "colours", "base", "cells"].map(name => chooseFrom(name))];
part("percentile").addEventListener("change", event => change({ percentile: Number(event.target.value) }));
part("opacity").addEventListener("input", event => change({ opacity: Number(event.target.value) }));

function nameInspector() {
  for (const option of part("percentile").options) {
    const p = Number(option.value);
    setText(option, p === 100 ? word("topMaximum") : word("topPercentile", { p }));
  }
}

function scaleNote(map = currentMap(), top = currentTop()) {
  if (state.view === "wall" && tiles.length) return wallScaleNote();
  const above = countAbove(map.sizes(), top), whole = above === 0 && Math.max(map.maximum, -map.minimum) > top * 0.999;
  const first = word(whole ? "topWhole" : "topClipped", { value: format(top), k: above, n: map.place.patches });
  return `${first} ${rangeNote()}`;
}
function wallScaleNote() {
  if (!["model", "fixed"].includes(state.wallRange)) return rangeNote();
  const top = state.wallRange === "fixed" ? state.fixed : data.top("model", 1, data.map(1, 1), state.percentile);
  return `${word("topClipped", { value: format(top), ...wallAbove(top) })} ${rangeNote()}`;
}
function rangeNote() {
  const { maps, layer } = data.info(state.layer);
  if (currentRange() === "fixed") return word("scaleFixed");
  if (currentRange() === "layer") return word("scaleLayer", { layer: layer + 1, n: maps });
  return currentRange() === "model" ? word(resolvedIn(state.layer).kind === "own" ? "scaleModel" : "scaleModelOwn", { n: data.count }) : word("scaleMap");
}

const MASS_WORDS = { class: "massClass", register: "massRegister", distillation: "massDistillation" };

const FROM_WORDS = { class: "nameClass", register: "nameRegister" };

/* Rows and segments exist once for each kind of layer; a draw only fills in widths and numbers. */
let massRows = [], massKey = "";
function openMass(kinds, from, away) {
  const bar = part("massBar"), pairs = part("massPairs");
  bar.textContent = pairs.textContent = "";
  const rows = from ? [...kinds.map(([kind, count]) => ({ kind, count, from })), { kind: "received" }]
    : [...kinds.map(([kind, count]) => ({ kind, count })), { kind: "patch" }, { kind: "spread" }, ...(away ? [{ kind: "distance" }] : [])];
  massRows = rows.map(row => {
    const line = make("div"), name = make("dt"), value = make("dd"), text = make("span");
    let piece = null;
    if (!row.count && row.kind !== "patch") line.className = "aside";
    if (!from && (row.kind === "patch" || row.count)) {
      bar.append(piece = make("i", row.kind === "patch" ? "patch" : row.kind === "class" ? "hatch" : "hatch other"));
      name.append(make("i", piece.className));
    }
    name.append(text);
    line.append(name, value);
    pairs.append(line);
    return { ...row, piece, text, value };
  });
}

function drawMass() {
  const shown = data.isShare, map = currentMap(), from = isColumn(), kinds = undrawnKinds(map);
  part("massBlock").hidden = part("unitLine").hidden = !shown;
  if (!shown) return;
  const away = distanceOf(map, resolvedIn(state.layer)) !== null, key = [from, away, ...kinds.map(([kind, count]) => kind + count)].join();
  if (key !== massKey) { massKey = key; openMass(kinds, from, away); }
  setText(part("massTitle"), word(from ? "massFrom" : "mass"));
  part("massBar").hidden = from;
  part("massNote").hidden = !from;
  if (from) setText(part("massNote"), word("massFromNote", { n: map.place.patches }));
  const whole = map.sum + map.undrawn, said = [];
  massRows.forEach((row, index) => {
    fillMass(row, map, kinds[index]?.[2] ?? 0, whole);
    if (row.piece) said.push(`${row.text.textContent} ${row.value.textContent}`);
  });
  setAttribute(part("massBar"), "aria-label", said.join(", "));
}

function fillMass({ kind, count, from, piece, text, value }, map, mass, whole) {
  if (kind === "received") {
    setText(text, word("massReceived"));
    setText(value, word("massReceivedValue", { times: significant(map.sum * data.info(state.layer).tokens / map.place.patches) + timesSign() }));
  } else if (from) {
    setText(text, word("massFromOther", { name: word(FROM_WORDS[kind] ?? "nameOther") }));
    setText(value, percent(mass / count));
  } else if (kind === "spread") {
    setText(text, word("spread"));
    setText(value, word("spreadValue", { k: Math.round(2 ** map.entropy), n: map.place.tokens, bits: map.entropy.toFixed(1) }));
  } else if (kind === "distance") {
    setText(text, word("distance"));
    setText(value, word("distanceValue", { n: distanceOf(map, resolvedIn(state.layer)).toFixed(1) }));
  } else {
    const share = kind === "patch" ? map.sum / whole : mass / whole;
    piece.style.width = share * 100 + "%";
    setText(text, kind === "patch" ? word("massPatch") : word(MASS_WORDS[kind] ?? "massOther", { n: count }));
    setText(value, kind === "patch" ? percentOfWhole(share) : percent(share));
  }
}

/* How far one asking patch looks on average, in patches of the map. */
function distanceOf(map, { kind, patches, info }) {
  if (kind !== "patch" || patches?.length !== 1 || !(map.sum > 0)) return null;
  const from = info.queries.place.centre(patches[0]), { columns, rows, frame } = map.place;
  const x = (from.x - frame.left) / frame.width * columns - 0.5, y = (from.y - frame.top) / frame.height * rows - 0.5;
  let sum = 0;
  map.values.forEach((value, patch) => { sum += value * Math.hypot(patch % columns - x, Math.floor(patch / columns) - y); });
  return sum / map.sum;
}

const strongestRows = Array.from({ length: 5 }, (_, index) => {
  const item = make("li"), button = make("button");
  button.type = "button";
  button.append(make("span", "rank", String(index + 1)), make("span", "where"), make("span", "value"));
  button.addEventListener("click", () => { if (canAskPatches(state.layer)) pin(currentMap().place.centre(Number(button.dataset.patch))); });
  item.append(button);
  part("strongest").append(item);
  return { item, button };
});

function drawStrongest() {
  const map = currentMap(), pinned = state.pins.map(each => map.place.patchAt(each));
  strongestRows.forEach(({ item, button }, index) => {
    const patch = map.strongest[index];
    item.hidden = patch == null;
    if (patch == null) return;
    const { row, column } = map.place.rowColumn(patch), value = format(map.values[patch]);
    button.dataset.patch = patch;
    setText(button.children[1], `${row}, ${column}`);
    setText(button.children[2], value);
    setAttribute(button, "aria-pressed", pinned.includes(patch));
    setAttribute(button, "aria-label", `${index + 1}. ${word("patchAt", { row, column })}, ${value}`);
    setAttribute(button, "title", word("rowColumn"));
  });
}

followers.push(() => {
  for (const show of choices) show();
  part("percentile").value = state.percentile;
  part("percentile").disabled = currentRange() === "fixed" && state.view !== "compare";
  part("opacity").value = state.opacity;
  part("opacity").disabled = state.base === "off";
  setText(part("opacityValue"), state.base === "off" ? "–" : state.opacity + percentSign());
  setText(part("scaleNote"), scaleNote());
  drawMass();
  drawStrongest();
});
