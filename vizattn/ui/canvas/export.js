/* Export: the PNG is made here; numbers, figures, films and files of their own are made by the library,
   the same as from the command line. */
const menu = part("menu"), menuButton = part("export");
const EXPORTS = [["png", "exportView"], ["full", "exportFull"], ["npz", "exportNpz"], ["pdf", "exportPdf"], ["svg", "exportSvg"], ["gif", "exportGif"], ["mp4", "exportMp4"], ["json", "exportJson"], ["py", "exportPy"], ["html", "exportHtml"]];

/* What the library writes is the answer of the model's own query, of one patch or of a kind of token, in their own direction. */
function librarySays() {
  const { direction, patches } = resolvedIn(state.layer);
  return direction === "to" && (patches?.length ?? 1) === 1 && (data.perHead || state.layer === data.layers);
}

const menuItems = EXPORTS.map(([format, key]) => {
  const button = make("button");
  button.type = "button";
  button.setAttribute("role", "menuitem");
  button.tabIndex = -1;
  button.append(make("b", "", format === "full" ? "PNG" : format.toUpperCase()), make("span"));
  button.addEventListener("click", () => { openMenu(false); menuButton.focus(); exportAs(format); });
  menu.append(button);
  return { format, key, button };
});

function openMenu(open) {
  menu.hidden = !open;
  setAttribute(menuButton, "aria-expanded", open);
  if (!open) return;
  const library = librarySays();
  for (const { format, key, button } of menuItems) {
    setText(button.lastChild, word(key));
    button.hidden = format !== "png" && !server.save;
    button.disabled = format !== "png" && format !== "html" && !library;
  }
  part("menuNote").hidden = library || !server.save;
  menu.append(part("menuNote"));
  menuItems[0].button.focus();
}
menuButton.addEventListener("click", () => { if (data) openMenu(menu.hidden); });
menu.addEventListener("keydown", event => {
  const open = menuItems.filter(({ button }) => !button.hidden && !button.disabled).map(({ button }) => button), at = open.indexOf(document.activeElement);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") { openMenu(false); menuButton.focus(); }
  else if (step) open[(at + step + open.length) % open.length].focus();
  else if (event.key === "Home" || event.key === "End") open.at(event.key === "Home" ? 0 : -1).focus();
  else if (event.key !== "Tab" && event.key !== "Enter" && event.key !== " ") return;
  if (event.key === "Tab") openMenu(false);
  if (!["Tab", "Enter", " "].includes(event.key)) event.preventDefault();
  event.stopPropagation();
});
document.addEventListener("pointerdown", event => { if (!menu.hidden && !event.target.closest?.(".menu")) openMenu(false); });

async function exportAs(format) {
  if (format === "png") return save();
  const { kind, patches } = resolvedIn(state.layer), head = currentHead();
  const from = patches?.length === 1 && data.info(state.layer).queries.place.centre(patches[0]);
  toast(word("exportMaking"));
  const answer = await server.save({
    id: data.payload.id, format: format === "full" ? "png" : format, layer: data.info(state.layer).layer, head: head === "mean" || !data.perHead ? null : head - 1,
    x: from ? from.x : null, y: from ? from.y : null, ask: kind, colours: state.colours, opacity: state.opacity / 100, smooth: state.cells === "smooth",
  });
  if (!answer?.path) return toast(answer?.text ?? word(answer?.word ?? "lost"));
  const got = await fetch(new URL(`gradio_api/file=${answer.path}`, document.baseURI));
  if (!got.ok) return toast(word("lost"));
  return offer(await got.blob(), answer.name);
}
