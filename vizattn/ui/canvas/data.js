/* Data: one explanation, decoded map by map when it is first looked at. */
const HALF = (() => {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 32768 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
    table[bits] = exponent === 31 ? (fraction ? 0 : sign * Infinity)
      : sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
  }
  return table;
})();

/* A grid of patches and the rectangle of the original picture that it covers. */
class Place {
  constructor({ grid, frame }) {
    this.rows = grid.rows;
    this.columns = grid.cols;
    this.patches = grid.rows * grid.cols;
    this.prefix = grid.prefix;
    this.tokens = this.prefix.length + this.patches;
    this.frame = frame;
  }
  /* The patch over a point of the picture; -1 where there is none. */
  patchAt({ x, y }) {
    const column = Math.floor((x - this.frame.left) / this.frame.width * this.columns);
    const row = Math.floor((y - this.frame.top) / this.frame.height * this.rows);
    return row >= 0 && column >= 0 && row < this.rows && column < this.columns ? row * this.columns + column : -1;
  }
  centre(patch) {
    const { row, column } = this.rowColumn(patch);
    return { x: this.frame.left + (column - 0.5) * this.frame.width / this.columns, y: this.frame.top + (row - 0.5) * this.frame.height / this.rows };
  }
  /* As people count: from 1. */
  rowColumn(patch) {
    return { row: Math.floor(patch / this.columns) + 1, column: patch % this.columns + 1 };
  }
  tokensOf(role) {
    return this.prefix.flatMap((name, token) => (name === role ? [token] : []));
  }
}

class Data {
  /* `halves`: Uint16Array, layer after layer from its offset, [maps * rows * columns], each map divided by its own top. */
  constructor(payload, halves, address) {
    this.payload = payload;
    this.address = address;   // of the photo
    this.perHead = payload.method.per_head;
    this.infos = payload.layers.map(layer => ({ ...layer, place: new Place(layer), queries: { ...layer.queries, place: new Place(layer.queries) } }));
    this.layers = this.infos.length;
    if (!this.layers) throw new Error("no layer of this model can be laid over the picture.");
    this.depth = this.layers + (payload.undrawn?.length ?? 0);
    this.halves = halves;
    const expected = this.infos.reduce((sum, { maps, place }) => sum + maps * place.patches, 0);
    if (halves.length !== expected) throw new Error(`${halves.length} values came, ${expected} were announced.`);
    this.maps = new Map();
    this.tops = new Map();
    this.count = this.infos.reduce((sum, { maps }) => sum + maps, 0);
    this.mostHeads = Math.max(...this.infos.map(({ maps }) => maps));
    this.isShare = this.#sumsToOne();
    this.isSigned = this.#everyMap(1, this.layers).some(map => map.minimum < 0);
  }

  info(layer) { return this.infos[layer - 1]; }
  /* A layer's number in the model, as people count. */
  number(layer) { return this.info(layer).layer + 1; }

  /* Attention shares itself out; a relevance score need not. Two per cent covers float16. */
  #sumsToOne() {
    return [1, this.layers].every(layer => {
      const map = this.map(layer, 1);
      return Math.abs(map.sum + map.undrawn - 1) < 0.02;
    });
  }

  headNames(layer) {
    const all = Array.from({ length: this.info(layer).maps }, (_, index) => index + 1);
    return this.perHead && all.length > 1 ? ["mean", ...all] : all;
  }
  /* The head on show in a layer that may have fewer than the last one. */
  head(layer, head) {
    const names = this.headNames(layer);
    return names.includes(head) ? head : head === "mean" ? names[0] : names.at(-1);
  }

  /* A map of the model's own query: true numbers, and what is read off them. */
  map(layer, head) {
    const key = `${layer}/${head}`;
    let map = this.maps.get(key);
    if (!map) this.maps.set(key, map = head === "mean" ? meanOf(this.headNames(layer).slice(1).map(each => this.map(layer, each))) : this.#decode(layer, head));
    return map;
  }

  #decode(layer, head) {
    const { place, top, offset, prefix_mass: masses } = this.info(layer);
    return decodeMap(place, this.halves, offset + (head - 1) * place.patches, top[head - 1], masses[head - 1] ?? []);
  }

  /* The value at the top of the colours: a percentile (nearest rank) of one map, one layer or all maps. */
  top(range, layer, map, percentile) {
    if (range === "map") return percentileOf([map.sizes()], percentile);
    const key = [range === "layer" ? layer : "all", percentile].join();
    let top = this.tops.get(key);
    if (top === undefined) {
      const maps = range === "layer" ? this.#everyMap(layer, layer) : this.#everyMap(1, this.layers);
      this.tops.set(key, top = percentileOf(maps.map(each => each.sizes()), percentile));
    }
    return top;
  }

  #everyMap(first, last) {
    const maps = [];
    for (let layer = first; layer <= last; layer++)
      for (let head = 1; head <= this.info(layer).maps; head++) maps.push(this.map(layer, head));
    return maps;
  }
}

