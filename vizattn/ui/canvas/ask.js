/* Ask: who asks now, and the maps that answer. Nothing is sent while q and k of the layer are here. */

/* Points are kept in pixels of the picture on show; on another picture they lie at the same share of it. */
function local({ x, y }, which = data) {
  if (which === home) return { x, y };
  const from = home.payload.picture, to = which.payload.picture;
  return { x: x / from.width * to.width, y: y / from.height * to.height };
}

/* The question in force: {kind: "patch", points} or {kind: "own" | "class" | "register" | "mean"}. */
function question(which = data) {
  if (state.pins.length) return { kind: "patch", points: state.pins.map(each => local(each, which)) };
  if (state.pointed && !state.held && !aiming) return { kind: "patch", points: [local(state.pointed, which)] };
  return { kind: state.ask };
}
const pointKey = ({ x, y }) => `${Math.round(x * 8)},${Math.round(y * 8)}`;

/* What the question comes to in a layer: {kind, direction, patches or tokens, place} — or the model's
   own query with the word `why` for what stands in the way. */
function resolve(which, layer, asked = question(which)) {
  const info = which.info(layer), own = why => ({ kind: "own", direction: "to", info, why });
  const direction = state.direction === "from" && which.perHead ? "from" : "to";
  if (asked.kind === "own" && direction === "to") return own(null);
  if (which.payload.method.has_query === false) return own("askTarget");
  if (asked.kind === "patch" && !reaches(info, asked.points)) return own(null);
  const kind = asked.kind === "own" ? info.query.kind : asked.kind;
  if (!which.perHead) return kind === "patch" ? answered(which, layer, asked.points, own) : own("askMethod");
  if (!which.rows.offers(layer)) {
    if (kind === "patch" && direction === "to" && server.ask) return answered(which, layer, asked.points, own);
    return own("askNoRows");
  }
  const resolved = { kind, direction, info, ...asking(kind, direction, info, asked.points) };
  if (!resolved.tokens?.length && !resolved.mean) return own("askNobody");
  const trouble = which.rows.trouble(layer);
  if (trouble) return own(trouble);
  if (which.rows.get(layer)) return resolved;
  which.rows.want(layer);
  return own("askLoading");
}
const reaches = (info, points) => points.every(point => info.queries.place.patchAt(point) >= 0 && info.place.patchAt(point) >= 0);

/* The tokens that ask (or, turned round, that are asked for) and whether all patches do. */
function asking(kind, direction, info, points) {
  const place = direction === "to" ? info.queries.place : info.place, needsPatches = kind === "patch" || kind === "mean" || direction === "from";
  if (needsPatches && !info.queries.patches) return {};
  if (kind === "patch") {
    const patches = [...new Set(points.map(point => place.patchAt(point)))];
    return { patches, tokens: patches.map(patch => place.prefix.length + patch) };
  }
  if (kind === "mean") return { mean: direction === "to" || place.prefix.length > 0, tokens: direction === "to" ? null : place.prefix.map((_, token) => token) };
  return { tokens: place.tokensOf(kind) };
}

/* A method that joins layers is asked at the server: one question in flight, and the newest wins. */
const MOST_ANSWERS = 64;
const inFlight = { busy: false, next: null };
function answered(which, layer, points, own) {
  const known = points.map(point => which.answers.get(pointKey(point)));
  const missing = points.find((_, index) => !known[index]);
  if (!missing) return { kind: "patch", direction: "to", info: which.info(layer), patches: points.map(point => which.info(layer).queries.place.patchAt(point)), answers: known };
  if (!server.ask) return own("askNoRows");
  if (which.trouble) return own(which.trouble);
  wantAnswer(which, missing);
  const last = which.lastAnswer;   // the newest answer stays until the next one is here
  if (!state.pins.length && last) return { kind: "patch", direction: "to", info: which.info(layer), patches: [which.info(layer).queries.place.patchAt(last.point)], answers: [last], late: true };
  return own("askWaiting");
}

