// The page's script is data.js, view.js, draw.js, point.js and around.js, one behind the other: it
// draws the timeline embedded in the page. This is the data, an object:
//   name, caption, note, timeUnit [size, name], memoryUnit, makespan, numStages, numSlices,
//   numPipes, numChunks, and
//   kinds     [{name, words, colours: one per shade}]
//   devices   [{times: [start, end, ...], kinds: one base-36 digit per span, index into kinds,
//               stages, microbatches, slices (absent if one), joined: [span, ...],
//               reductions: [stage, start, end, ...] (absent if none),
//               memory: [time, value, ...], peak, idle, name}]
//   messages  [from, to, start, end, 0 activation | 1 gradient, stage, microbatch, slice, ...]
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const canvas = byId("chart");
const context = canvas.getContext("2d");
const tip = byId("tip");

const kGutter = 84;
const kAxis = 26;
const kMessageStride = 8;
const kMostArrows = 4000;

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
    idle: d.idle,
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
