/* Layout: the picture keeps its ratio, is never cropped, and everything aligns to its edges. */
const body = part("body");
const WIDE = 1144, NARROW = 764;   // of the whole viewer, as in canvas.css
const SIDES = { heads: 112, bar: 72, gap: 16, inspector: 264 };

/* Layers and sentences fit under the picture on the first screen. In somebody's frame the window's
   height follows ours: there it must not be asked. */
const BELOW = { layers: 68, sentences: 96 };
function tallest(below) {
  if (self !== top) return 600;
  const above = Math.min(320, body.getBoundingClientRect().top + scrollY);
  return clamp(innerHeight - above - below - part("film").offsetHeight, 320, 760);
}

function layOut() {
  const width = body.clientWidth;
  if (!data || !width) return;
  const whole = root.clientWidth, narrow = whole <= NARROW, medium = whole <= WIDE;
  const ratio = data.payload.picture.width / data.payload.picture.height;
  sizeFilm();
  const heads = thumbs.length < 2 ? 0 : SIDES.heads + SIDES.gap;
  const beside = narrow ? 0 : heads + SIDES.bar + SIDES.gap + (medium ? 0 : SIDES.inspector + 2 * SIDES.gap);
  const fits = below => Math.min(width - beside, (narrow ? Math.max(width, 520) : tallest(below)) * ratio);
  const roomy = wide => width - beside - wide + SIDES.inspector >= 2 * 232 + 32;   // two columns of controls
  /* Beside a picture that leaves so much room the sentences go there, and the picture may be taller. */
  const aside = !medium && roomy(fits(BELOW.layers)), wide = fits(BELOW.layers + (aside ? 0 : BELOW.sentences));
  root.classList.toggle("aside", aside);
  body.style.setProperty("--wide", Math.floor(wide) + "px");
  body.style.setProperty("--high", Math.round(Math.floor(wide) / ratio) + "px");
  sizeThumbs(narrow, ratio, Math.round(wide / ratio));
  barVertical = !narrow;
  part("inspector").classList.toggle("two", !narrow && (medium || (state.view === "picture" && roomy(wide))));
  root.classList.toggle("short", !medium && innerHeight <= 860);
  thinTicks();
  sizePanes();
}

function sizeFilm() {
  const shape = data.payload.frame.width / data.payload.frame.height;
  const width = Math.max(8, Math.min(64, 44 * shape, tickRow.clientWidth / Math.max(1, data.layers - 1) - 4));
  for (const frame of frames) {
    frame.style.width = Math.floor(width) + "px";
    frame.style.height = Math.floor(width / shape) + "px";
  }
  part("film").style.height = Math.floor(width / shape) + 12 + "px";
}

function sizeThumbs(narrow, ratio, high) {
  const frame = data.payload.frame, shape = frame.width / frame.height, gap = 8;
  const share = count => (high - gap * (count - 1)) / count;
  const double = !narrow && share(thumbs.length) < Math.min(40, 64 / shape);   // many heads: two columns
  const rows = double ? Math.ceil(thumbs.length / 2) : thumbs.length, widest = double ? 28 : 80;
  const height = narrow ? Math.max(44, Math.min(64, 64 / shape)) : clamp(share(rows), 16, widest / shape);
  strip.classList.toggle("double", double);
  strip.style.setProperty("--rows", rows);
  for (const { canvas } of thumbs) {
    canvas.style.height = Math.round(height) + "px";
    canvas.style.width = Math.round(Math.min(narrow ? 96 : widest, height * shape)) + "px";
  }
}

new ResizeObserver(() => { layOut(); draw(); }).observe(root);
addEventListener("resize", () => { layOut(); draw(); });
