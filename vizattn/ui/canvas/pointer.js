/* The pointer reads values. A click or a tap keeps a patch read; the same patch again releases it. */
function patchUnder(event) {
  const box = overlay.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / box.width * data.columns);
  const row = Math.floor((event.clientY - box.top) / box.height * data.rows);
  const inside = row >= 0 && column >= 0 && row < data.rows && column < data.columns;
  return inside ? row * data.columns + column : -1;
}

let waiting = 0;
function point(patch) {
  if (patch === state.pointed) return;
  state.pointed = patch;
  waiting ||= requestAnimationFrame(() => { waiting = 0; draw(); });
}

picture.addEventListener("pointermove", event => { if (data && event.pointerType !== "touch") point(patchUnder(event)); });
/* A finger "leaves" right after its tap; what it chose is pinned by the click and not by hovering. */
picture.addEventListener("pointerleave", () => point(-1));
picture.addEventListener("pointercancel", () => point(-1));
picture.addEventListener("click", event => {
  if (!data) return;
  const patch = patchUnder(event);
  part("stage").focus({ preventScroll: true });
  if (patch >= 0) change({ pinned: patch === state.pinned ? -1 : patch });
});
