/* The inspector: how values become colours, and the numbers behind them. */
const chooseFrom = (name, text = value => value) => radioGroup(
  element.querySelector(`[data-choice="${name}"]`), () => state[name], value => change({ [name]: text(value) }));

for (const name of Object.keys(LOOKUP)) {
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

const choices = ["range", "unit", "colours", "base", "cells"].map(name => chooseFrom(name));
part("percentile").addEventListener("change", event => change({ percentile: Number(event.target.value) }));
part("opacity").addEventListener("input", event => change({ opacity: Number(event.target.value) }));

function nameInspector() {
  for (const option of part("percentile").options) {
    const p = Number(option.value);
    setText(option, p === 100 ? word("topMaximum") : word("topPercentile", { p }));
  }
}

function scaleNote() {
  const map = currentMap(), top = currentTop(), above = countAbove(map.sorted(), top);
  const whole = above === 0 && map.maximum > top * 0.999;
  const first = word(whole ? "topWhole" : "topClipped", { value: format(top), k: above, n: data.patches });
  const count = data.heads * (state.range === "model" ? data.layers : 1);
  const second = word({ map: "scaleMap", layer: "scaleLayer", model: "scaleModel" }[state.range], { layer: state.layer, n: count });
  return `${first} ${second}`;
}

const MASS_WORDS = { class: "massClass", register: "massRegister", distillation: "massDistillation" };

/* Rows and segments exist once per explanation; a draw only fills in widths and numbers. */
let massRows = [];
function openMass() {
  const bar = part("massBar"), pairs = part("massPairs");
  part("massBlock").hidden = part("unitLine").hidden = !data.isShare;
  bar.textContent = pairs.textContent = "";
  massRows = [...undrawnKinds(data.map(1, 1)).map(([kind, count]) => ({ kind, count })), { kind: "patch" }, { kind: "spread" }].map(row => {
    const line = make("div"), name = make("dt"), value = make("dd"), text = make("span");
    let piece = null;
    if (row.kind !== "spread") {
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
  if (!data.isShare) return;
  const map = currentMap(), masses = undrawnKinds(map).map(([, , mass]) => mass), whole = map.sum + map.undrawn, said = [];
  massRows.forEach(({ kind, count, piece, text, value }, index) => {
    if (kind === "spread") {
      setText(text, word("spread"));
      setText(value, word("spreadValue", { k: Math.round(2 ** map.entropy), n: data.tokens, bits: map.entropy.toFixed(1) }));
      return;
    }
    const share = kind === "patch" ? map.sum / whole : masses[index] / whole;
    piece.style.width = share * 100 + "%";
    setText(text, kind === "patch" ? word("massPatch") : word(MASS_WORDS[kind] ?? "massOther", { n: count }));
    setText(value, kind === "patch" ? percentOfWhole(share) : percent(share));
    said.push(`${text.textContent} ${value.textContent}`);
  });
  setAttribute(part("massBar"), "aria-label", said.join(", "));
}

const strongestRows = Array.from({ length: 5 }, (_, index) => {
  const item = make("li"), button = make("button");
  button.type = "button";
  button.append(make("span", "rank", String(index + 1)), make("span", "where"), make("span", "value"));
  button.addEventListener("click", () => change({ pinned: Number(button.dataset.patch) === state.pinned ? -1 : Number(button.dataset.patch) }));
  item.append(button);
  part("strongest").append(item);
  return { item, button };
});

function drawStrongest() {
  const map = currentMap();
  strongestRows.forEach(({ item, button }, index) => {
    const patch = map.strongest[index];
    item.hidden = patch == null;
    if (patch == null) return;
    const { row, column } = rowColumn(patch), value = format(map.values[patch]);
    button.dataset.patch = patch;
    setText(button.children[1], `${row}, ${column}`);
    setText(button.children[2], value);
    setAttribute(button, "aria-pressed", patch === state.pinned);
    setAttribute(button, "aria-label", `${index + 1}. ${word("patchAt", { row, column })}, ${value}`);
    setAttribute(button, "title", word("rowColumn"));
  });
}

followers.push(() => {
  for (const show of choices) show();
  part("percentile").value = state.percentile;
  part("opacity").value = state.opacity;
  part("opacity").disabled = state.base === "off";
  setText(part("opacityValue"), state.base === "off" ? "–" : state.opacity + percentSign());
  setText(part("scaleNote"), scaleNote());
  drawMass();
  drawStrongest();
});
