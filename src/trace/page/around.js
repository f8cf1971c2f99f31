// What stands around the canvas: titles, legend, the table of devices, buttons; and the start.

byId("name").textContent = data.name;
byId("caption").textContent = data.caption;
byId("note").textContent = data.note;
byId("note").hidden = !data.note;
canvas.setAttribute("aria-label", "timeline of " + data.name + ": " + data.caption);

for (const kind of kinds) {
  const label = document.createElement("label");
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = true;
  box.addEventListener("change", () => {
    kind.shown = box.checked;
    redraw();
  });
  const swatch = document.createElement("span");
  swatch.className = "swatch";
  for (const colour of kind.colours.slice(0, 8)) {
    const part = document.createElement("i");
    part.style.background = colour;
    swatch.append(part);
  }
  label.append(box, swatch, document.createTextNode(kind.words));
  byId("legend").append(label);
}
if (data.shades) {
  const words = document.createElement("span");
  words.className = "hint";
  words.textContent = data.shades;
  byId("legend").append(words);
}

devices.forEach((device) => {
  const row = document.createElement("tr");
  for (const text of [device.label, (100 * device.idle).toFixed(1) + "%", withUnit(device.peak, data.memoryUnit)]) {
    const cell = document.createElement("td");
    cell.textContent = text;
    row.append(cell);
  }
  byId("devices").append(row);
});

byId("zoom-in").addEventListener("click", () => zoom(0.7));
byId("zoom-out").addEventListener("click", () => zoom(1 / 0.7));
byId("fit").addEventListener("click", fit);
byId("taller").addEventListener("click", () => rescaleRows(1.25));
byId("shorter").addEventListener("click", () => rescaleRows(0.8));
byId("show-memory").addEventListener("change", redraw);
byId("show-messages").addEventListener("change", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readTheme();
  redraw();
});
let sized = false;
new ResizeObserver(() => {
  const ratio = window.devicePixelRatio || 1;
  view.width = canvas.clientWidth;
  view.height = canvas.clientHeight;
  canvas.width = Math.round(view.width * ratio);
  canvas.height = Math.round(view.height * ratio);
  if (!sized) fit();
  sized = true;
  redraw();
}).observe(canvas);
readTheme();
