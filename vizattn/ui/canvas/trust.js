/* How far can this map be trusted: the server covers and uncovers the picture in its order, beside chance. */
const trustBlock = part("trustBlock"), trustRun = part("trustRun"), trustState = part("trustState");
let trustKey = "", trustJob = null, trustFound = null;

/* What is on show, as the server is asked for it; a judgement belongs to one map and goes with it. */
function trustAsked() {
  const { kind, patches } = resolvedIn(state.layer), head = currentHead();
  const from = patches?.length === 1 && data.info(state.layer).queries.place.centre(patches[0]);
  return { id: data.payload.id, layer: data.info(state.layer).layer, head: head === "mean" || !data.perHead ? null : head - 1, x: from ? from.x : null, y: from ? from.y : null, ask: kind };
}

function stopTrust() {
  if (trustJob) server.trust({ id: trustJob.id, job: trustJob.name, stop: true });
  trustJob = null;
}

function showTrust() {
  trustBlock.hidden = !data || !server.trust || !librarySays();
  if (trustBlock.hidden) return;
  const key = JSON.stringify(trustAsked());
  if (key !== trustKey) { stopTrust(); trustKey = key; trustFound = null; setText(trustState, ""); }
  drawTrust();
}

function drawTrust() {
  setText(trustRun, word(trustJob ? "trustStop" : trustFound ? "trustAgain" : "trustRun"));
  part("trustPlots").hidden = !trustFound;
  if (!trustFound) return;
  setText(trustState, word({ better: "trustBetter", chance: "trustChance", worse: "trustWorse" }[trustFound.verdict]));
  for (const [name, title] of [["deletion", "trustCovered"], ["insertion", "trustUncovered"]]) drawTrustPlot(part(name), trustFound[name], word(title));
  setText(part("trustLegend"), word(trustFound.answer === "cosine" ? "trustCosine" : "trustProbability", { target: trustFound.target }));
}

/* A small plot: this map as a full line, a random order dashed; 0 to 100 % of the pixels, 0 to 1. */
const TRUST_SIZE = { width: 150, height: 84 };
function drawTrustPlot(figure, { ours, random, area, randomArea }, title) {
  const { width, height } = TRUST_SIZE, low = Math.min(0, ...ours, ...random);
  const path = values => values.map((value, index) => `${index ? "L" : "M"}${(trustFound.shares[index] * width).toFixed(1)} ${((1 - (value - low) / (1 - low)) * height).toFixed(1)}`).join("");
  figure.querySelector(".ours").setAttribute("d", path(ours));
  figure.querySelector(".random").setAttribute("d", path(random));
  const said = word("trustAreas", { a: area.toFixed(2), b: randomArea.toFixed(2) });
  setText(figure.querySelector("b"), title);
  setText(figure.querySelector("span"), said);
  setAttribute(figure.querySelector("svg"), "aria-label", `${title}: ${said}`);
}

async function followTrust(job) {
  while (trustJob === job) {
    const answer = await server.trust({ id: job.id, job: job.name });
    if (trustJob !== job) return;
    if (answer?.done === undefined && answer?.word !== "trustWaiting") {
      trustJob = null;
      trustFound = answer?.trust ?? null;
      if (!trustFound) setText(trustState, answer?.stopped ? "" : answer?.text ?? word(answer?.word ?? "lost"));
      return drawTrust();
    }
    setText(trustState, answer.done === undefined ? word("trustWaiting") : word("trustDone", { n: Math.round(answer.done * 100) }));
    await new Promise(resolve => setTimeout(resolve, 400));
  }
}

trustRun.addEventListener("click", async () => {
  if (trustJob) { stopTrust(); setText(trustState, ""); return drawTrust(); }
  trustFound = null;
  const asked = trustAsked(), job = trustJob = { id: asked.id, name: null };
  setText(trustState, word("trustWaiting"));
  drawTrust();
  const answer = await server.trust(asked);
  if (trustJob !== job) { if (answer?.job) server.trust({ id: asked.id, job: answer.job, stop: true }); return; }
  if (!answer?.job) { trustJob = null; setText(trustState, answer?.text ?? word(answer?.word ?? "lost")); return drawTrust(); }
  job.name = answer.job;
  followTrust(job);
});
followers.push(showTrust);
