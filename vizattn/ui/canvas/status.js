/* The status line: waiting, the step in progress with the seconds so far, done, or what went wrong. */
const part = name => element.querySelector(`[data-part="${name}"]`);
const root = part("root");
let started = 0, clock = 0, last = { kind: "idle" };

function text({ kind, word: key, text: said, seconds }) {
  if (kind === "error") return said ?? word(key);
  if (kind === "done") return word("done", { n: seconds.toFixed(1) });
  return busy({ kind }) ? (said ? phrase(said.split(": about ")[0]) + "…" : word(kind)) : "";
}
/* The seconds so far and those left are for eyes: a screen reader hears each step once. */
function seconds() {
  const passed = busy(last) ? Math.floor((performance.now() - started) / 1000) : 0;
  return passed ? word("seconds", { n: passed }) + left(last.text ?? "") : "";
}
/* A long step is told as "Looking at the picture: about 12 s left", or min. */
function left(said) {
  const [, n, unit] = said.match(/: about (\d+) (s|min) left$/) ?? [];
  return n ? ", " + word(unit === "s" ? "secondsLeft" : "minutesLeft", { n }) : "";
}

/* A run whose server is gone would wait for ever: any answer at all means that it is there. */
let beats = 0;
async function beat() {
  show(last);
  if (++beats % 10) return;
  try { await fetch(new URL("config", document.baseURI), { method: "HEAD" }); }
  catch { if (busy(last)) show({ kind: "error", word: "lost" }); }
}
const busy = ({ kind }) => kind === "waiting" || kind === "running";

function show(status) {
  const wasBusy = busy(last);
  last = status;
  if (busy(status) && !wasBusy) { started = performance.now(); clock = setInterval(beat, 500); }
  if (!busy(status)) clearInterval(clock);
  root.lang = language;
  setAttribute(root, "data-kind", status.kind);
  setAttribute(root, "data-shows", status.shows ?? "");   // the explanation that a finished run brought
  setText(part("text"), text(status));
  setText(part("seconds"), seconds());
  const run = document.getElementById("vizattn-run");
  if (run) setAttribute(run, "aria-busy", busy(status));
}

document.addEventListener("vizattn:status", event => show(event.detail));
onLanguage(() => show(last));
watch("value", () => { if (props.value) show(props.value); });
if (props.value) show(props.value);
