/* Help: what is on show, in five sentences, and the keys. */
const help = part("help");
const KEY_WORDS = [["← →", "keyLayer"], ["↑ ↓", "keyHead"], ["Home End", "keyEnds"], ["Shift + ← ↑ ↓ →", "keyMove"],
  ["Enter", "keyPin"], ["Esc", "keyRelease"], ["C", "keyHold"], ["D", "keyTurn"], ["Space", "keyPlay"], ["1 2 3", "keyView"], ["S", "keySmooth"], ["?", "keyHelp"]];

function nameHelp() {
  part("helpList").replaceChildren(...[1, 2, 3, 4, 5].map(number => make("li", "", word("help" + number))));
  part("keyList").replaceChildren(...KEY_WORDS.flatMap(([key, name]) => [make("dt", "", key), make("dd", "", word(name))]));
}
/* The method on show: what it is, what it does not prove, and where it comes from. */
function nameMethod() {
  part("methodHelp").hidden = !data?.payload.method.about;
  if (part("methodHelp").hidden) return;
  const { title, about, formula, paper } = data.payload.method;
  setText(part("methodTitle"), phrase(title));
  const [line, letters = ""] = (formula ?? "").split("\n");
  part("methodFormula").replaceChildren(make("b", "", line), make("span", "", letters && phrase(letters)));
  part("methodFormula").hidden = !line;
  setText(part("methodAbout"), phrase(about));
  setText(part("methodPaper"), paper);
}
const openHelp = () => { if (!help.open) help.showModal(); };

part("helpClose").addEventListener("click", () => help.close());
help.addEventListener("click", event => { if (event.target === help) help.close(); });
document.addEventListener("vizattn:help", openHelp);
