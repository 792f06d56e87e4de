/* Reading: the view in two sentences, for eyes and for screen readers. */
const QUERY_WORDS = { class: "queryClass", mean: "queryMean", register: "queryRegister", pool: "queryPool" };

/* Who asks, or (`object`) who is looked at: Korean marks the two differently. */
function queryName({ kind, direction, info, patches }) {
  const asks = kind === "own" ? info.query.kind : kind, end = direction === "from" ? "Seen" : "";
  if (asks === "patch") {
    const where = direction === "from" ? info.place : info.queries.place;
    const cells = (patches ?? [info.query.row * where.columns + info.query.col]).map(patch => where.rowColumn(patch));
    return cells.length < 2 ? word("queryPatch" + end, cells[0])
      : word("queryPatches" + end, { row: cells[0].row, column: cells[0].column, row2: cells[1].row, column2: cells[1].column });
  }
  return QUERY_WORDS[asks] ? word(QUERY_WORDS[asks] + end) : word("queryOther" + end);
}

function sentence(layer = state.layer, head = data.head(layer, state.head)) {
  const { has_query: hasQuery, subject, target, title } = data.payload.method;
  if (subject) return word("sentenceSubject", { layer: data.number(layer), head: headName(head), subject: phrase(subject) });
  if (hasQuery === false) return word("sentenceTarget", { method: phrase(title), target: phrase(target ?? "") });
  const resolved = resolvedIn(layer), query = queryName(resolved), number = data.number(layer), from = resolved.direction === "from" ? "From" : "";
  if (target) return word("sentenceAim", { layer: number, method: phrase(title), target: phrase(target), query });
  return data.perHead ? word("sentence" + from, { layer: number, head: headName(head), query })
    : word("sentenceMethod", { layer: number, method: phrase(data.payload.method.title), query });
}

/* The undrawn tokens, by kind: [["class", 1, share], ["register", 4, share]]. */
function undrawnKinds(map) {
  const kinds = new Map();
  map.place.prefix.forEach((kind, token) => {
    const [count, mass] = kinds.get(kind) ?? [0, 0];
    kinds.set(kind, [count + 1, mass + (map.prefix[token] ?? 0)]);
  });
  return [...kinds].map(([kind, [count, mass]]) => [kind, count, mass]);
}

const asksItself = (resolved, kind) => (resolved.kind === "own" ? resolved.info.query.kind : resolved.kind) === kind;
function detail(layer = state.layer, head = data.head(layer, state.head)) {
  const map = mapOf(layer, head), resolved = resolvedIn(layer);
  const flat = map.isFlat ? " " + word("nearlyFlat") : "";
  if (!data.isShare) return word("detailPeakPlain", { value: plain(map.maximum) }) + flat;
  if (resolved.direction === "from") return word("detailFrom", { value: percent(map.maximum), mean: percent(map.sum / map.place.patches) }) + flat;
  const said = [word("detailPeak", { value: percent(map.maximum), times: times(map.maximum) })];
  for (const [kind, , mass] of undrawnKinds(map)) {
    if (kind === "class") said.push(word(asksItself(resolved, "class") ? "detailStays" : "detailGoes", { value: percent(mass) }));
    if (kind === "register") said.push(word("detailRegisters", { value: percent(mass) }));
  }
  return said.join(" ") + flat;
}

const megabytes = bytes => (bytes / 2 ** 20).toFixed(1);
/* What stands between the question and its answer. Text from the library is shown as it came. */
const why = ({ why: key, info }) => (STRINGS.en[key] ? word(key, { n: megabytes(info.rows?.bytes ?? 0), layer: info.layer + 1 }) : key);

function hint() {
  const touch = pointerIsCoarse(), resolved = resolvedIn(state.layer), said = [];
  if (resolved.why) said.push(why(resolved));
  else if (aiming) said.push(word(touch ? "hintAimTouch" : "hintAim"));
  else if (!canAskPatches(state.layer)) said.push(word("hintRead"));
  else if (state.adding) said.push(word("hintSecond"));
  else said.push(word(isFree() ? (touch ? "hintTouch" : "hintFree") : touch ? "hintTouched" : "hintPinned"));
  if (state.cells === "smooth") said.push(word("hintSmooth"));
  if (data.payload.method.class_agnostic) said.push(word("hintSame"));
  if (!sawEverything()) said.push(word("hintFrame"));
  if (!data.info(state.layer).exact) said.push(word("hintMixed"));
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
  if (both !== spoken) speak(spoken = both);
});
