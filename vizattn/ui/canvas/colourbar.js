/* The colour bar: real numbers beside the colours. Its parts are kept and moved, never rebuilt. */
const colourbar = part("colourbar"), ramp = part("ramp"), needle = part("needle");
let barVertical = true, rampKey = "";
const ticks = [];

function tickAt(index) {
  if (!ticks[index]) colourbar.append(ticks[index] = make("span", "tick"));
  ticks[index].hidden = false;
  return ticks[index];
}

/* A round step that gives about `wanted` ticks: 1, 2 or 5 times a power of ten. */
function roundStep(top, wanted) {
  const rough = top / wanted, power = 10 ** Math.floor(Math.log10(rough)), lead = rough / power;
  return (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10) * power;
}

/* [place from 0 to 1, text, class] for every tick. */
function tickList(top, clipped) {
  const bare = !data.isShare, asTimes = state.unit === "times";
  const high = top * (bare ? 1 : asTimes ? data.tokens : 100), list = [[0, "0", "low"]];
  if (high > 0) {
    const step = roundStep(high, barVertical ? 5 : 4), digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const sign = bare || !barVertical ? "" : asTimes ? timesSign() : percentSign();
    for (let value = step; value < high * (barVertical ? 0.93 : 0.8); value += step)
      list.push([value / high, (bare && digits > 3 ? plain(value) : value.toFixed(digits)) + sign, ""]);
  }
  list.push([1, (clipped ? "≥\u202f" : "") + format(top), "high"]);
  return list;
}

function drawColourbar() {
  const top = currentTop(), map = currentMap(), read = readPatch(), opacity = overlayOpacity();
  const key = [barVertical, state.colours, opacity].join();
  if (key !== rampKey) { rampKey = key; paintRamp(ramp, barVertical, opacity); }
  setAttribute(colourbar, "data-direction", barVertical ? "vertical" : "horizontal");
  const along = share => (barVertical ? 100 - share * 100 : share * 100) + "%";
  const move = (node, share) => {
    node.style[barVertical ? "top" : "left"] = along(share);
    node.style[barVertical ? "left" : "top"] = "";
  };
  const list = tickList(top, map.maximum > top * 1.0001);
  list.forEach(([share, text, end], index) => {
    const tick = tickAt(index);
    setText(tick, text);
    if (tick.className !== "tick " + end) tick.className = "tick " + end;
    move(tick, share);
  });
  for (let index = list.length; index < ticks.length; index++) ticks[index].hidden = true;
  needle.hidden = read < 0;
  if (read >= 0) move(needle, top > 0 ? clamp(map.values[read] / top, 0, 1) : 0);
  setAttribute(colourbar, "aria-label", word("barText", { value: format(top) }));
}
followers.push(drawColourbar);
