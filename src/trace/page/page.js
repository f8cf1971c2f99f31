// Draws the timeline embedded in the page. The data is an object:
//   name, caption, note, timeUnit [size, name], memoryUnit, makespan, numStages, numSlices,
//   numPipes, numChunks, and
//   kinds     [{name, words, colours: one per shade}]
//   devices   [{times: [start, end, ...], kinds: one base-36 digit per span, index into kinds,
//               stages, microbatches, slices (absent if one), joined: [span, ...],
//               reductions: [stage, start, end, ...] (absent if none),
//               memory: [time, value, ...], peak, bubble, name}]
//   messages  [from, to, start, end, 0 activation | 1 gradient, stage, microbatch, slice, ...]
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const canvas = byId("chart");
  const context = canvas.getContext("2d");
  const tip = byId("tip");

  const kGutter = 84;
  const kAxis = 26;
  const kMessageStride = 8;
  const kMostArrows = 4000;

  // --- Data ------------------------------------------------------------------------------------

  const kinds = data.kinds.map((kind) => ({
    ...kind,
    shown: true,
    rgb: kind.colours.map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16))),
    ink: kind.inks,
  }));
  const numShades = data.numChunks * data.numPipes;

  const devices = data.devices.map((d) => {
    const count = d.kinds.length;
    const kind = new Uint8Array(count);
    const shade = new Uint16Array(count);
    for (let i = 0; i < count; ++i) {
      kind[i] = parseInt(d.kinds[i], 36);
      const chunk = Math.floor((d.stages[i] * data.numChunks) / data.numStages);
      const pipe = d.microbatches[i] < 0 ? 0 : d.microbatches[i] % data.numPipes;
      shade[i] = Math.min(numShades - 1, chunk * data.numPipes + pipe);
    }
    const device = {
      count, kind, shade,
      times: Float64Array.from(d.times),
      stages: Int32Array.from(d.stages),
      microbatches: Int32Array.from(d.microbatches),
      slices: d.slices ? Uint16Array.from(d.slices) : null,
      reductions: Float64Array.from(d.reductions ?? []),
      memory: Float64Array.from(d.memory),
      lane: null,  // 1 top half, 2 bottom half of the row, for ops that run at the same time
      joined: d.joined,
      name: d.name,
      label: d.name.replace(/^device /, ""),
      peak: d.peak,
      bubble: d.bubble,
    };
    for (const i of d.joined) {
      if (device.times[2 * i] < device.times[2 * i - 1] - data.makespan * 1e-9) {
        device.lane ??= new Uint8Array(count);
        device.lane[i - 1] = 1;
        device.lane[i] = 2;
      }
    }
    return device;
  });
  const messages = Float64Array.from(data.messages);
  const maxPeak = Math.max(...devices.map((d) => d.peak), 0) || 1;
  let end = 0;
  for (const d of devices) {
    if (d.count > 0) end = Math.max(end, d.times[2 * d.count - 1]);
    if (d.reductions.length > 0) end = Math.max(end, d.reductions[d.reductions.length - 1]);
  }
  end = end || 1;

  const tidy = (value) => {
    const rounded = Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(4));
    return String(rounded);
  };
  const withUnit = (value, [size, name]) => tidy(value / size) + (name ? " " + name : "");

  // The first span of a device that starts after `time`.
  const firstAfter = (device, time) => {
    let low = 0;
    let high = device.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (device.times[2 * middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  };

  const opText = (device, i) => {
    const m = device.microbatches[i];
    return device.stages[i] + kinds[device.kind[i]].name + (m < 0 ? "" : m) +
      (device.slices && m >= 0 ? "." + device.slices[i] : "") +
      (data.numPipes > 1 && m >= 0 ? "@" + (m % data.numPipes) : "");
  };

  // --- View ------------------------------------------------------------------------------------

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

  // --- Drawing ---------------------------------------------------------------------------------

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

  // --- Pointing --------------------------------------------------------------------------------

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

  // --- Around the canvas -----------------------------------------------------------------------

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
    for (const text of [device.label, (100 * device.bubble).toFixed(1) + "%", withUnit(device.peak, data.memoryUnit)]) {
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
})();
