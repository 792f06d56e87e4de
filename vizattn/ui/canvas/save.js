/* Save PNG: this view as a picture, made in the browser: photo, map, colour bar and the sentence. */
const BAR = { edge: 24, height: 12, text: 15, line: 22 };

function savedName() {
  const stem = data.payload.picture.name.replace(/\.[^.]*$/, "").replace(/[^\p{L}\p{N}_-]+/gu, "_").replace(/^_+|_+$/g, "") || "picture";
  const shown = currentHead(), head = !data.perHead ? "" : shown === "mean" ? "_mean" : `_H${shown}`;
  const { patches = [], info, direction } = resolvedIn(state.layer), { place: where } = direction === "from" ? info : info.queries;
  const asks = patches.map(patch => { const { row, column } = where.rowColumn(patch); return `_r${row}c${column}`; }).join("");
  return `vizattn_${stem}_L${data.number(state.layer)}${head}${asks}${direction === "from" ? "_from" : ""}.png`;
}

function drawPhoto(context, width, height) {
  context.fillStyle = "#000";
  context.fillRect(0, 0, width, height);
  if (state.base === "off") return;
  context.drawImage(photo, 0, 0, width, height);
  if (state.base === "colour") return;
  context.globalCompositeOperation = "saturation";   // a filter that every browser has
  context.fillStyle = "#808080";
  context.fillRect(0, 0, width, height);
  context.globalCompositeOperation = "source-over";
}

const scaled = (box, width, height) => [box.left / 100 * width, box.top / 100 * height, box.width / 100 * width, box.height / 100 * height];

function drawSeen(context, width, height) {
  const whole = scaled(percentBox(data.payload.frame), width, height);
  if (!sawEverything()) {
    const [left, top, wide, high] = whole;
    context.fillStyle = "rgb(0 0 0 / 60%)";
    context.beginPath();
    context.rect(0, 0, width, height);
    context.rect(left, top, wide, high);
    context.fill("evenodd");
    context.strokeStyle = "#fff";
    context.lineWidth = 2;
    context.strokeRect(left, top, wide, high);
  }
  context.imageSmoothingEnabled = state.cells === "smooth";
  context.drawImage(overlay, ...scaled(percentBox(currentMap().place.frame), width, height));
}

function drawMarks(context, width, height) {
  const map = currentMap();
  const stroke = (path, color, thick) => { context.strokeStyle = color; context.lineWidth = thick; context.stroke(path); };
  const both = path => { stroke(path, "#000", 5); stroke(path, "#fff", 2.5); };
  if (map.maximum > 0) {
    const [left, top, wide, high] = scaled(patchBox(map.place, map.strongest[0]), width, height), ring = new Path2D();
    ring.arc(left + wide / 2, top + high / 2, Math.max(9, wide * 0.75), 0, 2 * Math.PI);
    both(ring);
  }
  for (const [where, patch] of askedBoxes(resolvedIn(state.layer))) {
    const square = new Path2D();
    square.rect(...scaled(patchBox(where, patch), width, height));
    both(square);
  }
}

/* Sentences broken into lines that fit. */
function legendLines(context, width) {
  const lines = [];
  for (const said of [sentence(), detail(), part("summary").textContent]) {
    let line = "";
    for (const piece of said.split(" ")) {
      const longer = line ? `${line} ${piece}` : piece;
      if (line && context.measureText(longer).width > width) { lines.push(line); line = piece; } else line = longer;
    }
    lines.push(line);
  }
  return lines;
}
const legendFont = () => `${BAR.text}px ${getComputedStyle(root).fontFamily}`;

function drawLegend(context, width, from, lines) {
  const { edge, height, line } = BAR, style = getComputedStyle(root), top = currentTop(), map = currentMap(), signed = isSigned(map);
  const bar = document.createElement("canvas");
  paintRamp(bar, false, overlayOpacity(), signed ? SIGNED : state.colours);
  context.imageSmoothingEnabled = true;
  context.drawImage(bar, edge, from + edge, width - 2 * edge, height);
  context.fillStyle = style.getPropertyValue("--ink");
  context.font = legendFont();
  context.fillText(signed ? format(-top) : "0", edge, from + edge + height + line);
  context.textAlign = "right";
  context.fillText((map.maximum > top * 1.0001 ? "≥\u202f" : "") + format(top), width - edge, from + edge + height + line);
  context.textAlign = "left";
  lines.forEach((said, index) => {
    context.fillText(said, edge, from + edge + height + line * (index + 2), width - 2 * edge);
  });
}

async function save() {
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  const width = Math.max(480, photo.naturalWidth), high = Math.round(width * photo.naturalHeight / photo.naturalWidth);
  context.font = legendFont();
  const lines = legendLines(context, width - 2 * BAR.edge);
  canvas.width = width;
  canvas.height = high + BAR.edge * 2 + BAR.height + BAR.line * (lines.length + 1);
  context.fillStyle = getComputedStyle(root).getPropertyValue("--ground");
  context.fillRect(0, 0, canvas.width, canvas.height);
  drawPhoto(context, width, high);
  drawSeen(context, width, high);
  drawMarks(context, width, high);
  drawLegend(context, width, high, lines);
  offer(await new Promise(resolve => canvas.toBlob(resolve, "image/png")), savedName());
}

function offer(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  toast(word("savedAs", { file: name }));
}
