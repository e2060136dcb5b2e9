"use strict";
// Draws a report (see tfmem/report.py, `Report.to_json`): memory over a step, lanes, tensors alive.

const root = JSON.parse(document.getElementById("data").textContent);
const reports = [root, ...root.others];
const MOST_ROWS = 300;
const SIDES = { planned: "with tfmem", original: "original" };
const GROUPS = { tensor: "tensors", op: "ops", layer: "layers", line: "lines of code" };
const LANES = ["computation", "computed again", "to the host", "from the host"];
const LANE_HEIGHT = 16;

const state = { report: root, side: "planned", group: "tensor", position: 0 };
const byId = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let chart = null;

function showBytes(bytes) {
  if (bytes === null || bytes === undefined) return "not measured";
  if (bytes < 1e3) return `${bytes} B`;
  const [unit, name] = bytes >= 1e9 ? [1e9, "GB"] : bytes >= 1e6 ? [1e6, "MB"] : [1e3, "kB"];
  return `${(bytes / unit).toFixed(1)} ${name}`;
}

function showSeconds(seconds) {
  return seconds >= 1 ? `${seconds.toFixed(2)} s` : `${(1e3 * seconds).toFixed(1)} ms`;
}

function shortName(device) {
  return device.replace(/^\/job:localhost\/replica:0\/task:0\/device:/, "");
}

function element(tag, fields = {}, ...children) {
  const made = Object.assign(document.createElement(tag), fields);
  made.append(...children);
  return made;
}

// The head of the page.

function showFigures() {
  const report = state.report;
  const figures = {
    "budget": report.budget === null ? "none" : showBytes(report.budget),
    "predicted peak": showBytes(report.peak_bytes),
    "originally": showBytes(report.baseline_peak_bytes),
    "measured peak": showBytes(report.measured_peak_bytes),
    "predicted step": showSeconds(report.step_seconds),
    "original step": showSeconds(report.baseline_step_seconds),
    "host memory": showBytes(report.host_bytes),
  };
  document.title = `tfmem: ${report.name}`;
  byId("title").textContent = `${report.name} on ${shortName(report.device)}`;
  byId("figures").replaceChildren(...Object.entries(figures).map(([name, value]) =>
    element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }))));
  byId("events").hidden = !report.events.length;
  byId("events").replaceChildren(...report.events.map((text) => element("li", { textContent: text })));
}

function showFrontier() {
  const { frontier } = state.report;
  byId("frontier").hidden = !frontier.length;
  byId("offers").replaceChildren(...frontier.map((one) =>
    element("tr", {}, ...[showBytes(one.budget), showBytes(one.peak_bytes),
      showSeconds(one.step_seconds), `${one.slowdown.toFixed(2)} x`, one.techniques]
      .map((text) => element("td", { textContent: text })))));
}

function showChoice(id, names, field) {
  byId(id).replaceChildren(...Object.entries(names).map(([name, label]) => {
    const button = element("button", { textContent: label, type: "button" });
    button.dataset.name = name;
    button.setAttribute("aria-pressed", String(state[field] === name));
    button.addEventListener("click", () => {
      if (field === "side") state.position = positionAt(timeOf(state.position), name);
      state[field] = name;
      showChoice(id, names, field);
      showAlive();
    });
    return button;
  }));
}

// Memory over time.

function timeOf(position, side = state.side) {
  return state.report[side].begin[position] ?? 0;
}

function positionAt(time, side = state.side) {
  const begin = state.report[side].begin;
  let low = 0, high = begin.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (begin[middle] <= time) low = middle + 1; else high = middle;
  }
  return Math.max(0, low - 1);
}

function stepsOf(side) {
  const { begin, end, bytes } = state.report[side];
  const times = begin.map((time) => time / 1e3), used = bytes.map((one) => one / 1e6);
  if (end.length) {
    times.push(end[end.length - 1] / 1e3);
    used.push(used[used.length - 1]);
  }
  return [strictlyRising(times), used];
}

function strictlyRising(times) {
  for (let i = 1; i < times.length; i++) {
    if (times[i] <= times[i - 1]) times[i] = times[i - 1] + 1e-6;
  }
  return times;
}

