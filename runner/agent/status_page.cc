#include "runner/agent/status_page.h"

namespace lockstep {

const std::string_view kStatusPage = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Lockstep</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #667080; --paper: #f6f7f9; --card: #fff; --line: #dfe3e8;
        --accent: #0b7285; --good: #2b8a3e; --bad: #c92a2a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --dim: #98a2b0; --paper: #14171b; --card: #1d2127; --line: #2e343c; --accent: #3bc9db;
          --good: #69db7c; --bad: #ff8787; }
}
body { margin: 0 auto; padding: 2rem 1rem; max-width: 68rem; background: var(--paper); color: var(--ink);
       font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
header { display: flex; align-items: baseline; gap: 1rem; flex-wrap: wrap; }
h1 { font-size: 1.4rem; margin: 0; }
h2 { font-size: .8rem; text-transform: uppercase; letter-spacing: .06em; color: var(--dim); margin: 0 0 .6rem; }
.badge { padding: .1rem .6rem; border-radius: 1rem; border: 1px solid currentColor; font-size: .85rem; }
.good { color: var(--good); } .bad { color: var(--bad); } .dim { color: var(--dim); }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem; margin-top: 1rem; }
progress { width: 100%; height: .7rem; accent-color: var(--accent); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .8rem; margin: 1rem 0 0; }
dt { color: var(--dim); font-size: .8rem; } dd { margin: 0; font-size: 1.15rem; }
table { width: 100%; border-collapse: collapse; } .scroll { overflow-x: auto; }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 500; color: var(--dim); }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); gap: 1.2rem; }
.wide .grid { grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); }
figure { margin: 0; min-width: 0; } figcaption { display: flex; justify-content: space-between; gap: 1rem; }
summary { cursor: pointer; color: var(--dim); } details[open] summary { margin-bottom: .8rem; }
.plot { position: relative; } .plot svg { display: block; width: 100%; height: 11rem; touch-action: pan-y; }
.wide .plot svg { height: 16rem; } .plot svg:focus-visible { outline: 2px solid var(--accent); }
.plot text { fill: var(--dim); font-size: 12px; } .gridline { stroke: var(--line); }
.curve { fill: none; stroke: var(--accent); stroke-width: 1.5; stroke-linejoin: round; } .dot { fill: var(--accent); }
.recovery { stroke: var(--bad); stroke-dasharray: 4 3; } .start { stroke: var(--dim); stroke-dasharray: 1 3; }
.cursor { stroke: var(--dim); }
.tip { position: absolute; top: 0; max-width: 20rem; padding: .2rem .5rem; border-radius: .3rem; font-size: .85rem;
       background: var(--card); border: 1px solid var(--line); pointer-events: none; }
