/* The picture: the photo, the map over the part that the model saw, and white-on-black marks. */
const picture = part("picture"), overlay = part("overlay"), photo = part("photo"), tip = part("tip");

/* Where a part of the original picture lies, in per cent of it. */
const percentBox = (left, top, width, height) => {
  const whole = data.payload.picture;
  return { left: left / whole.width * 100, top: top / whole.height * 100, width: width / whole.width * 100, height: height / whole.height * 100 };
};
const place = (node, box) => {
  for (const side of ["left", "top", "width", "height"]) node.style[side] = box[side] + "%";
};
function patchBox(patch) {
  const { row, column } = rowColumn(patch), frame = data.payload.frame;
  const width = frame.width / data.columns, height = frame.height / data.rows;
  return percentBox(frame.left + (column - 1) * width, frame.top + (row - 1) * height, width, height);
}
const sawEverything = () => {
  const { frame, picture: whole } = data.payload;
  return frame.left <= 0.5 && frame.top <= 0.5 && frame.left + frame.width >= whole.width - 0.5 && frame.top + frame.height >= whole.height - 0.5;
};

function mark(node, patch) {
  node.hidden = patch < 0;
  if (patch >= 0) place(node, patchBox(patch));
}

function placeTip(patch, value) {
  tip.hidden = patch < 0;
  if (patch < 0) return;
  const { row, column } = rowColumn(patch), box = patchBox(patch);
  setText(tip, `${row}, ${column} · ${format(value)}`);
  const atRight = box.left + box.width > 75, atBottom = box.top > 88;
  tip.style.left = atRight ? "auto" : `calc(${box.left + box.width}% + 8px)`;
  tip.style.right = atRight ? `calc(${100 - box.left}% + 8px)` : "auto";
  tip.style.top = atBottom ? "auto" : box.top + "%";
  tip.style.bottom = atBottom ? 100 - box.top - box.height + "%" : "auto";
}

/* Once per explanation. */
function openPicture(address) {
  const { frame, picture: whole } = data.payload, box = percentBox(frame.left, frame.top, frame.width, frame.height);
  photo.src = address;
  place(overlay, box);
  place(part("outside"), box);
  part("outside").hidden = sawEverything();
  picture.style.setProperty("--ratio", whole.width / whole.height);
}

function drawPicture() {
  const map = currentMap(), read = readPatch();
  paintMap(overlay, map.values, currentTop(), overlayOpacity(), state.cells === "smooth");
  setAttribute(picture, "data-base", state.base);
  setAttribute(picture, "data-cells", state.cells);
  setAttribute(picture, "data-pinned", state.pinned >= 0);
  mark(part("peak"), map.maximum > 0 ? map.strongest[0] : -1);
  mark(part("readingMark"), read);
  placeTip(read, read < 0 ? 0 : map.values[read]);
}
followers.push(drawPicture);