function decodeMap(place, halves, start, top, prefix) {
  const values = new Float32Array(place.patches);
  for (let patch = 0; patch < place.patches; patch++) values[patch] = HALF[halves[start + patch]] * top;
  return summarise(place, values, prefix);
}

function meanOf(maps) {
  const { place } = maps[0], values = new Float32Array(place.patches), prefix = new Float32Array(place.prefix.length), share = 1 / maps.length;
  for (const map of maps) {
    for (let patch = 0; patch < values.length; patch++) values[patch] += map.values[patch] * share;
    map.prefix.forEach((mass, token) => { prefix[token] += mass * share; });
  }
  return summarise(place, values, prefix);
}

/* The percentile (nearest rank) of many rising maps together, without merging them: the smallest
   value that few enough values exceed. Non-negative floats rise with their bits, so 31 halvings of
   the bits find it exactly. */
const halving = { bits: new Uint32Array(1), value: null };
halving.value = new Float32Array(halving.bits.buffer);
function percentileOf(maps, percentile) {
  const total = maps.reduce((sum, map) => sum + map.length, 0), rank = Math.max(1, Math.ceil(percentile / 100 * total));
  if (maps.length === 1) return maps[0][rank - 1];
  let low = 0, high = 0x7f800000;
  while (low < high) {
    halving.bits[0] = (low + high) >>> 1;
    const value = halving.value[0], above = maps.reduce((sum, map) => sum + countAbove(map, value), 0);
    if (above <= total - rank) high = halving.bits[0]; else low = halving.bits[0] + 1;
  }
  halving.bits[0] = low;
  return halving.value[0];
}

/* A map: `values` [patch], true numbers; `prefix`, what the undrawn tokens have; and what is read off
   them. What costs much and is often not needed waits until it is asked for. */
function summarise(place, values, prefix) {
  let sum = 0, minimum = values[0], strongest = null, sizes = null, entropy = null;
  for (let patch = 0; patch < values.length; patch++) {
    sum += values[patch];
    if (values[patch] < minimum) minimum = values[patch];
  }
  let undrawn = 0;
  for (const mass of prefix) undrawn += mass;
  return {
    place, values, prefix, sum, undrawn, minimum,
    get strongest() { return strongest ??= fiveStrongest(values); },
    get maximum() { return values[this.strongest[0]]; },
    get isFlat() { return this.maximum - minimum <= NEARLY_FLAT * meanSize(values); },
    get entropy() { return entropy ??= entropyOf(values) + entropyOf(prefix); },
    /* How large the values are, rising. */
    sizes: () => sizes ??= (minimum < 0 ? values.map(Math.abs) : values.slice()).sort(),
  };
}

function meanSize(values) {
  let sum = 0;
  for (const value of values) sum += Math.abs(value);
  return sum / values.length;
}

function fiveStrongest(values) {
  const strongest = [];
  for (let patch = 0; patch < values.length; patch++) {
    const value = values[patch];
    if (strongest.length === 5 && value <= values[strongest[4]]) continue;
    let at = strongest.length;
    while (at && values[strongest[at - 1]] < value) at--;
    strongest.splice(at, 0, patch);
    if (strongest.length > 5) strongest.pop();
  }
  return strongest;
}

function entropyOf(shares) {
  let entropy = 0;
  for (const share of shares) if (share > 0) entropy -= share * Math.log2(share);
  return entropy;
}

/* How many values lie above `top`; `sorted` rises. */
function countAbove(sorted, top) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > top) high = middle; else low = middle + 1;
  }
  return sorted.length - low;
}

/* Numbers in the unit in force; scores that are no shares stay bare. */
const times = share => { const value = share * data.info(state.layer).tokens; return (value > 0 && value < 0.01 ? "< 0.01" : significant(value)) + timesSign(); };
const format = (value, map) => (!data.isShare || map?.bare ? plain(value) : state.unit === "times" ? times(value) : percent(value));
const plain = value => (value === 0 ? "0" : Math.abs(value) < 0.01 ? value.toExponential(1) : significant(value));
