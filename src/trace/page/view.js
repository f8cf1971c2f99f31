// Which times and devices the canvas shows, and where on it they are.

const view = {from: 0, to: end, scroll: 0, row: 0, width: 1, height: 1};
let hover = null;  // {device, span}
let theme = {};
let pending = false;

const plotWidth = () => Math.max(1, view.width - kGutter - 8);
const xOf = (time) => kGutter + ((time - view.from) / (view.to - view.from)) * plotWidth();
const timeAt = (x) => view.from + ((x - kGutter) / plotWidth()) * (view.to - view.from);
const yOf = (d) => kAxis + d * view.row - view.scroll;
const withMemory = () => byId("show-memory").checked;
const barHeight = () => {
  const gap = view.row >= 12 ? 4 : view.row >= 5 ? 1 : 0;
  return withMemory() && view.row >= 5 ? (view.row - gap) * 0.6 : view.row - gap;
};

const fitRows = () => {
  const fair = (view.height - kAxis - 8) / Math.max(1, devices.length);
  view.row = Math.min(80, Math.max(12, fair));
};
const clampView = () => {
  const range = Math.min(view.to - view.from, end * 1.02);
  view.from = Math.max(-0.01 * end, Math.min(view.from, 1.01 * end - range));
  view.to = view.from + range;
  const total = devices.length * view.row + kAxis + 8;
  view.scroll = Math.max(0, Math.min(view.scroll, total - view.height));
};
const zoom = (factor, x = kGutter + plotWidth() / 2) => {
  const time = timeAt(x);
  const range = Math.max(end * 1e-7, Math.min(end * 1.02, (view.to - view.from) * factor));
  const share = (x - kGutter) / plotWidth();
  view.from = time - share * range;
  view.to = view.from + range;
  redraw();
};
const pan = (pixels, rows = 0) => {
  const shift = (pixels / plotWidth()) * (view.to - view.from);
  view.from += shift;
  view.to += shift;
  view.scroll += rows;
  redraw();
};
const fit = () => {
  view.from = -0.01 * end;
  view.to = 1.01 * end;
  view.scroll = 0;
  fitRows();
  redraw();
};
