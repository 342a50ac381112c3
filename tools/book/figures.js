// SPDX-License-Identifier: Apache-2.0
// The interactive figures of the book. <div data-figure="NAME"></div> on a page becomes figure NAME of FIGURES: its
// controls, a drawing, and a sentence that says what is drawn. models.js computes what they show.
"use strict";

// ---- elements ------------------------------------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const ofSvg = ["svg", "rect", "text"].includes(name);
  const made = ofSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Adds the controls to the figure, and calls draw(values, figure) now and after each change. `controls` is a list of
// [name, label, values]: a slider, or a list to choose from if the values are no numbers. The first control is
// `chosen[name]`, or the first value.
function interactive(figure, controls, chosen, draw) {
  const panel = element("div", { class: "controls" });
  const picture = element("div", { class: "picture" });
  const said = element("output", { "aria-live": "polite" });
  figure.replaceChildren(panel, picture, said);
  const values = {};
  const redraw = () => {
    const drawn = draw(values);
    picture.replaceChildren(drawn.picture);
    said.replaceChildren(drawn.text);
  };
  for (const [name, label, of] of controls) {
    const at = Math.max(0, of.indexOf(chosen[name]));
    values[name] = of[at];
    if (typeof of[0] !== "number") {
      const list = element("select", {}, ...of.map((value) => element("option", { value }, value)));
      list.selectedIndex = at;
      list.addEventListener("change", () => {
        values[name] = of[list.selectedIndex];
        redraw();
      });
      panel.append(element("label", {}, label, list));
      continue;
    }
    const shown = element("b", {}, String(of[at]));
    const slider = element("input", { type: "range", min: 0, max: of.length - 1, value: at });
    const change = () => {
      values[name] = of[slider.value];
      shown.textContent = values[name];
      slider.setAttribute("aria-valuetext", values[name]);
      redraw();
    };
    slider.setAttribute("aria-valuetext", of[at]);
    slider.addEventListener("input", change);
    panel.append(element("label", {}, element("span", {}, label, " ", shown), slider));
  }
  redraw();
}

const numbers = (from, to) => range(from, to + 1);
const powersOfTwo = (to) => range(0, Math.log2(to) + 1).map((i) => 2 ** i);
const percent = (share) => (100 * share).toFixed(1) + " %";

function size(bytes) {
  for (const [unit, of] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6]]) {
    if (bytes >= of) return (bytes / of).toPrecision(3).replace(/e\+\d+$/, "") + " " + unit;
  }
  return Math.round(bytes / 1e3) + " kB";
}

// ---- the ring ------------------------------------------------------------------------------------------------------

// A column for each rank, a row for each chunk.
function drawRing({ P, step }) {
  const steps = ringAllReduce(P), last = steps.length;
  const now = Math.min(step, last), { reduces, sent, parts } = now > 0 ? steps[now - 1] : { sent: [] };
  const rows = range(0, P).map((chunk) => {
    const cells = range(0, P).map((rank) => {
      const ranks = now > 0 ? parts[rank][chunk] : [rank];
      const arrived = sent[(rank - 1 + P) % P] === chunk;
      const kind = [ranks.length === P ? "whole" : "", arrived ? "arrived" : ""].join(" ");
      return element("td", { class: kind }, (arrived ? "→ " : "") + ranks.join("+"));
    });
    return element("tr", {}, element("th", { scope: "row" }, `chunk ${chunk}`), ...cells);
  });
  const head = range(0, P).map((rank) => element("th", { scope: "col" }, `rank ${rank}`));
  const picture = element("table", { class: "ring" }, element("tr", {}, element("td"), ...head), ...rows);
  const text =
    now === 0
      ? "Before the first step, each rank has its own values in all chunks."
      : `Step ${now} of ${last}, ${reduces ? "reduce-scatter" : "all-gather"}: rank 0 sends chunk ${sent[0]} to rank 1, ` +
        `which ${reduces ? "adds it to its own" : "keeps it"}. ` +
        (now === P - 1 ? "Each rank now has one whole chunk. " : now === last ? "All ranks have all sums. " : "") +
        `Each rank has sent ${now} chunk${now > 1 ? "s" : ""}: ${(now / P).toPrecision(3)} times the size of its values.`;
  return { picture, text };
}

