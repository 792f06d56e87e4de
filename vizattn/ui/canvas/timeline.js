/* The timeline: layers run left to right, as depth does. */
const slider = part("layer"), tickRow = part("ticks"), playButton = part("play");
let clock = 0;

function openTimeline() {
  stopPlaying();
  slider.max = data.layers;
  slider.disabled = data.layers === 1;
  playButton.disabled = data.layers === 1;
  tickRow.textContent = "";
  for (let layer = 1; layer <= data.layers; layer++) {
    const tick = make("span", "", String(data.number(layer)));
    tick.style.left = (data.layers === 1 ? 0 : (layer - 1) / (data.layers - 1) * 100) + "%";
    tick.addEventListener("click", () => goToLayer(layer));
    tickRow.append(tick);
  }
  thinTicks();
  openFilm();
}

/* A method without heads has one map for each layer: they lie under the layers' numbers, x is depth. */
let frames = [], filmKey = "";
function openFilm() {
  const film = part("film");
  film.hidden = data.mostHeads > 1;
  film.textContent = filmKey = "";
  frames = film.hidden ? [] : Array.from({ length: data.layers }, (_, index) => {
    const frame = make("canvas");
    frame.style.left = tickRow.children[index].style.left;
    frame.addEventListener("click", () => goToLayer(index + 1));
    film.append(frame);
    return frame;
  });
}
function drawFilm() {
  const key = [data.asked.key, data.answers.size, state.range, state.percentile, state.colours].join();
  if (key !== filmKey && frames.length) {
    filmKey = key;
    frames.forEach((frame, index) => paintMap(frame, mapOf(index + 1, 1), topOf(index + 1, 1), 1, false));
  }
  frames.forEach((frame, index) => frame.classList.toggle("lit", index + 1 === state.layer));
}
followers.push(drawFilm);

/* Numbers never touch: with many layers only every second or fourth is written. */
function thinTicks() {
  const room = tickRow.clientWidth / Math.max(1, data.layers - 1), every = [1, 2, 4, 8].find(step => room * step >= 22) ?? 16;
  [...tickRow.children].forEach((tick, index) => {
    const left = data.layers - 1 - index;
    tick.classList.toggle("quiet", left > 0 && (index % every !== 0 || left < every));
  });
}

function stopPlaying() {
  clearInterval(clock);
  state.playing = false;
}

function play() {
  if (state.playing) { stopPlaying(); return draw(); }
  const pause = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1600 : 600;
  clock = setInterval(() => {
    if (state.layer >= data.layers - 1) stopPlaying();
    goToLayer(state.layer + 1);
  }, pause);
  change({ playing: true, layer: state.layer >= data.layers ? 1 : state.layer });
}

playButton.addEventListener("click", play);
slider.addEventListener("input", () => goToLayer(Number(slider.value)));

let litTick = null;
followers.push(() => {
  if (slider.value !== String(state.layer)) slider.value = state.layer;
  setAttribute(slider, "aria-valuetext", word("layerOf", { layer: data.number(state.layer), n: data.depth }));
  const tick = tickRow.children[state.layer - 1];
  if (tick !== litTick) {
    litTick?.classList.remove("lit");
    tick.classList.add("lit");
    litTick = tick;
  }
  setAttribute(playButton, "aria-pressed", state.playing);
  setAttribute(playButton, "aria-label", word(state.playing ? "pause" : "play"));
  setAttribute(playButton, "title", word(state.playing ? "pause" : "play"));
});
