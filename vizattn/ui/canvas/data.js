/* Data: one explanation, decoded map by map when it is first looked at. */
const HALF = (() => {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 32768 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
    table[bits] = exponent === 31 ? 0
      : sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
  }
  return table;
})();

class Data {
  /* `halves`: Uint16Array [layers * heads * rows * columns], each map divided by its own maximum. */
  constructor(payload, halves) {
    this.payload = payload;
    this.layers = payload.layers;
    this.heads = payload.heads;
    this.rows = payload.grid.rows;
    this.columns = payload.grid.cols;
    this.patches = this.rows * this.columns;
    this.prefix = payload.grid.prefix;
    this.tokens = payload.tokens;
    this.perHead = payload.method.per_head;
    this.halves = halves;
    const expected = this.layers * this.heads * this.patches;
    if (halves.length !== expected) throw new Error(`${halves.length} values came, ${expected} were announced.`);
    this.maps = new Map();
    this.tops = new Map();
    this.isShare = this.#sumsToOne();
  }

  /* Attention shares itself out; a relevance score need not. Two per cent covers float16. */
  #sumsToOne() {
    for (const layer of [1, this.layers]) {
      const map = this.map(layer, 1);
      if (!(Math.abs(map.sum + map.undrawn - 1) < 0.02)) return false;
    }
    return true;
  }

  headNames() {
    const all = Array.from({ length: this.heads }, (_, index) => index + 1);
    return this.perHead && this.heads > 1 ? ["mean", ...all] : all;
  }

  /* A map: `values` [patch], true numbers; `prefix` the undrawn tokens' shares; and what is read off it. */
  map(layer, head) {
    const key = `${layer}/${head}`;
    let map = this.maps.get(key);
    if (!map) this.maps.set(key, map = head === "mean" ? this.#mean(layer) : this.#decode(layer, head));
    return map;
  }

  #decode(layer, head) {
    const top = this.payload.top[layer - 1][head - 1], values = new Float32Array(this.patches);
    const start = ((layer - 1) * this.heads + head - 1) * this.patches;
    for (let patch = 0; patch < this.patches; patch++) values[patch] = HALF[this.halves[start + patch]] * top;
    return summarise(values, this.payload.prefix_mass[layer - 1]?.[head - 1] ?? []);
  }

  #mean(layer) {
    const values = new Float32Array(this.patches), prefix = this.prefix.map(() => 0);
    for (let head = 1; head <= this.heads; head++) {
      const map = this.map(layer, head);
      for (let patch = 0; patch < this.patches; patch++) values[patch] += map.values[patch] / this.heads;
      map.prefix.forEach((mass, token) => { prefix[token] += mass / this.heads; });
    }
    return summarise(values, prefix);
  }

  /* The value at the top of the colours: a percentile (nearest rank) of one map, one layer or all maps. */
  top(range, layer, head, percentile) {
    if (range === "map") return percentileOf([this.map(layer, head).sorted()], percentile);
    const key = [range === "layer" ? layer : "all", percentile].join();
    let top = this.tops.get(key);
    if (top === undefined) {
      const maps = range === "layer" ? this.#sorted(layer, layer) : this.#sorted(1, this.layers);
      this.tops.set(key, top = percentileOf(maps, percentile));
    }
    return top;
  }

  #sorted(first, last) {
    const maps = [];
    for (let layer = first; layer <= last; layer++)
      for (let head = 1; head <= this.heads; head++) maps.push(this.map(layer, head).sorted());
    return maps;
  }
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

function summarise(values, prefix) {
  let sum = 0, entropy = 0, sorted = null;
  const strongest = [];
  const count = share => { if (share > 0) entropy -= share * Math.log2(share); };
  values.forEach((value, patch) => {
    sum += value;
    count(value);
    if (strongest.length === 5 && value <= values[strongest[4]]) return;
    let place = strongest.length;
    while (place && values[strongest[place - 1]] < value) place--;
    strongest.splice(place, 0, patch);
    if (strongest.length > 5) strongest.pop();
  });
  prefix.forEach(count);
  const undrawn = prefix.reduce((total, mass) => total + mass, 0);
  return { values, prefix, sum, undrawn, entropy, strongest, maximum: values[strongest[0]],
    sorted: () => sorted ??= values.slice().sort() };
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
const times = share => { const value = share * data.tokens; return (value > 0 && value < 0.01 ? "< 0.01" : significant(value)) + timesSign(); };
const format = value => (!data.isShare ? plain(value) : state.unit === "times" ? times(value) : percent(value));
const plain = value => (value === 0 ? "0" : Math.abs(value) < 0.01 ? value.toExponential(1) : significant(value));

const currentMap = () => data.map(state.layer, state.head);
const currentTop = () => data.top(state.range, state.layer, state.head, state.percentile);
const readPatch = () => (state.pinned >= 0 ? state.pinned : state.pointed);
