/* Features: the model's output tokens beside its attention. Like colours are like tokens; long tokens
   are the patches that a model without registers uses as notepaper. */
const FEATURES = ["colours", "lengths"];
const isFeature = head => FEATURES.includes(head);
const bytesOf = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));

/* The map of a feature, or null while it is fetched; why it cannot be had is in `which.features`. */
function featureMap(which, name) {
  if (!which.features) fetchFeatures(which);
  return which.features?.[name] ?? null;
}
async function fetchFeatures(which) {
  if (which.fetching || !server.features) return;
  which.fetching = true;
  const answer = await server.features({ id: which.payload.id }), found = answer?.features;
  which.features = found ? mapsOfFeatures(found) : { trouble: answer?.text ?? word(answer?.word ?? "lost") };
  if (!found) setTimeout(() => { which.features = which.fetching = null; }, 5000);
  if (shelf.includes(which)) draw();
}

function mapsOfFeatures(found) {
  const place = new Place(found), norms = new Float32Array(bytesOf(found.norms).buffer);
  return {
    shares: found.shares,
    colours: Object.assign(summarise(place, new Float32Array(place.patches), []), { rgb: bytesOf(found.rgb), bare: true }),
    lengths: Object.assign(summarise(place, norms, found.prefix), { bare: true }),
  };
}

function paintColours(canvas, map, opacity) {
  const { rows, columns } = map.place, { image, pixels, context } = surface(canvas, columns, rows), alpha = Math.round(opacity * 255);
  for (let patch = 0; patch < map.place.patches; patch++)
    pixels[patch] = alpha << 24 | map.rgb[patch * 3 + 2] << 16 | map.rgb[patch * 3 + 1] << 8 | map.rgb[patch * 3];
  context.putImageData(image, 0, 0);
}

function featureWords(which, name, map) {
  if (which.features?.trouble) return [word("featureNone"), which.features.trouble];
  if (!map) return [word("featureWaiting"), ""];
  if (name === "colours") return [word("featureColours"), word("featureShares", { a: percent(which.features.shares[0]), b: percent(which.features.shares[1]), c: percent(which.features.shares[2]) })];
  return [word("featureLengths"), word("featureLongest", { n: plain(map.maximum), median: plain(percentileOf([map.sizes()], 50)) })];
}