function drawMemory() {
  const data = uPlot.join([stepsOf("original"), stepsOf("planned")], [[2, 2], [2, 2]]);
  const paths = uPlot.paths.stepped({ align: 1 });
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line") } };
  const { report } = state;
  const top = Math.max(report.baseline_peak_bytes, report.budget ?? 0,
    report.measured_peak_bytes ?? 0, most(report.original.bytes), most(report.planned.bytes)) / 1e6;
  const options = {
    width: byId("memory").clientWidth, height: 320,
    scales: { x: { time: false }, y: { range: () => [0, 1.05 * top] } },
    cursor: { y: false, drag: { x: true, y: false } },
    axes: [{ ...axis, label: "ms", labelSize: 18 }, { ...axis, label: "MB", size: 64, labelSize: 18 }],
    series: [
      {},
      { label: "original", paths, stroke: colour("--before"), width: 1, spanGaps: true,
        points: { show: false } },
      { label: "with tfmem", paths, stroke: colour("--after"), width: 1.5, spanGaps: true,
        fill: colour("--after") + "22", points: { show: false } },
    ],
    hooks: { draw: [drawLines, drawLanes] },
  };
  if (chart) chart.destroy();
  chart = new uPlot(options, data, byId("memory"));
  chart.over.addEventListener("click", () => {
    if (chart.cursor.left >= 0) select(positionAt(1e3 * chart.posToVal(chart.cursor.left, "x")));
  });
}

function most(numbers) {
  return numbers.reduce((largest, one) => Math.max(largest, one), 0);
}

function drawLines(one) {
  const { ctx, bbox } = one;
  const across = (bytes, name, dash) => {
    if (!bytes) return;
    const y = one.valToPos(bytes / 1e6, "y", true);
    line(ctx, colour(name), dash, [bbox.left, y], [bbox.left + bbox.width, y]);
  };
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  across(state.report.budget, "--budget", [6, 4]);
  across(state.report.measured_peak_bytes, "--measured", [2, 3]);
  const x = one.valToPos(timeOf(state.position) / 1e3, "x", true);
  line(ctx, colour("--ink"), [], [x, bbox.top], [x, bbox.top + bbox.height]);
  ctx.restore();
}

function line(ctx, stroke, dash, from, to) {
  ctx.strokeStyle = stroke;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(...from);
  ctx.lineTo(...to);
  ctx.stroke();
  ctx.setLineDash([]);
}

function showLegend() {
  const entries = { "original": "--before", "with tfmem": "--after", "budget": "--budget",
    "measured peak": "--measured", "computed again": "--clone", "to the host": "--out",
    "from the host": "--in" };
  byId("legend").replaceChildren(...Object.entries(entries).map(([name, value]) => {
    const made = element("span", { textContent: name });
    made.style.setProperty("--colour", `var(${value})`);
    return made;
  }));
}

// Lanes of computation and copies, on the chart's scale.

function drawLanes(one) {
  const ratio = devicePixelRatio, width = byId("lanes").clientWidth;
  let canvas = byId("lanes").firstElementChild;
  if (!canvas) byId("lanes").append((canvas = element("canvas")));
  canvas.width = width * ratio;
  canvas.height = LANES.length * LANE_HEIGHT * ratio;
  canvas.style.height = `${LANES.length * LANE_HEIGHT}px`;
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  const left = one.bbox.left / ratio, right = left + one.bbox.width / ratio;
  const { begin, end, clones, copies } = state.report.planned;
  const box = (lane, from, to, fill) => {
    const a = Math.max(left, left + one.valToPos(from / 1e3, "x"));
    const b = Math.min(right, left + one.valToPos(to / 1e3, "x"));
    if (b <= left || a >= right) return;
    ctx.fillStyle = fill;
    ctx.fillRect(a, lane * LANE_HEIGHT + 3, Math.max(0.6, b - a), LANE_HEIGHT - 6);
  };
  const [after, repeat, out, back] = ["--after", "--clone", "--out", "--in"].map(colour);
  begin.forEach((from, i) => box(0, from, end[i], after));
  clones.forEach((i) => box(1, begin[i], end[i], repeat));
  copies.begin.forEach((from, i) =>
    box(copies.to_host[i] ? 2 : 3, from, copies.end[i], copies.to_host[i] ? out : back));
  ctx.fillStyle = colour("--soft");
  ctx.font = "10px system-ui, sans-serif";
  ctx.textAlign = "right";
  LANES.forEach((name, lane) =>
    ctx.fillText(name, left - 4, lane * LANE_HEIGHT + 12, left - 6));
}

