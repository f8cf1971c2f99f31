// Everything on the canvas, drawn anew for each frame that differs from the last.

const readTheme = () => {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "ink", "faint", "rule", "idle", "memory"])
    theme[name] = style.getPropertyValue("--" + name).trim();
};

const niceStep = (least) => {
  const decade = 10 ** Math.floor(Math.log10(least));
  for (const factor of [1, 2, 5]) if (factor * decade >= least * (1 - 1e-9)) return factor * decade;
  return 10 * decade;
};

const drawAxis = () => {
  const [size, name] = data.timeUnit;
  const step = niceStep(((view.to - view.from) / size) * (80 / plotWidth())) * size;
  context.fillStyle = theme.paper;
  context.fillRect(0, 0, view.width, kAxis - 2);
  context.fillStyle = theme.faint;
  context.textAlign = "center";
  context.font = "11px system-ui, sans-serif";
  for (let k = Math.max(0, Math.ceil(view.from / step)); k * step <= Math.min(view.to, end); ++k) {
    const decimals = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
    context.fillText(((k * step) / size).toFixed(decimals), xOf(k * step), 14);
  }
  context.textAlign = "left";
  context.fillText(name ? "time, " + name : "time", 12, 14);
};
const drawGridLines = () => {
  const [size] = data.timeUnit;
  const step = niceStep(((view.to - view.from) / size) * (80 / plotWidth())) * size;
  context.fillStyle = theme.rule;
  for (let k = Math.max(0, Math.ceil(view.from / step)); k * step <= Math.min(view.to, end); ++k)
    context.fillRect(Math.round(xOf(k * step)), kAxis - 6, 1, view.height);
};

const laneBox = (device, i, y, height) => {
  const lane = device.lane ? device.lane[i] : 0;
  if (lane === 0) return [y, height];
  return lane === 1 ? [y, height / 2] : [y + height / 2, height / 2];
};

const drawBoxes = (device, first, last, y, height) => {
  const scale = plotWidth() / (view.to - view.from);
  // Fewer changes of colour: all boxes of one kind and shade together.
  for (let k = 0; k < kinds.length; ++k) {
    if (!kinds[k].shown) continue;
    for (let s = 0; s < numShades; ++s) {
      context.fillStyle = kinds[k].colours[s];
      for (let i = first; i < last; ++i) {
        if (device.kind[i] !== k || device.shade[i] !== s) continue;
        const x = kGutter + (device.times[2 * i] - view.from) * scale;
        const width = (device.times[2 * i + 1] - device.times[2 * i]) * scale;
        const [top, tall] = laneBox(device, i, y, height);
        context.fillRect(x, top, width > 4 ? width - 1 : width, tall);
      }
    }
  }
  context.textAlign = "center";
  for (let i = first; i < last; ++i) {
    const kind = kinds[device.kind[i]];
    const width = (device.times[2 * i + 1] - device.times[2 * i]) * scale;
    if (width < 9 || !kind.shown || device.microbatches[i] < 0) continue;
    const [top, tall] = laneBox(device, i, y, height);
    const room = Math.min(12, tall - 1);
    let label = device.microbatches[i] + (device.slices ? "." + device.slices[i] : "");
    if (width > 44) label = kind.name + " " + label;
    if (room < 7 || label.length * room * 0.58 + 2 > width) continue;
    context.font = room + "px system-ui, sans-serif";
    context.fillStyle = kind.ink[device.shade[i]];
    context.fillText(label, kGutter + (device.times[2 * i] - view.from) * scale + width / 2,
                     top + tall / 2 + room * 0.36);
  }
  context.strokeStyle = theme.ink;
  context.lineWidth = 1.5;
  for (const i of device.joined) {
    if (i <= first || i >= last) continue;
    const from = xOf(Math.min(device.times[2 * i - 2], device.times[2 * i]));
    const to = xOf(Math.max(device.times[2 * i - 1], device.times[2 * i + 1]));
    if (to - from > 6) context.strokeRect(from, y, to - from - 1, height);
  }
};

