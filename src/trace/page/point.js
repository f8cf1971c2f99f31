// Pointer, wheel and keys: an op chosen and told about, the view moved.

const spanAt = (x, y) => {
  const d = Math.floor((y - kAxis + view.scroll) / view.row);
  if (x < kGutter || y < kAxis || d < 0 || d >= devices.length) return null;
  const inRow = y - yOf(d);
  const height = barHeight();
  if (inRow > height) return null;
  const device = devices[d];
  const time = timeAt(x);
  const slack = (1.5 / plotWidth()) * (view.to - view.from);
  const after = firstAfter(device, time);
  for (let i = after - 1; i >= Math.max(0, after - 3); --i) {
    if (!kinds[device.kind[i]].shown || device.times[2 * i + 1] + slack < time) continue;
    const [top, tall] = laneBox(device, i, 0, height);
    if (inRow >= top && inRow <= top + tall) return {device: d, span: i};
  }
  return null;
};

const fillTip = (d, i) => {
  const device = devices[d];
  const kind = kinds[device.kind[i]];
  const rows = [["op", opText(device, i)], ["device", device.label], ["stage", device.stages[i]]];
  const m = device.microbatches[i];
  if (m >= 0) rows.push(["microbatch", m]);
  if (m >= 0 && device.slices) rows.push(["slice", device.slices[i]]);
  if (m >= 0 && data.numPipes > 1) rows.push(["pipe", m % data.numPipes]);
  const [start, stop] = [device.times[2 * i], device.times[2 * i + 1]];
  rows.push(["start", withUnit(start, data.timeUnit)], ["end", withUnit(stop, data.timeUnit)],
            ["duration", withUnit(stop - start, data.timeUnit)]);
  const title = document.createElement("b");
  title.textContent = kind.words;
  const list = document.createElement("dl");
  for (const [term, value] of rows) {
    const dt = document.createElement("dt");
    const dd = document.createElement("dd");
    dt.textContent = term;
    dd.textContent = value;
    list.append(dt, dd);
  }
  tip.replaceChildren(title, list);
};
const point = (found, x, y) => {
  const changed = (hover && hover.device) !== (found && found.device) ||
                  (hover && hover.span) !== (found && found.span);
  hover = found;
  tip.hidden = !found;
  if (found) {
    if (changed) fillTip(found.device, found.span);
    const box = canvas.getBoundingClientRect();
    const left = Math.min(box.left + x + 16, window.innerWidth - tip.offsetWidth - 8);
    const below = box.top + y + 18;
    const above = box.top + y - tip.offsetHeight - 12;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (below + tip.offsetHeight > window.innerHeight ? Math.max(8, above) : below) + "px";
  }
  if (changed) redraw();
};

let drag = null;
canvas.addEventListener("pointerdown", (event) => {
  drag = {x: event.offsetX, y: event.offsetY};
  canvas.setPointerCapture(event.pointerId);
  canvas.classList.add("dragging");
  point(null);
});
canvas.addEventListener("pointermove", (event) => {
  if (!drag) return point(spanAt(event.offsetX, event.offsetY), event.offsetX, event.offsetY);
  pan(drag.x - event.offsetX, drag.y - event.offsetY);
  drag = {x: event.offsetX, y: event.offsetY};
});
for (const name of ["pointerup", "pointercancel"])
  canvas.addEventListener(name, () => {
    drag = null;
    canvas.classList.remove("dragging");
  });
canvas.addEventListener("pointerleave", () => point(null));
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  point(null);
  const lines = event.deltaMode === 1 ? 16 : 1;
  if (event.offsetX < kGutter || event.altKey) pan(0, event.deltaY * lines);
  else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
    pan((event.deltaX || event.deltaY) * lines);
  else zoom(Math.exp(Math.max(-240, Math.min(240, event.deltaY * lines)) / 400), event.offsetX);
}, {passive: false});

// Choose an op from the keyboard, and bring it into view.
const choose = (d, i) => {
  const device = devices[d];
  if (!device || i < 0 || i >= device.count) return;
  const [start, stop] = [device.times[2 * i], device.times[2 * i + 1]];
  if (start < view.from || stop > view.to) pan(((start + stop - view.from - view.to) / 2 / (view.to - view.from)) * plotWidth());
  if (yOf(d) < kAxis) view.scroll += yOf(d) - kAxis;
  if (yOf(d) + view.row > view.height) view.scroll += yOf(d) + view.row - view.height;
  clampView();
  point({device: d, span: i}, xOf(stop), yOf(d) + barHeight());
  redraw();
};
const stepDevice = (by) => {
  if (!hover) return choose(0, 0);
  const d = hover.device + by;
  if (d < 0 || d >= devices.length) return;
  const time = devices[hover.device].times[2 * hover.span];
  choose(d, Math.max(0, firstAfter(devices[d], time) - 1));
};
const stepOp = (by) => (hover ? choose(hover.device, hover.span + by) : choose(0, 0));
const rescaleRows = (factor) => {
  const middle = (view.scroll + (view.height - kAxis) / 2) / view.row;
  view.row = Math.max(2, Math.min(160, view.row * factor));
  view.scroll = middle * view.row - (view.height - kAxis) / 2;
  redraw();
};
const toggleMessages = () => {
  byId("show-messages").checked = !byId("show-messages").checked;
  redraw();
};
const keys = {
  "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), "0": fit, "Home": fit,
  "ArrowLeft": () => pan(-80), "ArrowRight": () => pan(80),
  "ArrowUp": () => pan(0, -60), "ArrowDown": () => pan(0, 60),
  "PageUp": () => pan(0, -view.height), "PageDown": () => pan(0, view.height),
  "]": () => rescaleRows(1.25), "[": () => rescaleRows(0.8),
  "n": () => stepOp(1), "p": () => stepOp(-1), "j": () => stepDevice(1), "k": () => stepDevice(-1),
  "m": toggleMessages, "Escape": () => point(null),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLInputElement) return;
  const act = keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
