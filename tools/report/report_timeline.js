// SPDX-License-Identifier: Apache-2.0
// Part of the page that report_page.py writes: draws its charts, and the visible parts of the timelines.
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);
const charts = JSON.parse(document.getElementById('charts').textContent);
const config = {displayModeBar: false, doubleClick: 'reset'};

for (const [name, figure] of Object.entries(charts)) Plotly.newPlot(name, figure.data, figure.layout, config);

// ---- timelines -----------------------------------------------------------------------------------------------------

const looks = [
  {name: 'forward', color: '#7fb2e5'},
  {name: 'backward', color: '#2f6fb0'},
  {name: 'update, loss', color: '#1d3f66'},
  {name: 'communication', color: '#e08a1e'},
  {name: 'waiting for another rank', color: '#b9467a'},
  {name: 'other', color: '#eef0f3'},
];
const kWaiting = 4, kOther = 5;

function lookOf(timeline, i) {
  if (timeline.kind[i] === 1) return 3;
  if (timeline.kind[i] === 2) return kOther;
  const name = timeline.names[timeline.name[i]];
  return name.startsWith('forward') ? 0 : name.startsWith('backward') ? 1 : 2;
}

// The unit that fits the length of a step, in microseconds.
function unitOf(step) {
  return step < 2e3 ? {name: 'µs', size: 1} : step < 2e6 ? {name: 'ms', size: 1e3} : {name: 's', size: 1e6};
}

// The pieces between two times. Pieces that are too narrow to see are joined with neighbors of the same look.
function pieces(timeline, unit, from, to) {
  const traces = looks.map(() => ({base: [], x: [], y: [], width: [], text: [], hovertext: []}));
  const narrow = (to - from) / 1000, open = {};
  const add = (look, i, begin, duration) => {
    if (begin + duration < from || begin > to) return;
    const trace = traces[look], key = [look, timeline.lane[i], timeline.depth[i] > 0].join(), last = open[key];
    if (duration < narrow && last && begin - last.end < narrow) {
      last.end = Math.max(last.end, begin + duration);
      ++last.count;
      trace.x[last.at] = (last.end - last.begin) / unit.size;
      trace.text[last.at] = '';
      trace.hovertext[last.at] = `${last.count} pieces in ${((last.end - last.begin) / unit.size).toPrecision(4)} ${unit.name}`;
      return;
    }
    if (duration < narrow) open[key] = {begin, end: begin + duration, count: 1, at: trace.x.length};
    const name = timeline.names[timeline.name[i]], calls = timeline.texts[timeline.calls[i]];
    const waits = timeline.waits_for[i] < 0 ? '' :
        `<br>waits ${(timeline.wait[i] / unit.size).toPrecision(4)} ${unit.name} for rank ${timeline.waits_for[i]}`;
    trace.base.push((begin - timeline.view[0]) / unit.size);
    trace.x.push(duration / unit.size);
    // A computation inside another, such as a layer in a micro-batch, is a strip at the bottom.
    const strip = timeline.kind[i] === 0 && timeline.depth[i] > 0;
    trace.y.push(timeline.lane[i] + (strip ? 0.36 : 0));
    trace.width.push(strip ? 0.12 : timeline.depth[i] > 0 ? 0.6 : 0.84);
    trace.text.push(strip || look === kWaiting || look === kOther ? '' :
                    name.replace(/^(forward|backward)( of)? |nccl/g, ''));
    trace.hovertext.push(`${name}: ${(timeline.duration[i] / unit.size).toPrecision(4)} ${unit.name}${waits}` +
                         (calls ? '<br>' + calls.replaceAll('; ', '<br>') : ''));
  };
  for (let i = 0; i < timeline.lane.length; ++i) {
    const wait = timeline.wait[i], begin = timeline.begin[i], duration = timeline.duration[i];
    if (wait > 0) add(kWaiting, i, begin, wait);
    if (wait < duration || wait === 0) add(lookOf(timeline, i), i, begin + wait, duration - wait);
  }
  return [kOther, 0, 1, 2, 3, kWaiting].map(look => ({
    type: 'bar', orientation: 'h', name: looks[look].name, marker: {color: looks[look].color, line: {color: 'white', width: 0.5}}, textposition: 'inside',
    insidetextanchor: 'middle', hoverinfo: 'text', textangle: 0,
    visible: traces[look].x.length > 0 || look < kOther ? true : 'legendonly', ...traces[look]}));
}

function drawTimeline(name, timeline, length) {
  const unit = unitOf(length), div = document.getElementById(name);
  const whole = () => {
    let last = 0;
    for (let i = 0; i < timeline.lane.length; ++i) last = Math.max(last, timeline.begin[i] + timeline.duration[i]);
    return [(timeline.begin.reduce((a, b) => Math.min(a, b)) - timeline.view[0]) / unit.size,
            (last - timeline.view[0]) / unit.size];
  };
  const lanes = timeline.lanes.map((_, i) => i);
  const layout = {
    template: charts[Object.keys(charts)[0]]?.layout.template, width: 1160, height: div.clientHeight, barmode: 'overlay',
    margin: {l: 130, r: 20, t: 30, b: 45}, font: {family: 'system-ui, sans-serif', size: 13},
    legend: {orientation: 'h', x: 0, y: 1, yanchor: 'bottom', traceorder: 'normal'}, hovermode: 'closest',
    uniformtext: {mode: 'hide', minsize: 9}, hoverlabel: {align: 'left'},
    xaxis: {range: [0, length / unit.size], title: {text: `${unit.name} since the step began`}},
    yaxis: {range: [lanes.length - 0.5, -0.5], fixedrange: true, tickvals: lanes, showgrid: false, zeroline: false,
            ticktext: timeline.lanes.map(lane => `rank ${lane.rank} · stream ${lane.stream}`)},
  };
  // Draws half a width more on each side, to show while the user drags the chart.
  const traces = () => {
    const [from, to] = div.layout ? div.layout.xaxis.range.map(Number) : layout.xaxis.range, half = (to - from) / 2;
    return pieces(timeline, unit, timeline.view[0] + (from - half) * unit.size, timeline.view[0] + (to + half) * unit.size);
  };
  Plotly.newPlot(div, traces(), layout, config);
  div.on('plotly_relayout', changed => {
    if (Object.keys(changed).some(key => key.startsWith('xaxis'))) Plotly.react(div, traces(), div.layout, config);
  });
  for (const button of document.querySelectorAll(`button[data-chart=${name}]`)) {
    button.onclick = () => Plotly.relayout(
        div, {'xaxis.range': button.dataset.view === 'run' ? whole() : [0, length / unit.size]});
  }
}

// All timelines have the same scale, so that steps can be compared.
const drawn = data.runs.map((run, i) => [`timeline-${i}`, run.timeline]).filter(([name]) => document.getElementById(name));
const longest = Math.max(0, ...drawn.map(([, timeline]) => timeline.view[1] - timeline.view[0]));
for (const [name, timeline] of drawn) drawTimeline(name, timeline, longest);
document.body.dataset.drawn = document.querySelectorAll('.chart.js-plotly-plot').length;