// What is alive at a moment.

function select(position) {
  const last = state.report[state.side].order.name.length - 1;
  state.position = Math.min(Math.max(0, position), Math.max(0, last));
  chart.redraw(false, false);
  showAlive();
}

function layerOf(name) {
  const scopes = name.split("/").filter((part) => part !== "gradient_tape");
  return scopes.slice(0, Math.min(2, scopes.length - 1)).join("/") || "(no layer)";
}

function aliveAt(position) {
  const words = state.report.texts;
  const { buffers } = state.report[state.side];
  const found = [];
  for (let i = 0; i < buffers.bytes.length; i++) {
    if (buffers.first[i] <= position && position <= buffers.last[i]) {
      found.push({ bytes: buffers.bytes[i], name: words[buffers.name[i]],
        op: words[buffers.op[i]], line: words[buffers.source[i]] });
    }
  }
  return found;
}

function grouped(found) {
  if (state.group === "tensor") return found;
  const key = { op: (one) => one.op, layer: (one) => layerOf(one.name),
    line: (one) => one.line || "(not known)" }[state.group];
  const groups = new Map();
  for (const one of found) {
    const name = key(one);
    const group = groups.get(name) ?? { bytes: 0, count: 0, name };
    group.bytes += one.bytes;
    group.count += 1;
    groups.set(name, group);
  }
  return [...groups.values()];
}

function showAlive() {
  const words = state.report.texts, steps = state.report[state.side];
  const found = aliveAt(state.position);
  const rows = grouped(found).sort((a, b) => b.bytes - a.bytes);
  const largest = rows.length ? rows[0].bytes : 1;
  const total = found.reduce((sum, one) => sum + one.bytes, 0);
  const node = words[steps.order.name[state.position]] ?? "", op = words[steps.order.op[state.position]];
  byId("when").textContent = `${SIDES[state.side]}, node ${state.position + 1} of ` +
    `${steps.order.name.length}, ${showSeconds(timeOf(state.position) / 1e6)}: ${node} (${op}). ` +
    `${showBytes(steps.bytes[state.position])} in use, ${found.length} tensors of ` +
    `${showBytes(total)} in all.` +
    (rows.length > MOST_ROWS ? ` The largest ${MOST_ROWS} are shown.` : "");
  const isTensor = state.group === "tensor";
  const head = isTensor ? ["size", "op", "tensor", "line"] : ["size", "tensors", GROUPS[state.group]];
  byId("tensors").tHead.replaceChildren(
    element("tr", {}, ...head.map((name) => element("th", { textContent: name }))));
  byId("tensors").tBodies[0].replaceChildren(...rows.slice(0, MOST_ROWS).map((one) => {
    const size = element("td", { className: "size", textContent: showBytes(one.bytes) });
    size.style.setProperty("--part", `${(100 * one.bytes) / largest}%`);
    const others = isTensor ? [one.op, one.name, one.line] : [one.count, one.name];
    const cells = others.map((text) => element("td", { textContent: text }));
    cells[0].className = "op";
    return element("tr", {}, size, ...cells);
  }));
}

// All of it.

function peakOf(side) {
  const { bytes } = state.report[side];
  return bytes.reduce((best, one, i) => (one > bytes[best] ? i : best), 0);
}

function show() {
  state.position = peakOf(state.side);
  showFigures();
  showLegend();
  showFrontier();
  showChoice("side", SIDES, "side");
  byId("side").hidden = state.report.is_unchanged;
  showChoice("group", GROUPS, "group");
  drawMemory();
  showAlive();
}

function showDevices() {
  const choice = byId("device");
  choice.hidden = reports.length < 2;
  choice.replaceChildren(...reports.map((one, i) => element("option", { value: i, textContent: shortName(one.device) })));
  choice.addEventListener("change", () => {
    state.report = reports[Number(choice.value)];
    show();
  });
}

document.addEventListener("keydown", (event) => {
  if (event.target instanceof HTMLSelectElement) return;
  if (event.key === "ArrowRight") select(state.position + 1);
  if (event.key === "ArrowLeft") select(state.position - 1);
});
new ResizeObserver(() => {
  if (chart && chart.width !== byId("memory").clientWidth) {
    chart.setSize({ width: byId("memory").clientWidth, height: 320 });
  }
}).observe(byId("memory"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMemory);
showDevices();
show();
