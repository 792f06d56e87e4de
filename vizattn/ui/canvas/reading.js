/* Reading: the view in two sentences, for eyes and for screen readers. */
function queryName() {
  const { kind, row, col } = data.payload.query;   // the library counts rows and columns from 0
  if (kind === "patch") return word("queryPatch", { row: row + 1, column: col + 1 });
  return word({ class: "queryClass", mean: "queryMean" }[kind] ?? "queryOther");
}

function sentence() {
  const layer = state.layer, query = queryName();
  return data.perHead ? word("sentence", { layer, head: headName(state.head), query })
    : word("sentenceMethod", { layer, method: phrase(data.payload.method.title), query });
}

/* The undrawn tokens, by kind: [["class", 1, share], ["register", 4, share]]. */
function undrawnKinds(map) {
  const kinds = new Map();
  data.prefix.forEach((kind, token) => {
    const [count, mass] = kinds.get(kind) ?? [0, 0];
    kinds.set(kind, [count + 1, mass + (map.prefix[token] ?? 0)]);
  });
  return [...kinds].map(([kind, [count, mass]]) => [kind, count, mass]);
}

function detail() {
  const map = currentMap();
  if (!data.isShare) return word("detailPeakPlain", { value: plain(map.maximum) });
  const said = [word("detailPeak", { value: percent(map.maximum), times: times(map.maximum) })];
  for (const [kind, , mass] of undrawnKinds(map)) {
    if (kind === "class") said.push(word(data.payload.query.kind === "class" ? "detailStays" : "detailGoes", { value: percent(mass) }));
    if (kind === "register") said.push(word("detailRegisters", { value: percent(mass) }));
  }
  return said.join(" ");
}

function hint() {
  const touch = pointerIsCoarse();
  const said = [state.pinned < 0 ? word(touch ? "hintTouch" : "hintFree")
    : word(touch ? "hintTouched" : "hintPinned", rowColumn(state.pinned))];
  if (state.cells === "smooth") said.push(word("hintSmooth"));
  if (!sawEverything()) said.push(word("hintFrame"));
  return said.join(" ");
}

part("hint").id = `va-hint-${Math.random().toString(36).slice(2)}`;
part("stage").setAttribute("aria-describedby", part("hint").id);

/* A screen reader hears the last of a quick series of changes, not each of them. */
let speaking = 0;
function speak(text) {
  clearTimeout(speaking);
  speaking = setTimeout(() => setText(part("live"), text), 600);
}

let spoken = "";
followers.push(() => {
  const first = sentence(), second = detail(), both = `${first} ${second}`;
  setText(part("sentence"), first);
  setText(part("detail"), second);
  setText(part("hint"), hint());
  setAttribute(part("overlay"), "aria-label", word("mapText", { text: both }));
  setAttribute(part("stage"), "aria-label", word("mapText", { text: both }));
  const heard = state.pinned < 0 ? both : `${both} ${word("patchAt", rowColumn(state.pinned))}: ${format(currentMap().values[state.pinned])}`;
  if (heard !== spoken) speak(spoken = heard);
});
