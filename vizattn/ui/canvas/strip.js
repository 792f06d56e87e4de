/* The head strip: every map of the layer at once, top to bottom. */
const strip = part("strip");
let thumbs = [];   // [{head, button, canvas}]

const headName = head => (head === "mean" ? word("headMean") : data.perHead ? word("headNumber", { head }) : phrase(data.payload.method.title));

function openStrip() {
  strip.textContent = "";
  thumbs = data.headNames().map(head => {
    const button = make("button"), canvas = make("canvas"), name = make("span", "name");
    button.type = "button";
    button.setAttribute("role", "radio");
    button.dataset.value = head;
    button.append(name, canvas);
    strip.append(button);
    return { head, button, canvas, name };
  });
  root.classList.toggle("single", thumbs.length < 2);
  nameThumbs();
}

function nameThumbs() {
  for (const { head, button, name } of thumbs) {
    setText(name, head === "mean" ? word("meanShort") : data.perHead ? String(head) : word("allShort"));
    setAttribute(button, "aria-label", headName(head));
    button.title = headName(head);
  }
}

/* Up and down alone: left and right stay with the layers. */
const showHead = radioGroup(strip, () => state.head,
  value => change({ head: value === "mean" ? value : Number(value) }), { ArrowDown: 1, ArrowUp: -1 });

function drawStrip() {
  for (const { head, canvas } of thumbs) {
    if (thumbs.length < 2) break;   // the one map is the picture itself; the film shows the others
    const top = data.top(state.range, state.layer, head, state.percentile);
    paintMap(canvas, data.map(state.layer, head).values, top, 1, false);
  }
  showHead();
}
followers.push(drawStrip);

function stepHead(step) {
  const heads = data.headNames();
  change({ head: heads[clamp(heads.indexOf(state.head) + step, 0, heads.length - 1)] });
}

/* On a phone the strip scrolls sideways: bring the chosen head into sight without moving the page. */
let shownHead = null;
followers.push(() => {
  if (state.head === shownHead) return;
  shownHead = state.head;
  const chosen = thumbs.find(({ head }) => head === state.head);
  if (!chosen || strip.scrollWidth <= strip.clientWidth) return;
  const { offsetLeft, offsetWidth } = chosen.button;
  strip.scrollLeft = clamp(strip.scrollLeft, offsetLeft + offsetWidth + 8 - strip.clientWidth, Math.max(0, offsetLeft - 8));
});
