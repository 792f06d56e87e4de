/* The picture: the photo, the map over the part that the model saw, and white-on-black marks. */
const picture = part("picture"), overlay = part("overlay"), photo = part("photo"), tip = part("tip");

/* Where a part of the original picture lies, in per cent of it. */
const percentBox = ({ left, top, width, height }, whole = data.payload.picture) => (
  { left: left / whole.width * 100, top: top / whole.height * 100, width: width / whole.width * 100, height: height / whole.height * 100 });
const place = (node, box) => {
  for (const side of ["left", "top", "width", "height"]) node.style[side] = box[side] + "%";
};
function patchBox(where, patch, whole) {
  const { row, column } = where.rowColumn(patch), { frame } = where;
  const width = frame.width / where.columns, height = frame.height / where.rows;
  return percentBox({ left: frame.left + (column - 1) * width, top: frame.top + (row - 1) * height, width, height }, whole);
}
const sawEverything = () => {
  const { frame, picture: whole } = data.payload;
  return frame.left <= 0.5 && frame.top <= 0.5 && frame.left + frame.width >= whole.width - 0.5 && frame.top + frame.height >= whole.height - 0.5;
};

function mark(node, where, patch, whole) {
  node.hidden = patch < 0;
  if (patch >= 0) place(node, patchBox(where, patch, whole));
}

function placeTip(node, map, patch, whole) {
  node.hidden = patch < 0;
  if (patch < 0) return;
  const { row, column } = map.place.rowColumn(patch), box = patchBox(map.place, patch, whole);
  setText(node, map.rgb ? `${row}, ${column}` : `${row}, ${column} · ${format(map.values[patch], map)}`);
  const atRight = box.left + box.width > 75, atBottom = box.top > 88;
  node.style.left = atRight ? "auto" : `calc(${box.left + box.width}% + 8px)`;
  node.style.right = atRight ? `calc(${100 - box.left}% + 8px)` : "auto";
  node.style.top = atBottom ? "auto" : box.top + "%";
  node.style.bottom = atBottom ? 100 - box.top - box.height + "%" : "auto";
}

/* Once per explanation. */
function openPicture() {
  const { frame, picture: whole } = data.payload, box = percentBox(frame);
  photo.src = data.address;
  place(part("outside"), box);
  part("outside").hidden = sawEverything();
  picture.style.setProperty("--ratio", whole.width / whole.height);
}

/* The asked patches lie on the grid that asks; turned round, on the grid that is looked at. */
function askedBoxes(resolved) {
  const where = resolved.direction === "from" ? resolved.info.place : resolved.info.queries.place;
  return (resolved.patches ?? []).map(patch => [where, patch]);
}
function markAsked(nodes, resolved, whole) {
  const boxes = askedBoxes(resolved);
  nodes.forEach((node, index) => {
    const [where, patch] = boxes[index] ?? [null, -1];
    mark(node, where, patch, whole);
  });
}

/* The patch that the map explains, where one is. */
function markAimed(node, whole) {
  const { aimed } = data.payload, { place: where } = data.info(data.layers).queries;
  mark(node, where, aimed ? where.patchAt({ x: aimed[0], y: aimed[1] }) : -1, whole);
}

let laidOver = "";
function drawPicture() {
  if (state.view !== "picture") return;
  const map = currentMap(), read = readPatch(), { frame } = map.place;
  const lies = [data.payload.id, frame.left, frame.top, frame.width, frame.height].join();
  if (lies !== laidOver) { laidOver = lies; place(overlay, percentBox(frame)); }
  paintMap(overlay, map, currentTop(), overlayOpacity(), state.cells === "smooth");
  setAttribute(picture, "data-base", state.base);
  setAttribute(picture, "data-cells", state.cells);
  setAttribute(picture, "data-pinned", !isFree());
  mark(part("peak"), map.place, map.maximum > 0 ? map.strongest[0] : -1);
  markAsked([part("askedMark"), part("secondMark")], resolvedIn(state.layer));
  mark(part("readingMark"), map.place, read);
  markAimed(part("aimMark"));
  placeTip(tip, map, read);
}
followers.push(drawPicture);