// Gradient reductions run beside the ops: a strip along the lower edge of the row.
const drawReductions = (device, y, height) => {
  const kind = kinds.find((k) => k.name === "REDUCE_GRAD");
  if (device.reductions.length === 0 || !kind.shown) return;
  const tall = Math.max(2, height / 5);
  for (let i = 0; i < device.reductions.length; i += 3) {
    const [stage, from, to] = device.reductions.subarray(i, i + 3);
    const chunk = Math.floor((stage * data.numChunks) / data.numStages);
    context.fillStyle = kind.colours[Math.min(numShades - 1, chunk * data.numPipes)];
    context.fillRect(xOf(from), y + height - tall, Math.max(1, xOf(to) - xOf(from) - 1), tall);
  }
};

// Ops narrower than a pixel: each pixel takes the average of what runs in it.
const strip = document.createElement("canvas");
const drawAverages = (device, first, last, y, height) => {
  const width = Math.ceil(plotWidth());
  const scale = plotWidth() / (view.to - view.from);
  const sums = new Float32Array(width * 4);
  for (let i = first; i < last; ++i) {
    const kind = kinds[device.kind[i]];
    if (!kind.shown) continue;
    const rgb = kind.rgb[device.shade[i]];
    const from = Math.max(0, (device.times[2 * i] - view.from) * scale);
    const to = Math.min(width, (device.times[2 * i + 1] - view.from) * scale);
    for (let x = Math.floor(from); x < to; ++x) {
      const share = Math.min(to, x + 1) - Math.max(from, x);
      sums[4 * x] += share * rgb[0];
      sums[4 * x + 1] += share * rgb[1];
      sums[4 * x + 2] += share * rgb[2];
      sums[4 * x + 3] += share;
    }
  }
  strip.width = width;
  strip.height = 1;
  const pixels = new ImageData(width, 1);
  for (let x = 0; x < width; ++x) {
    const share = sums[4 * x + 3];
    if (share === 0) continue;
    for (let c = 0; c < 3; ++c) pixels.data[4 * x + c] = sums[4 * x + c] / share;
    pixels.data[4 * x + 3] = 255 * Math.min(1, share);
  }
  strip.getContext("2d").putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(strip, 0, 0, width, 1, kGutter, y, width, height);
};

const drawMemory = (device, y, height) => {
  const points = device.memory;
  const count = points.length / 2;
  if (count === 0) return;
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[2 * middle] > view.from) high = middle;
    else low = middle + 1;
  }
  const base = y + height;
  const level = (value) => base - (value / maxPeak) * height;
  const right = xOf(Math.min(view.to, end));
  let x = low > 0 ? xOf(view.from) : xOf(points[0]);
  let value = low > 0 ? points[2 * low - 1] : 0;
  context.beginPath();
  context.moveTo(x, base);
  context.lineTo(x, level(value));
  // Steps within one pixel are drawn as their maximum, then what remains.
  for (let i = low; i < count && points[2 * i] <= view.to;) {
    x = xOf(points[2 * i]);
    let most = 0;
    const limit = Math.max(points[2 * i], timeAt(x + 0.7));
    const before = value;
    for (; i < count && points[2 * i] <= limit; ++i) {
      value = points[2 * i + 1];
      most = Math.max(most, value);
    }
    context.lineTo(x, level(before));
    context.lineTo(x, level(most));
    if (value !== most) {
      context.lineTo(x + 0.7, level(most));
      context.lineTo(x + 0.7, level(value));
    }
  }
  context.lineTo(right, level(value));
  context.lineTo(right, base);
  context.closePath();
  context.fill();
};

