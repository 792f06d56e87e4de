/* Rows: what any token of a layer looks at, and what looks at it, from q and k as they came. */
const TYPES = { f2: Uint16Array, f4: Float32Array, i4: Int32Array };

class Rows {
  /* `described`: see vizattn/rows.py. `info`: the layer, which says where its tokens lie. */
  constructor(described, buffer, info) {
    Object.assign(this, described);
    this.info = info;
    this.bytes = buffer.byteLength * 2;
    for (const name of ["lse", "mean", "query_index", "key_index", "q", "k", "bias", "weights"]) this[name] = this.#array(name, buffer);
    this.biasShape = described.parts.bias?.[2];
    this.inverse = new Map();
  }

  #array(name, buffer) {
    const described = this.parts[name];
    if (!described) return null;
    const [offset, type, shape] = described, length = shape.reduce((product, size) => product * size, 1);
    const array = new TYPES[type](buffer, offset, length);
    return type === "f2" ? Float32Array.from(array, bits => HALF[bits]) : array;
  }

  /* [window, position] pairs at which a token of a grid stands. */
  places(index, token) {
    if (!index) return [[0, token]];
    let inverse = this.inverse.get(index);
    if (!inverse) {
      this.inverse.set(index, inverse = new Map());
      const length = index.length / this.windows;
      index.forEach((number, at) => {
        if (number < 0) return;
        if (!inverse.has(number)) inverse.set(number, []);
        inverse.get(number).push([Math.floor(at / length), at % length]);
      });
    }
    return inverse.get(token) ?? [];
  }

  /* Add `weight` times the row of a query token to `out` [key token]; heads count from 1. */
  addRow(head, token, weight, out) {
    const places = this.places(this.query_index, token);
    for (const [window, position] of places) {
      const line = this.#line(this.keys), lead = window * this.heads + head - 1;
      if (this.form === "dense") line.set(this.weights.subarray((lead * this.queries + position) * this.keys, (lead * this.queries + position + 1) * this.keys));
      else this.#attend(lead, position, line);
      scatter(line, this.key_index, window * this.keys, weight / places.length, out);
    }
  }

  /* Add `weight` times how much every query token looks at a key token to `out` [query token]. */
  addColumn(head, token, weight, out) {
    for (const [window, position] of this.places(this.key_index, token)) {
      const line = this.#line(this.queries), lead = window * this.heads + head - 1;
      if (this.form === "dense") for (let query = 0; query < this.queries; query++) line[query] = this.weights[(lead * this.queries + query) * this.keys + position];
      else this.#attended(lead, position, line);
      scatter(line, this.query_index, window * this.queries, weight, out);
    }
  }

  #line(length) {
    if (this.scratch?.length !== length) this.scratch = new Float32Array(length);
    return this.scratch;
  }

  #attend(lead, position, line) {
    const { q, k, dim, keys, scale } = this, lse = this.lse[lead * this.queries + position], from = (lead * this.queries + position) * dim;
    for (let key = 0, at = lead * keys * dim; key < keys; key++, at += dim)
      line[key] = Math.exp(dot(q, from, k, at, dim) * scale + this.#biasOf(lead, position, key) - lse);
  }

  #attended(lead, position, line) {
    const { q, k, dim, queries, scale, lse } = this, at = (lead * this.keys + position) * dim;
    for (let query = 0, from = lead * queries; query < queries; query++, from++)
      line[query] = Math.exp(dot(q, from * dim, k, at, dim) * scale + this.#biasOf(lead, query, position) - lse[from]);
  }

  #biasOf(lead, position, key) {
    if (!this.bias) return 0;
    const [leads, queries, keys] = this.biasShape;
    return this.bias[((leads > 1 ? lead : 0) * queries + (queries > 1 ? position : 0)) * keys + key];
  }

  /* The mean row of all patches, [key token]. */
  meanRow(head) {
    const { tokens } = this.info;
    return this.mean.slice((head - 1) * tokens, head * tokens);
  }
}

/* Add a window's line to the tokens it stands for; filling (-1) gets nothing. */
function scatter(line, index, from, weight, out) {
  for (let at = 0; at < line.length; at++) {
    const token = index ? index[from + at] : at;
    if (token >= 0) out[token] += line[at] * weight;
  }
}

function dot(a, from, b, at, length) {
  let first = 0, second = 0, third = 0, fourth = 0, step = 0;
  for (; step + 3 < length; step += 4) {
    first += a[from + step] * b[at + step];
    second += a[from + step + 1] * b[at + step + 1];
    third += a[from + step + 2] * b[at + step + 2];
    fourth += a[from + step + 3] * b[at + step + 3];
  }
  for (; step < length; step++) first += a[from + step] * b[at + step];
  return first + second + third + fourth;
}

/* For the benchmark: milliseconds of single rows of one head. */
probe.timeRows = count => Array.from({ length: count }, (_, turn) => {
  const rows = data.rows.get(state.layer), out = new Float32Array(data.info(state.layer).place.tokens), start = performance.now();
  rows.addRow(turn % rows.heads + 1, turn % data.info(state.layer).queries.place.tokens, 1, out);
  return performance.now() - start;
});

/* Rows of the layers that were asked, fetched once each; the ones used longest ago make room. */
const MOST_ROW_BYTES = 256 * 2 ** 20;
class RowStore {
  constructor(owner) {
    this.owner = owner;
    this.kept = new Map();      // layer -> Rows
    this.waiting = new Map();   // layer -> true, or the word for why it failed
  }

  get(layer) {
    const rows = this.kept.get(layer);
    if (rows) { this.kept.delete(layer); this.kept.set(layer, rows); }
    return rows;
  }
  /* Whether rows of this layer can be had at all. */
  offers(layer) {
    const { rows } = this.owner.info(layer);
    return Boolean(rows?.parts || (rows?.bytes && server.rows));
  }
  trouble(layer) {
    const waiting = this.waiting.get(layer);
    return waiting === true ? null : waiting ?? null;
  }

  async want(layer) {
    if (this.kept.has(layer) || this.waiting.has(layer) || !this.offers(layer)) return;
    this.waiting.set(layer, true);
    try {
      this.#keep(layer, await this.#fetch(layer));
      this.waiting.delete(layer);
    } catch (error) {
      this.waiting.set(layer, error.word ?? "lost");
      setTimeout(() => this.waiting.delete(layer), 5000);   // then it may be tried again
    }
    if (shelf.includes(this.owner)) draw();
  }

  async #fetch(layer) {
    const info = this.owner.info(layer);
    let described = info.rows;
    if (!described.parts) {
      const answer = await server.rows({ id: this.owner.payload.id, layer: info.layer });
      if (!answer?.rows) throw Object.assign(new Error(), { word: answer?.word ?? "lost" });
      described = { ...answer.rows, url: new URL(`gradio_api/file=${answer.rows.path}`, document.baseURI).href };
    }
    return new Rows(described, await fetchBytes(described), info);
  }

  #keep(layer, rows) {
    this.kept.set(layer, rows);
    let bytes = 0;
    for (const each of this.kept.values()) bytes += each.bytes;
    for (const [oldest, each] of this.kept) {
      if (bytes <= MOST_ROW_BYTES || oldest === layer) break;
      bytes -= each.bytes;
      this.kept.delete(oldest);
    }
  }
}
