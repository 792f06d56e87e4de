/* Colour bars: real numbers beside the colours. Their parts are kept and moved, never rebuilt. */
let barVertical = true;

class ColourBar {
  constructor(node, vertical) {
    this.node = node;
    this.vertical = vertical;   // () => whether it stands
    this.ramp = node.querySelector("canvas");
    this.needle = node.querySelector(".needle");
    this.rampKey = "";
    this.ticks = [];
  }

  #tick(index) {
    if (!this.ticks[index]) this.node.append(this.ticks[index] = make("span", "tick"));
    this.ticks[index].hidden = false;
    return this.ticks[index];
  }

  /* `read`: the value under the pointer, or null. */
  draw(map, top, read, opacity) {
    const vertical = this.vertical(), signed = isSigned(map), name = signed ? SIGNED : state.colours, key = [vertical, name, opacity].join();
    if (key !== this.rampKey) { this.rampKey = key; paintRamp(this.ramp, vertical, opacity, name); }
    setAttribute(this.node, "data-direction", vertical ? "vertical" : "horizontal");
    const share = value => (top > 0 ? clamp(signed ? (value / top + 1) / 2 : value / top, 0, 1) : signed ? 0.5 : 0);
    const move = (node, along) => {
      node.style[vertical ? "top" : "left"] = (vertical ? 100 - along * 100 : along * 100) + "%";
      node.style[vertical ? "left" : "top"] = "";
    };
    const clipped = Math.max(map.maximum, -map.minimum) > top * 1.0001, list = tickList(top, clipped, vertical, signed, map);
    list.forEach(([at, text, end], index) => {
      const tick = this.#tick(index);
      setText(tick, text);
      if (tick.className !== "tick " + end) tick.className = "tick " + end;
      move(tick, at);
    });
    for (let index = list.length; index < this.ticks.length; index++) this.ticks[index].hidden = true;
    if (this.needle) {
      this.needle.hidden = read === null;
      if (read !== null) move(this.needle, share(read));
    }
    setAttribute(this.node, "aria-label", word(signed ? "barTextSigned" : "barText", { value: format(top, map) }));
  }
}

/* A round step that gives about `wanted` ticks: 1, 2 or 5 times a power of ten. */
function roundStep(top, wanted) {
  const rough = top / wanted, power = 10 ** Math.floor(Math.log10(rough)), lead = rough / power;
  return (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10) * power;
}

/* [place from 0 to 1, text, class] for every tick. */
function tickList(top, clipped, vertical, signed, map) {
  if (signed) return [[0, (clipped ? "≤\u202f" : "") + format(-top), "low"], [0.5, "0", ""], [1, (clipped ? "≥\u202f" : "") + format(top), "high"]];
  const bare = !data.isShare || map.bare, asTimes = state.unit === "times";
  const high = top * (bare ? 1 : asTimes ? data.info(state.layer).tokens : 100), list = [[0, "0", "low"]];
  if (high > 0) {
    const step = roundStep(high, vertical ? 5 : 4), digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const sign = bare || !vertical ? "" : asTimes ? timesSign() : percentSign();
    for (let value = step; value < high * (vertical ? 0.93 : 0.8); value += step)
      list.push([value / high, (bare && digits > 3 ? plain(value) : value.toFixed(digits)) + sign, ""]);
  }
  list.push([1, (clipped ? "≥\u202f" : "") + format(top, map), "high"]);
  return list;
}

const mainBar = new ColourBar(part("colourbar"), () => barVertical);
followers.push(() => {
  if (state.view !== "picture") return;
  const map = currentMap(), read = readPatch();
  mainBar.draw(map, currentTop(), read < 0 ? null : map.values[read], overlayOpacity());
});
