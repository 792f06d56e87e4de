/* The pointer. Free, it asks: the patch under it answers at once. Pinned, it reads values.
   A click or a tap pins; the same patch again releases; with Shift a second patch asks along. */
function pointUnder(event, node = picture, whole = data.payload.picture) {
  const box = node.getBoundingClientRect();
  return { x: (event.clientX - box.left) / box.width * whole.width, y: (event.clientY - box.top) / box.height * whole.height };
}
const seen = (point, which = data) => which.infos.some(({ place }) => place.patchAt(point) >= 0);
const samePatch = (one, other) => {
  const { place } = data.info(state.layer).queries, patch = place.patchAt(one);
  return patch >= 0 && patch === place.patchAt(other);
};

let waiting = 0;
function point(to) {
  const unmoved = to && state.pointed ? samePatch(to, state.pointed) && data.info(state.layer).place.patchAt(to) === data.info(state.layer).place.patchAt(state.pointed) : to === state.pointed;
  if (unmoved) return;
  state.pointed = to;
  waiting ||= requestAnimationFrame(() => { waiting = 0; draw(); });
}

/* What a click, a tap or Enter does with a patch. */
function pin(to, along = state.adding) {
  if (!canAskPatches(state.layer)) return change({ pointed: to });   // it is read instead
  const rest = state.pins.filter(each => !samePatch(each, to)), again = rest.length < state.pins.length;
  const pins = again ? rest : along && state.pins.length ? [state.pins[0], to] : [to];
  return change({ pins, held: false, adding: false, last: to });
}

/* The page takes it from here: the model looks again, with this patch to compare with. */
function aimAt({ x, y }) {
  change({ pins: [], last: { x, y } });
  document.dispatchEvent(new CustomEvent("vizattn:aimed", { detail: { x: Number(x.toFixed(1)), y: Number(y.toFixed(1)) } }));
}

function listenOn(node, whole = () => data.payload.picture) {
  node.addEventListener("pointermove", event => {
    if (!data || event.pointerType === "touch") return;
    const to = pointUnder(event, node, whole());
    point(seen(to) ? to : null);
  });
  /* A finger "leaves" right after its tap; what it chose is pinned by the click and not by hovering. */
  node.addEventListener("pointerleave", event => { if (event.pointerType !== "touch") point(null); });
  node.addEventListener("pointercancel", () => point(null));
  node.addEventListener("click", event => {
    if (!data) return;
    const to = pointUnder(event, node, whole());
    node.closest("[tabindex]")?.focus({ preventScroll: true });
    if (!seen(to)) return;
    if (aiming) aimAt(to);
    else pin(to, event.shiftKey || state.adding);
  });
}
listenOn(picture);
