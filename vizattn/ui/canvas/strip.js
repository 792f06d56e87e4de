/* The head strip: every map of the layer at once, top to bottom, for the question in force. */
const strip = part("strip");
let thumbs = [];   // [{head, button, canvas}]: as many as the layer with the most heads needs

const headName = (head, which = data) => (head === "mean" ? word("headMean") : which.perHead ? word("headNumber", { head }) : phrase(which.payload.method.title));

function openStrip() {
  strip.textContent = "";
  const most = data.infos.findIndex(({ maps }) => maps === data.mostHeads) + 1;
  thumbs = data.headNames(most).map(head => {
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
const showHead = radioGroup(strip, currentHead,
  value => change({ head: value === "mean" ? value : Number(value) }), { ArrowDown: 1, ArrowUp: -1 });

function drawStrip() {
  if (state.view !== "picture") return;
  const heads = new Set(data.headNames(state.layer));
  for (const { head, button, canvas } of thumbs) {
    button.hidden = !heads.has(head);
    if (thumbs.length < 2 || button.hidden) continue;   // the one map is the picture itself; the film shows the others
    paintMap(canvas, mapOf(state.layer, head), topOf(state.layer, head), 1, false);
  }
  showHead();
}
followers.push(drawStrip);

function stepHead(step) {
  const heads = data.headNames(state.layer);
  const least = state.view === "wall" && heads[0] === "mean" ? 1 : 0;   // the wall has no mean
  change({ head: heads[clamp(heads.indexOf(currentHead()) + step, least, heads.length - 1)] });
}

/* On a phone the strip scrolls sideways: bring the chosen head into sight without moving the page. */
let shownHead = null;
followers.push(() => {
  if (state.head === shownHead) return;
  shownHead = state.head;
  const chosen = thumbs.find(({ head }) => head === currentHead());
  if (!chosen || strip.scrollWidth <= strip.clientWidth) return;
  const { offsetLeft, offsetWidth } = chosen.button;
  strip.scrollLeft = clamp(strip.scrollLeft, offsetLeft + offsetWidth + 8 - strip.clientWidth, Math.max(0, offsetLeft - 8));
});