async function wantAnswer(which, point) {
  if (inFlight.busy) { inFlight.next = { which, point }; return; }
  inFlight.busy = true;
  const answer = await server.ask({ id: which.payload.id, x: point.x, y: point.y });
  inFlight.busy = false;
  if (answer?.layers) {
    which.lastAnswer = new Answer(answer, point);
    which.answers.set(pointKey(point), which.lastAnswer);
    if (which.answers.size > MOST_ANSWERS) which.answers.delete(which.answers.keys().next().value);
  } else {
    which.trouble = answer?.text ?? answer?.word ?? "lost";
    setTimeout(() => { which.trouble = null; }, 5000);
  }
  const { next } = inFlight;
  inFlight.next = null;
  if (shelf.includes(which)) draw();   // asks again when the question has changed meanwhile
  else if (next) wantAnswer(next.which, next.point);
}

class Answer {
  constructor({ layers, maps }, point) {
    this.point = point;
    const bytes = Uint8Array.from(atob(maps), letter => letter.charCodeAt(0));
    this.halves = new Uint16Array(bytes.buffer);
    this.layers = new Map(layers.map(layer => [layer.layer, { ...layer, place: new Place(layer) }]));
  }
  map(number, head) {
    const layer = this.layers.get(number);
    return layer && decodeMap(layer.place, this.halves, layer.offset + (head - 1) * layer.place.patches, layer.top[head - 1], layer.prefix_mass[head - 1] ?? []);
  }
}

/* The map of a head for the question in force. The last question's maps are kept, no others. */
function refreshAsked() {
  const { kind, points } = question(), { asked } = data;
  const key = [data.payload.id, kind, points?.map(pointKey), state.direction].join("|");
  if (key !== asked.key) { asked.key = key; asked.maps.clear(); }
  asked.resolved.clear();
}
function resolvedIn(layer) {
  const { resolved } = data.asked;
  if (!resolved.has(layer)) resolved.set(layer, resolve(data, layer));
  return resolved.get(layer);
}
function mapOf(layer, head) {
  const resolved = resolvedIn(layer);
  if (resolved.kind === "own" && !resolved.tokens && !resolved.mean) return data.map(layer, head);
  const key = resolved.late ? null : `${layer}/${head}`;
  let map = data.asked.maps.get(key);
  if (!map) {
    map = head === "mean" ? meanOf(data.headNames(layer).slice(1).map(each => mapOf(layer, each))) : answerOf(data, resolved, layer, head);
    if (key) data.asked.maps.set(key, map);
  }
  return map;
}

function answerOf(which, resolved, layer, head) {
  const { info, direction, answers } = resolved;
  if (answers) return answers.length === 1 ? answers[0].map(info.layer, head) : meanOf(answers.map(answer => answer.map(info.layer, head)));
  const rows = which.rows.get(layer), place = direction === "to" ? info.place : info.queries.place;
  let out = new Float32Array(place.tokens);
  if (resolved.mean && direction === "to") out = rows.meanRow(head);
  else if (resolved.mean) {   // rows sum to 1: what does not go to prefix tokens goes to the patches
    for (const token of resolved.tokens) rows.addColumn(head, token, 1, out);
    out = out.map(mass => (1 - mass) / info.place.patches);
  } else for (const token of resolved.tokens) {
    if (direction === "to") rows.addRow(head, token, 1 / resolved.tokens.length, out);
    else rows.addColumn(head, token, 1 / resolved.tokens.length, out);
  }
  const { length } = place.prefix;
  return summarise(place, out.subarray(length), out.subarray(0, length));
}

followers.push(refreshAsked);

const currentHead = () => data.head(state.layer, state.head);
const currentMap = () => mapOf(state.layer, currentHead());
/* The scale of the whole model stays that of the model's own query, so that it is steady while one asks. */
function topOf(layer, head, range = state.range) {
  if (range === "fixed") return state.fixed;
  const map = mapOf(layer, head);
  if (range !== "layer" || resolvedIn(layer).kind === "own") return data.top(range, layer, map, state.percentile);
  const heads = Array.from({ length: data.info(layer).maps }, (_, index) => mapOf(layer, index + 1).sizes());
  return percentileOf(heads, state.percentile);
}
const currentRange = () => (state.view === "wall" ? state.wallRange : state.range);
const currentTop = () => topOf(state.layer, currentHead(), currentRange());
const isColumn = () => resolvedIn(state.layer).direction === "from";
/* Where the pointer reads a value: on the picture, when it does not ask. */
function readPatch() {
  if (!state.pointed) return -1;
  const { why, late } = resolvedIn(state.layer);
  return isFree() && !why && !late && question().kind === "patch" && resolvedIn(state.layer).kind === "patch" ? -1 : currentMap().place.patchAt(local(state.pointed));
}