.key { font-size: .85rem; margin: .6rem 0 0; } .key svg { width: 1.6rem; height: .6rem; margin-right: .3rem; }
.output img { max-width: 100%; background: #fff; border-radius: .3rem; }
.output pre { max-height: 22rem; overflow: auto; margin: 0; font-size: .85rem; }
</style>
</head>
<body>
<header><h1 id="job">Lockstep</h1><span id="phase" class="badge dim">…</span><span id="note" class="dim"></span></header>
<section><h2>Progress</h2><progress id="bar" max="1" value="0"></progress><dl id="facts"></dl></section>
<section id="elsewhere" hidden></section>
<section class="wide" id="training-box"><h2>Training</h2><div class="grid" id="training"></div>
<p id="no-figures" class="dim">No figures yet.</p>
<p class="key" id="key" hidden><span id="key-recovery"><svg><line class="recovery" x1="0" x2="26" y1="5" y2="5"/></svg>
recovery</span> <span id="key-start"><svg><line class="start" x1="0" x2="26" y1="5" y2="5"/></svg>started again</span></p>
<p class="key dim" id="remark" hidden></p></section>
<section id="evaluations-box" hidden><h2>Evaluations</h2><div class="grid" id="evaluations"></div></section>
<section id="rest-box" hidden><details><summary>Learning rate, gradient norm, speed</summary>
<div class="grid" id="rest"></div></details></section>
<section id="outputs-box" hidden><h2>Outputs</h2><div class="grid" id="outputs"></div></section>
<section><h2>Workers</h2><div class="scroll"><table><thead>
<tr><th>Rank<th>Node<th>PID<th>State<th>Step<th>Activity<th>Phase<th>Unchanged</tr></thead>
<tbody id="workers"></tbody></table></div></section>
<section id="nodes-box" hidden><h2>Nodes</h2><div class="scroll"><table><thead>
<tr><th>Node<th>Host<th>Attempt<th>State<th>Waits</tr></thead><tbody id="nodes"></tbody></table></div></section>
<section id="recoveries-box" hidden><h2>Recoveries</h2><div class="scroll"><table><thead>
<tr><th>Time<th>Cause<th>Rank<th>Detected<th>All ready<th>Formed<th>Total<th>Redone<th>Step</tr></thead>
<tbody id="recoveries"></tbody></table></div></section>
<section id="failures-box" hidden><h2>Recent failures</h2><div class="scroll"><table><thead>
<tr><th>Time<th>Rank<th>Code<th>Reason<th>Step<th>Message</tr></thead><tbody id="failures"></tbody></table></div></section>
<script>
"use strict";
const at = id => document.getElementById(id);
const kStatusMs = 1000, kHistoryMs = 5000, kBehindMs = 50;
function number(value, digits) { return value === null || value === undefined ? "–" : value.toLocaleString(undefined,
  {maximumFractionDigits: digits}); }
function duration(s) { if (s === null || s === undefined) return "–"; s = Math.round(s);
  const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60, two = n => String(n).padStart(2, "0");
  return h > 0 ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`; }
function seconds(s) { return s === null || s === undefined ? "–" : s < 1 ? `${Math.round(s * 1000)} ms`
  : `${s.toFixed(s < 10 ? 2 : 1)} s`; }
function make(tag, name, text) { const e = document.createElement(tag); if (name) e.className = name;
  if (text !== undefined) e.textContent = text; return e; }
function rows(body, items, cells) {
  body.replaceChildren(...items.map(item => {
    const row = document.createElement("tr");
    for (const text of cells(item)) { const cell = document.createElement("td"); cell.textContent = text;
      row.append(cell); }
    return row;
  }));
}
function facts(pairs) {
  at("facts").replaceChildren(...pairs.map(([name, value]) => {
    const box = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = name; dd.textContent = value; box.append(dt, dd); return box;
  }));
}
function show(s) {
  document.title = `${s.job} · ${s.phase}`;
  at("job").textContent = s.job;
  at("phase").textContent = s.phase;
  at("phase").className = "badge " + ({Running: "good", Complete: "good", Failed: "bad", Recovering: "bad"}[s.phase]
    || "dim");
  at("note").textContent = s.restarts > 0 ? `${s.restarts} restart${s.restarts > 1 ? "s" : ""}` : "";
  at("elsewhere").hidden = s.node === 0;
  at("training-box").hidden = s.node > 0;
  at("elsewhere").textContent = `This is the page of node ${s.node}, about its own workers. The whole run, its curves, `
    + `recoveries and outputs, is on the page of node 0${s.coordinator ? `, whose coordinator is ${s.coordinator}` : ""}.`;
  const p = s.progress || {};
  at("bar").value = p.totalSteps > 0 ? p.step / p.totalSteps : 0;
  facts([
    ["Step", `${number(p.step, 0)} / ${number(p.totalSteps, 0)}`],
    ["Epoch", p.numEpochs > 0 ? `${Math.min(p.epoch + 1, p.numEpochs)} / ${p.numEpochs}` : "–"],
    ["Loss", number(p.loss, 4)], p.stepsPerSecond > 0 ? ["Steps per second", number(p.stepsPerSecond, 2)]
      : ["Samples per second", number(p.samplesPerSecond, 0)],
    ["Time left", duration(p.estimatedRemainingSeconds)],
    ["Waiting for data", p.dataWaitRatio === null || p.dataWaitRatio === undefined ? "–"
      : `${Math.round(p.dataWaitRatio * 100)} %`],
    ["Goodput", s.goodput ? `${(s.goodput.ratio * 100).toFixed(1)} %` : "–"],
    ["Last checkpoint", s.lastCheckpoint ? `step ${number(s.lastCheckpoint.step, 0)}` : "–"],
    ...Object.entries(s.metrics).map(([name, value]) => [name, number(value, 4)]),
  ]);
  if (p.stepsPerSecond > 0) at("no-figures").textContent = "No figures yet: this program has reported none "
    + "(run.log, lockstep.report).";
  rows(at("workers"), s.workers, w => [w.rank + (s.slowest && s.slowest.rank === w.rank
    ? ` (slowest: ${seconds(s.slowest.lagSeconds)} a step)` : ""), w.node, w.pid === null ? "–" : w.pid, w.state,
    number(w.step, 0), w.activity, w.phase, seconds(w.secondsUnchanged)]);
  at("nodes-box").hidden = s.nodes.length < 2;
  rows(at("nodes"), s.nodes, n => [n.node, n.host, n.attempt, n.state, n.ready ? "yes" : "no"]);
  at("recoveries-box").hidden = s.recoveries.length === 0;
  rows(at("recoveries"), [...s.recoveries].reverse(), r => [new Date(r.time * 1000).toLocaleTimeString(), r.cause,
    r.rank === null ? "–" : r.rank, seconds(r.detectionSeconds), seconds(r.respawnSeconds), seconds(r.formingSeconds),
    seconds(r.totalSeconds), number(r.redoneSteps, 0), number(r.step, 0)]);
  at("failures-box").hidden = s.recentFailures.length === 0;
  rows(at("failures"), [...s.recentFailures].reverse(), f => [new Date(f.time * 1000).toLocaleTimeString(), f.rank,
    f.exitCode, f.reason, number(f.step, 0), f.message]);
}

// ---- charts: the whole run, from /history ----

// Round numbers between low and high, about `count` of them.
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find(factor => factor * power >= raw * 0.999) * power, found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) found.push(i * step + 0);
  return found;
}
function figure(value) {
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e7) ? value.toExponential(2).replace("e+", "e")
    : value.toLocaleString(undefined, {maximumSignificantDigits: 5});
}
function drawn(parent, tag, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  if (text !== undefined) e.textContent = text;
  parent.append(e);
  return e;
}
function describe(mark) {
  const time = mark.time === null ? "" : `${new Date(mark.time * 1000).toLocaleString()}: `;
  return time + (mark.cause === null ? `started again, ${mark.origin}`
    : `${mark.cause}, going on at step ${number(mark.step, 0)} after ${seconds(mark.totalSeconds)}`);
}

// A curve over the steps. The pointer, or the arrow keys, choose a point whose step and value are shown.
class Chart {
  constructor(parent, title) {
    this.title = title;
    this.box = make("figure");
    const caption = make("figcaption");
    this.newest = make("span");
    caption.append(make("span", "dim", title), this.newest);
    const plot = make("div", "plot");
    this.svg = drawn(plot, "svg", {role: "img", tabindex: 0});
    this.tip = make("div", "tip");
    this.tip.hidden = true;
    plot.append(this.tip);
    this.box.append(caption, plot);
    parent.append(this.box);
    this.chosen = null;  // a step
    this.svg.addEventListener("pointermove", event => this.choose(this.stepAt(event)));
    this.svg.addEventListener("pointerleave", () => this.choose(null));
    this.svg.addEventListener("blur", () => this.choose(null));
    this.svg.addEventListener("keydown", event => {
      const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!move) return;
      event.preventDefault();
      const now = this.chosen === null ? this.points.length : this.nearest(this.chosen);
      this.choose(this.points[Math.min(Math.max(now + move, 0), this.points.length - 1)][0]);
    });
  }
  // points: [step, value]; marks: starts and recoveries; first, last: the steps that all charts span.
  show(points, marks, first, last) {
    Object.assign(this, {points, marks, first, last: Math.max(last, first + 1)});
    const [step, value] = points[points.length - 1];
    this.newest.textContent = figure(value);
    this.svg.setAttribute("aria-label", `${this.title}: ${figure(points[0][1])} at step ${points[0][0]}, `
      + `${figure(value)} at step ${step}`);
    this.draw();
  }
  draw() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    if (!width || !this.points) return;  // in a part of the page that is folded
    let low = Infinity, high = -Infinity;
    for (const [, value] of this.points) { low = Math.min(low, value); high = Math.max(high, value); }
    const air = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    low -= air; high += air;
    const values = ticks(low, high, Math.max(2, height / 32));
    const left = Math.max(38, 10 + 7 * Math.max(...values.map(value => figure(value).length)));  // for "step", too
    const right = width - 14;
    const top = 10, bottom = height - 22;
    this.x = step => left + (step - this.first) / (this.last - this.first) * (right - left);
    this.y = value => bottom - (value - low) / (high - low) * (bottom - top);
    this.step = x => this.first + (x - left) / (right - left) * (this.last - this.first);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    for (const value of values) {
      drawn(this.svg, "line", {class: "gridline", x1: left, x2: right, y1: this.y(value), y2: this.y(value)});
      drawn(this.svg, "text", {x: left - 6, y: this.y(value) + 4, "text-anchor": "end"}, figure(value));
    }
    drawn(this.svg, "text", {x: left - 6, y: height - 4, "text-anchor": "end"}, "step");
    const steps = ticks(this.first, this.last, Math.max(2, width / 110)).filter(Number.isInteger);
    for (const step of steps) {
      const isLast = this.x(step) > right - 30;
      drawn(this.svg, "line", {class: "gridline", x1: this.x(step), x2: this.x(step), y1: bottom, y2: bottom + 4});
      drawn(this.svg, "text", {x: isLast ? right + 10 : this.x(step), y: height - 4,
                               "text-anchor": isLast ? "end" : "middle"}, number(step, 0));
    }
    for (const mark of this.marks) {
      const x = this.x(mark.step);
      drawn(this.svg, "line", {class: mark.cause === null ? "start" : "recovery", x1: x, x2: x, y1: top, y2: bottom});
    }
    drawn(this.svg, "polyline", {class: "curve",
      points: this.points.map(([step, value]) => `${this.x(step).toFixed(1)},${this.y(value).toFixed(1)}`).join(" ")});
    if (this.points.length <= 50) {
      for (const [step, value] of this.points) {
        drawn(this.svg, "circle", {class: "dot", r: 2.5, cx: this.x(step), cy: this.y(value)});
      }
    }
    this.cursor = drawn(this.svg, "g", {});
    this.showChosen();
  }
  stepAt(event) { return this.step(event.clientX - this.svg.getBoundingClientRect().left); }
  nearest(step) {
    let low = 0, high = this.points.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.points[middle][0] < step) low = middle + 1; else high = middle;
    }
    return low > 0 && step - this.points[low - 1][0] < this.points[low][0] - step ? low - 1 : low;
  }
  choose(step) { this.chosen = step; this.showChosen(); }
  showChosen() {
    this.cursor.replaceChildren();
    this.tip.hidden = this.chosen === null;
    if (this.chosen === null) return;
    const [step, value] = this.points[this.nearest(this.chosen)], x = this.x(step), width = this.svg.clientWidth;
    drawn(this.cursor, "line", {class: "cursor", x1: x, x2: x, y1: 10, y2: this.svg.clientHeight - 22});
    drawn(this.cursor, "circle", {class: "dot", r: 4, cx: x, cy: this.y(value)});
    const pointed = this.x(this.chosen);
    const near = this.marks.filter(mark => Math.min(Math.abs(this.x(mark.step) - pointed),
                                                    Math.abs(this.x(mark.step) - x)) < 5);
    this.tip.replaceChildren(make("div", "", `step ${number(step, 0)}: ${figure(value)}`),
      ...near.slice(-5).map(mark => make("div", mark.cause === null ? "dim" : "bad", describe(mark))));
    this.tip.style.left = x < width / 2 ? `${x + 12}px` : "auto";
    this.tip.style.right = x < width / 2 ? "auto" : `${width - x + 12}px`;
  }
}

const charts = new Map();
const kTitles = {loss: "loss", lr: "learning rate", grad_norm: "gradient norm", samples_per_second: "samples per second",
  steps_per_second: "steps per second"};
const kFolded = ["lr", "grad_norm", "samples_per_second", "steps_per_second"];
function place(series) {
  if (series.evaluation || series.name.startsWith("eval_")) return "evaluations";  // as Hugging Face's Trainer names them
  return kFolded.includes(series.name) ? "rest" : "training";
}
function showHistory(history) {
  const series = history.series.filter(s => s.points.length > 0);
  const first = Math.min(...series.map(s => s.points[0][0]));
  const last = Math.max(...series.map(s => s.points[s.points.length - 1][0]));
  const marks = history.marks.filter(mark => mark.step >= first && mark.step <= last);
  for (const [id, chart] of charts) {
    if (!series.some(s => id === `${s.evaluation} ${s.name}`)) { chart.box.remove(); charts.delete(id); }
  }
  for (const s of series) {
    const id = `${s.evaluation} ${s.name}`;
    if (!charts.has(id)) charts.set(id, new Chart(at(place(s)), s.evaluation ? s.name : kTitles[s.name] || s.name));
    charts.get(id).show(s.points, marks, first, last);
  }
  at("no-figures").hidden = series.some(s => place(s) === "training");
  at("evaluations-box").hidden = !series.some(s => place(s) === "evaluations");
  at("rest-box").hidden = !series.some(s => place(s) === "rest");
  at("key-recovery").hidden = !marks.some(mark => mark.cause !== null);
  at("key-start").hidden = !marks.some(mark => mark.cause === null);
  at("key").hidden = marks.length === 0;
}
function remark(text) { at("remark").hidden = text === ""; at("remark").textContent = text; }

// ---- outputs: pictures and texts of the workload, from /outputs ----

const chosenSteps = new Map();  // by name; none: the newest
let shownOutputs = "";
function showOutputs(outputs) {
  const byName = new Map();  // the newest first
  for (const output of outputs) byName.set(output.name, [...byName.get(output.name) || [], output]);
  at("outputs-box").hidden = byName.size === 0;
  at("outputs").replaceChildren(...[...byName].map(([name, files]) => {
    const box = make("figure", "output"), caption = make("figcaption"), content = make("div");
    const select = make("select");
    select.setAttribute("aria-label", `step of ${name}`);
    select.append(...files.map(file => new Option(`step ${number(file.step, 0)}`, file.step)));
    const show = () => {
      const file = files.find(f => f.step === chosenSteps.get(name)) || files[0];
      select.value = file.step;
      showOutput(content, file);
    };
    select.addEventListener("change", () => {
      const step = Number(select.value);
      if (step === files[0].step) chosenSteps.delete(name); else chosenSteps.set(name, step);
      show();
    });
    show();
    caption.append(make("span", "", name), select);
    box.append(caption, content);
    return box;
  }));
}
async function showOutput(content, file) {
  if (/\.(png|svg)$/.test(file.name)) {
    const picture = make("img");
    picture.alt = `${file.name} of step ${file.step}`;
    picture.src = file.path;
    content.replaceChildren(picture);
    return;
  }
  const text = make("pre");
  content.replaceChildren(text);
  text.textContent = await (await fetch(file.path)).text();
}

// ---- what is asked for, and when ----

async function followRun() {
  let wait = kHistoryMs;
  try {
    const answer = document.hidden ? null : await fetch("history", {cache: "no-store"});
    if (answer && answer.status === 404) return;  // not node 0
    if (answer && !answer.ok) remark(await answer.text());
    if (answer && answer.ok) {
      const history = await answer.json();
      // While the file is read anew, the curves stay as they were.
      if (history.complete || charts.size === 0) showHistory(history);
      remark(!history.complete ? "Reading metrics.jsonl …" : history.badLines > 0
        ? `${number(history.badLines, 0)} lines of metrics.jsonl or recoveries.jsonl could not be read.` : "");
      if (!history.complete) wait = kBehindMs;
      const outputs = await (await fetch("outputs", {cache: "no-store"})).json();
      if (shownOutputs !== JSON.stringify(outputs)) showOutputs(outputs.outputs);
      shownOutputs = JSON.stringify(outputs);
    }
  } catch (error) {
    // Not reachable, which the badge says.
  }
  setTimeout(followRun, wait);
}
async function poll() {
  try {
    show(await (await fetch("status", {cache: "no-store"})).json());
  } catch (error) {
    at("phase").textContent = "not reachable"; at("phase").className = "badge dim";
  }
  setTimeout(poll, kStatusMs);
}
function redraw() { for (const chart of charts.values()) chart.draw(); }
addEventListener("resize", redraw);
document.querySelector("details").addEventListener("toggle", redraw);
poll();
followRun();
</script>
</body>
</html>
)html";

}  // namespace lockstep