// ---- schedules -----------------------------------------------------------------------------------------------------

const KINDS = { [FORWARD]: "forward", [BACKWARD]: "backward", [WEIGHTS]: "weights" };

function drawSchedule({ name, stages, M }) {
  const impossible = SCHEDULES[name].possible(stages, M);
  if (impossible) return { picture: "", text: `${name}: ${impossible}.` };
  const { slots, length, busy, inFlight } = simulate(name, stages, M);
  const wide = 26, high = 24, left = 62;
  const picture = element("svg", { width: left + length * wide, height: stages * high, role: "img" });
  for (let stage = 0; stage < stages; ++stage) {
    picture.append(element("text", { x: 0, y: stage * high + 16, class: "name" }, `stage ${stage}`));
  }
  for (const { stage, begin, kind, batch, chunk } of slots) {
    const x = left + begin * wide, y = stage * high;
    const what = { class: `${KINDS[kind]} chunk${chunk}`, x, y, width: wide - 1, height: high - 2 };
    picture.append(
      element("rect", what),
      element("text", { x: x + wide / 2 - 0.5, y: y + 15, class: "batch" }, String(batch)),
    );
  }
  const more = SCHEDULES[name].chunks > 1 ? ", each in two chunks (the second one is darker)" : "";
  const held = new Set(inFlight).size > 1 ? inFlight.join(", ") : `${inFlight[0]} each`;
  const text =
    `${name}: ${length} slots, in ${busy} of which a stage computes: it idles ${percent(1 - busy / length)} of the ` +
    `time. Forwards that the stages hold at most${more}: ${held}.`;
  picture.setAttribute("aria-label", text);
  return { picture, text };
}

// ---- memory --------------------------------------------------------------------------------------------------------

const PARTS = ["parameters", "gradients", "optimizer", "activations", "buckets"];

// A bar for each of `rows`, [name, bytes by part]. A bar that is longer than `limit` ends with an exclamation mark.
function bars(rows, limit) {
  const sum = (of) => PARTS.reduce((all, part) => all + (of[part] || 0), 0);
  const longest = Math.max(limit || 0, ...rows.map(([, of]) => sum(of)));
  return element(
    "div",
    { class: "bars" },
    ...rows.map(([name, of]) => {
      const pieces = PARTS.filter((part) => of[part] > 0).map((part) =>
        element("i", {
          class: part,
          style: `width: ${(100 * of[part]) / longest}%`,
          title: `${part}: ${size(of[part])}`,
        }),
      );
      const list = PARTS.filter((part) => part in of).map((part) =>
        element("span", {}, element("i", { class: part }), ` ${part} ${size(of[part])} `),
      );
      const total = element("b", {}, size(sum(of)) + (limit && sum(of) > limit ? " !" : ""));
      return element(
        "div",
        { class: "row" },
        element("div", {}, name, ": ", total),
        element("div", { class: "bar", "aria-hidden": "true" }, ...pieces),
        element("small", {}, ...list),
      );
    }),
  );
}

function drawZero({ billions, ranks, precision }) {
  const parameters = billions * 1e9, mixed = precision === "mixed";
  const rows = [0, 1, 2, 3].map((stage) => [
    stage === 0 ? "data parallelism" : `ZeRO stage ${stage}`,
    modelStates(parameters, ranks, stage, mixed),
  ]);
  const each = mixed ? "2 + 2 + 12" : "4 + 4 + 8";
  return {
    picture: bars(rows),
    text:
      `Bytes on each of ${ranks} ranks: ${each} for each of ${billions} billion parameters, where the last number is ` +
      "AdamW's" + (mixed ? " with the fp32 copy. " : ". ") +
      "Stage 1 shards the optimizer's, stage 2 the gradients, too, and stage 3 also the parameters.",
  };
}