const drawArrow = (m, strong) => {
  const at = m * kMessageStride;
  const height = barHeight();
  const x0 = xOf(messages[at + 2]);
  const x1 = xOf(messages[at + 3]);
  const down = messages[at + 1] > messages[at];
  const y0 = yOf(messages[at]) + (down ? height : 0);
  const y1 = yOf(messages[at + 1]) + (down ? 0 : height);
  context.lineWidth = strong ? 2 : 1;
  context.strokeStyle = context.fillStyle = strong ? theme.ink : theme.faint;
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
  const angle = Math.atan2(y1 - y0, x1 - x0);
  const size = strong ? 7 : 5;
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x1 - size * Math.cos(angle - 0.4), y1 - size * Math.sin(angle - 0.4));
  context.lineTo(x1 - size * Math.cos(angle + 0.4), y1 - size * Math.sin(angle + 0.4));
  context.fill();
};
const drawMessages = () => {
  const shown = [];
  let inView = 0;
  for (let m = 0; m < messages.length / kMessageStride; ++m) {
    const at = m * kMessageStride;
    if (messages[at + 3] < view.from || messages[at + 2] > view.to) continue;
    const low = yOf(Math.min(messages[at], messages[at + 1]));
    const high = yOf(Math.max(messages[at], messages[at + 1]));
    if (high + view.row < kAxis || low > view.height) continue;
    if (++inView <= kMostArrows) shown.push(m);
  }
  if (inView > kMostArrows) return inView + " messages here: zoom in to see them";
  for (const m of shown) drawArrow(m, false);
  return messages.length === 0 ? "there are no messages in this page" : "";
};
// What the op under the pointer receives and sends.
const drawMessagesOf = (d, i) => {
  const device = devices[d];
  const forward = kinds[device.kind[i]].name === "F";
  if (!forward && !["I", "B"].includes(kinds[device.kind[i]].name)) return;
  const slice = device.slices ? device.slices[i] : 0;
  for (let m = 0; m < messages.length / kMessageStride; ++m) {
    const at = m * kMessageStride;
    if (messages[at + 6] !== device.microbatches[i] || messages[at + 7] !== slice) continue;
    if ((messages[at + 4] === 0) !== forward) continue;
    const sent = messages[at] === d && messages[at + 5] === device.stages[i];
    const source = device.stages[i] + (forward ? -1 : 1);
    if (sent || (messages[at + 1] === d && messages[at + 5] === source)) drawArrow(m, true);
  }
};

const draw = () => {
  pending = false;
  clampView();
  const ratio = window.devicePixelRatio || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = theme.paper;
  context.fillRect(0, 0, view.width, view.height);
  drawGridLines();
  const height = barHeight();
  const firstRow = Math.max(0, Math.floor(view.scroll / view.row));
  const lastRow = Math.min(devices.length, Math.ceil((view.scroll + view.height) / view.row));

  context.save();
  context.beginPath();
  context.rect(kGutter, kAxis - 2, plotWidth(), view.height);
  context.clip();
  for (let d = firstRow; d < lastRow; ++d) {
    const device = devices[d];
    const y = yOf(d);
    context.fillStyle = theme.idle;
    context.fillRect(xOf(0), y, xOf(end) - xOf(0), height);
    // One more on the left: it may reach into the view, and so may the op joined to it.
    const first = Math.max(0, firstAfter(device, view.from) - 2);
    const last = firstAfter(device, view.to);
    if (last - first > plotWidth() / 2) drawAverages(device, first, last, y, height);
    else drawBoxes(device, first, last, y, height);
    drawReductions(device, y, height);
    if (withMemory() && view.row >= 5) {
      context.fillStyle = theme.memory;
      drawMemory(device, y + height + 1, (height / 0.6) * 0.4 - 1);
    }
  }
  byId("hint").textContent = byId("show-messages").checked ? drawMessages() : "";
  if (hover) {
    const device = devices[hover.device];
    const [top, tall] = laneBox(device, hover.span, yOf(hover.device), height);
    const x = xOf(device.times[2 * hover.span]);
    context.strokeStyle = theme.ink;
    context.lineWidth = 2;
    context.strokeRect(x, top, Math.max(2, xOf(device.times[2 * hover.span + 1]) - x), tall);
    drawMessagesOf(hover.device, hover.span);
  }
  context.restore();

  context.fillStyle = theme.ink;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  const every = Math.max(1, Math.ceil(13 / view.row));
  for (let d = Math.ceil(firstRow / every) * every; d < lastRow; d += every)
    context.fillText(devices[d].name, kGutter - 8, yOf(d) + Math.max(height / 2, 4) + 4);
  drawAxis();
};
const redraw = () => {
  if (!pending) requestAnimationFrame(draw);
  pending = true;
};
