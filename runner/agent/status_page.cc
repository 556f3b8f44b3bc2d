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
body { margin: 0 auto; padding: 2rem 1rem; max-width: 60rem; background: var(--paper); color: var(--ink);
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
svg { width: 100%; height: 9rem; } polyline { fill: none; stroke: var(--accent); stroke-width: 1.5;
       vector-effect: non-scaling-stroke; }
</style>
</head>
<body>
<header><h1 id="job">Lockstep</h1><span id="phase" class="badge dim">…</span><span id="note" class="dim"></span></header>
<section><h2>Progress</h2><progress id="bar" max="1" value="0"></progress><dl id="facts"></dl></section>
<section><h2>Loss since this page was opened</h2><svg viewBox="0 0 100 100" preserveAspectRatio="none">
<polyline id="curve" points=""></polyline></svg></section>
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
const points = [];
const kPointsMax = 2000;
function number(value, digits) { return value === null || value === undefined ? "–" : value.toLocaleString(undefined,
  {maximumFractionDigits: digits}); }
function duration(s) { if (s === null || s === undefined) return "–"; s = Math.round(s);
  const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60, two = n => String(n).padStart(2, "0");
  return h > 0 ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`; }
function seconds(s) { return s === null || s === undefined ? "–" : s < 1 ? `${Math.round(s * 1000)} ms`
  : `${s.toFixed(s < 10 ? 2 : 1)} s`; }
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
function curve(progress) {
  if (!progress || progress.loss === null) return;
  const last = points[points.length - 1];
  if (!last || last.step !== progress.step) points.push({step: progress.step, loss: progress.loss});
  if (points.length > kPointsMax) points.shift();
  const x0 = points[0].step, x1 = Math.max(points[points.length - 1].step, x0 + 1);
  const losses = points.map(p => p.loss), y0 = Math.min(...losses), y1 = Math.max(...losses);
  at("curve").setAttribute("points", points.map(p => `${(p.step - x0) / (x1 - x0) * 100},` +
    `${y1 > y0 ? 95 - (p.loss - y0) / (y1 - y0) * 90 : 50}`).join(" "));
}
function show(s) {
  document.title = `${s.job} · ${s.phase}`;
  at("job").textContent = s.job;
  at("phase").textContent = s.phase;
  at("phase").className = "badge " + ({Running: "good", Complete: "good", Failed: "bad", Recovering: "bad"}[s.phase]
    || "dim");
  at("note").textContent = s.restarts > 0 ? `${s.restarts} restart${s.restarts > 1 ? "s" : ""}` : "";
  const p = s.progress || {};
  at("bar").value = p.totalSteps > 0 ? p.step / p.totalSteps : 0;
  facts([
    ["Step", `${number(p.step, 0)} / ${number(p.totalSteps, 0)}`],
    ["Epoch", p.numEpochs > 0 ? `${Math.min(p.epoch + 1, p.numEpochs)} / ${p.numEpochs}` : "–"],
    ["Loss", number(p.loss, 4)], ["Samples per second", number(p.samplesPerSecond, 0)],
    ["Time left", duration(p.estimatedRemainingSeconds)],
    ["Waiting for data", p.dataWaitRatio === null || p.dataWaitRatio === undefined ? "–"
      : `${Math.round(p.dataWaitRatio * 100)} %`],
    ["Goodput", s.goodput ? `${(s.goodput.ratio * 100).toFixed(1)} %` : "–"],
    ["Last checkpoint", s.lastCheckpoint ? `step ${number(s.lastCheckpoint.step, 0)}` : "–"],
    ...Object.entries(s.metrics).map(([name, value]) => [name, number(value, 4)]),
  ]);
  curve(s.progress);
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
async function poll() {
  try {
    show(await (await fetch("status", {cache: "no-store"})).json());
  } catch (error) {
    at("phase").textContent = "not reachable"; at("phase").className = "badge dim";
  }
  setTimeout(poll, 1000);
}
poll();
</script>
</body>
</html>
)html";

}  // namespace lockstep