const MODELS = {
  "GPT-2, 0.12 billion": { blocks: 12, width: 768, heads: 12, context: 1024, vocabulary: 50304 },
  "7 billion": { blocks: 32, width: 4096, heads: 32, context: 4096, vocabulary: 32000 },
  "30 billion": { blocks: 48, width: 7168, heads: 56, context: 2048, vocabulary: 50304 },
  "175 billion": { blocks: 96, width: 12288, heads: 96, context: 2048, vocabulary: 51200 },
};

function drawMesh(chosen) {
  const model = { ...MODELS[chosen.model], blockwise: chosen.attention === "in blocks" };
  const mesh = { ...chosen, recompute: chosen.recompute === "blocks" };
  const gpus = mesh.dp * mesh.pp * mesh.tp;
  const impossible =
    mesh.pp > model.blocks ? `the model has only ${model.blocks} blocks`
    : model.heads % mesh.tp !== 0 ? `the ${model.heads} heads cannot be divided over ${mesh.tp} tensor ranks`
    : "";
  if (impossible) return { picture: "", text: `Not possible: ${impossible}.` };
  const stages = meshMemory(model, mesh);
  const fullest = Math.max(...stages.map((of) => PARTS.reduce((sum, part) => sum + of[part], 0)));
  const rows = stages.map((of, stage) => [mesh.pp > 1 ? `stage ${stage}` : "each GPU", of]);
  return {
    picture: bars(rows, 80e9),
    text:
      `${gpus} GPUs, ${(gptParameters(model) / 1e9).toPrecision(3)} billion parameters, ` +
      `${mesh.dp * mesh.samples * mesh.microBatches} sequences of ${model.context} tokens a step. The fullest GPU holds ` +
      `${size(fullest)}: ${fullest <= 80e9 ? "it fits" : "too much"} on a GPU with 80 GB.`,
  };
}

// ---- all of them ---------------------------------------------------------------------------------------------------

const FIGURES = {
  ring: (figure) =>
    interactive(figure, [["P", "ranks", numbers(2, 8)], ["step", "step", numbers(0, 14)]], { P: 4 }, drawRing),
  pipeline: (figure) =>
    interactive(
      figure,
      [
        ["name", "schedule", Object.keys(SCHEDULES)],
        ["stages", "stages", numbers(2, 8)],
        ["M", "micro-batches", numbers(1, 32)],
      ],
      { name: "1f1b", stages: 4, M: 8 },
      drawSchedule,
    ),
  zero: (figure) =>
    interactive(
      figure,
      [
        ["billions", "billions of parameters", [0.1, 0.5, 1, 3, 7, 13, 30, 70, 175, 400, 1000]],
        ["ranks", "data-parallel ranks", powersOfTwo(1024)],
        ["precision", "precision", ["mixed", "fp32"]],
      ],
      { billions: 7, ranks: 8 },
      drawZero,
    ),
  mesh: (figure) =>
    interactive(
      figure,
      [
        ["model", "model", Object.keys(MODELS)],
        ["dp", "data", powersOfTwo(256)],
        ["pp", "pipeline", powersOfTwo(16)],
        ["tp", "tensor", powersOfTwo(8)],
        ["zero", "stage of ZeRO", numbers(0, 3)],
        ["samples", "sequences in a micro-batch", powersOfTwo(16)],
        ["microBatches", "micro-batches", powersOfTwo(64)],
        ["attention", "attention", ["in blocks", "whole"]],
        ["recompute", "computed again", ["nothing", "blocks"]],
      ],
      { model: "7 billion", dp: 4, pp: 1, tp: 2, zero: 1, samples: 1, microBatches: 8 },
      drawMesh,
    ),
};

document.addEventListener("DOMContentLoaded", () => {
  for (const figure of document.querySelectorAll("[data-figure]")) FIGURES[figure.dataset.figure](figure);
});
