// SPDX-License-Identifier: Apache-2.0
// What the interactive figures of the book show, computed as the programs compute it. tests/python/test_book_figures.py
// runs these functions and the programs side by side.
"use strict";

// ---- chapter 00: the ring ------------------------------------------------------------------------------------------

// Returns what happens in each of the 2(P-1) steps of a ring all-reduce on P ranks, from step 0 on: `sent`, the chunk
// that each rank sends to the next rank, and `parts`, the ranks whose values are in each chunk of each rank afterwards,
// parts[rank][chunk], in ascending order. The first P-1 steps are the reduce-scatter, the others the all-gather.
function ringAllReduce(P) {
  let parts = Array.from({ length: P }, (_, rank) => Array.from({ length: P }, () => [rank]));
  const steps = [];
  for (let step = 0; step < 2 * (P - 1); ++step) {
    const reduces = step < P - 1, ago = reduces ? step : step - P;
    const sent = Array.from({ length: P }, (_, rank) => (rank - ago + 2 * P) % P);
    const before = parts;
    parts = before.map((chunks) => chunks.map((ranks) => ranks));
    for (let from = 0; from < P; ++from) {
      const to = (from + 1) % P, chunk = sent[from], arrives = before[from][chunk];
      parts[to][chunk] = reduces ? [...before[to][chunk], ...arrives].sort((a, b) => a - b) : arrives;
    }
    steps.push({ reduces, sent, parts });
  }
  return steps;
}

// ---- chapter 04: schedules -----------------------------------------------------------------------------------------

// Computations are [kind, micro-batch, chunk], where kind is one of these letters.
const FORWARD = "F", BACKWARD = "B", WEIGHTS = "W";

const SCHEDULES = {
  gpipe: { chunks: 1, order: gpipe, possible: () => "" },
  "1f1b": { chunks: 1, order: oneFOneB, possible: () => "" },
  interleaved: {
    chunks: 2,
    order: interleaved,
    possible: (stages, M) => (M % stages === 0 ? "" : "the micro-batches must be a multiple of the stages"),
  },
  "zb-h1": { chunks: 1, order: zbH1, possible: () => "" },
  "zb-v": {
    chunks: 2,
    inV: true,
    order: zbV,
    possible: (stages, M) => (M >= 2 * stages ? "" : "there must be at least twice as many micro-batches as stages"),
  },
};

function range(begin, end) {
  return Array.from({ length: Math.max(0, end - begin) }, (_, i) => begin + i);
}

// All of them return what `stage` computes, in this order.
function gpipe(stages, M) {
  return [...range(0, M).map((m) => [FORWARD, m, 0]), ...range(0, M).reverse().map((m) => [BACKWARD, m, 0])];
}

// A number of forwards first, then forwards and backwards in turns, then the backwards that are left.
function alternate(forwards, backwards, warmUp) {
  const order = forwards.slice(0, warmUp);
  for (let n = warmUp; n < forwards.length; ++n) order.push(forwards[n], backwards[n - warmUp]);
  return order.concat(backwards.slice(forwards.length - warmUp));
}

function oneFOneB(stages, M, stage) {
  const all = (kind) => range(0, M).map((m) => [kind, m, 0]);
  return alternate(all(FORWARD), all(BACKWARD), Math.min(M, stages - 1 - stage));
}

function interleaved(stages, M, stage) {
  const chunks = 2, total = M * chunks;
  const chunk = (n) => Math.floor(n / stages) % chunks;
  const batch = (n) => Math.floor(n / (stages * chunks)) * stages + (n % stages);
  const forwards = range(0, total).map((n) => [FORWARD, batch(n), chunk(n)]);
  const backwards = range(0, total).map((n) => [BACKWARD, batch(n), chunks - 1 - chunk(n)]);
  return alternate(forwards, backwards, Math.min(total, (chunks - 1) * stages + 2 * (stages - 1 - stage)));
}

// 1F1B; the weights of a micro-batch follow the backward that comes `stage` later.
function zbH1(stages, M, stage) {
  const order = [];
  for (const computation of oneFOneB(stages, M, stage)) {
    order.push(computation);
    const due = computation[1] - stage;
    if (computation[0] === BACKWARD && due >= 0) order.push([WEIGHTS, due, 0]);
  }
  return order.concat(range(Math.max(0, M - stage), M).map((m) => [WEIGHTS, m, 0]));
}

function zbV(stages, M, stage) {
  const order = [], left = [], forwards = [0, 0], backwards = [0, 0], behind = stages - 1 - stage;
  const forward = (chunk) => order.push([FORWARD, forwards[chunk]++, chunk]);
  const backward = (chunk, putOff) => {
    const m = backwards[chunk]++;
    order.push([BACKWARD, m, chunk]);
    left.push([WEIGHTS, m, chunk]);
    if (left.length > putOff) order.push(left.shift());
  };
  for (let n = 0; n < 2 * behind; ++n) forward(0);
  for (let n = 0; n <= stage; ++n) {
    forward(0);
    forward(1);
  }
  for (let n = 0; n < behind; ++n) {
    backward(1, 0);
    forward(1);
  }
  while (forwards[1] < M) {
    backward(1, 0);
    if (forwards[0] < M) forward(0);
    backward(0, 0);
    forward(1);
  }
  while (backwards[0] < M) {
    if (backwards[1] < M) backward(1, stage);
    backward(0, stage);
  }
  return order.concat(left);
}

// Returns what each stage computes and when, in slots: `slots`, a list of {stage, begin, kind, batch, chunk}; `length`,
// how many slots the whole schedule takes; `busy`, in how many of them a stage computes; `inFlight`, how many forwards
// a stage holds at most for the backwards, or for the weights if these are computed by themselves. A computation begins
// when the one before it on this stage is done, and its input has been computed on the stage next to it.
function simulate(name, stages, M) {
  const { chunks, inV, order } = SCHEDULES[name];
  const parts = stages * chunks;
  const partOf = (stage, chunk) => (inV && chunk === 1 ? parts - 1 - stage : chunk * stages + stage);
  const lists = range(0, stages).map((stage) => order(stages, M, stage));
  const next = lists.map(() => 0), free = lists.map(() => 0), slots = [];
  const done = new Map();  // when each computation was done, by kind, micro-batch and part
  const inputOf = ([kind, m], part) => {
    if (kind === FORWARD) return part === 0 ? null : [FORWARD, m, part - 1];
    if (kind === WEIGHTS) return [BACKWARD, m, part];
    return part === parts - 1 ? [FORWARD, m, part] : [BACKWARD, m, part + 1];
  };
  for (let progress = true; progress; ) {
    progress = false;
    for (let stage = 0; stage < stages; ++stage) {
      for (; next[stage] < lists[stage].length; ++next[stage], progress = true) {
        const [kind, batch, chunk] = lists[stage][next[stage]];
        const part = partOf(stage, chunk), input = inputOf([kind, batch], part);
        if (input !== null && !done.has(String(input))) break;
        const begin = Math.max(free[stage], input === null ? 0 : done.get(String(input)));
        slots.push({ stage, begin, kind, batch, chunk });
        free[stage] = begin + 1;
        done.set(String([kind, batch, part]), begin + 1);
      }
    }
  }
  const splits = lists[0].some(([kind]) => kind === WEIGHTS);
  const inFlight = lists.map((list) => {
    let now = 0, most = 0;
    for (const [kind] of list) {
      now += kind === FORWARD ? 1 : kind === (splits ? WEIGHTS : BACKWARD) ? -1 : 0;
      most = Math.max(most, now);
    }
    return most;
  });
  return { slots, length: Math.max(...free), busy: lists[0].length, inFlight };
}

// ---- chapters 06 and 07: memory ------------------------------------------------------------------------------------

// Returns the bytes of {parameters, gradients, optimizer} on each of `ranks` data-parallel ranks, with ZeRO's `stage`
// and AdamW. In mixed precision, parameters and gradients take 2 bytes, and the optimizer keeps an fp32 copy.
function modelStates(parameters, ranks, stage, mixed) {
  const bytes = mixed ? 2 : 4;
  return {
    parameters: (bytes * parameters) / (stage >= 3 ? ranks : 1),
    gradients: (bytes * parameters) / (stage >= 2 ? ranks : 1),
    optimizer: ((mixed ? 12 : 8) * parameters) / (stage >= 1 ? ranks : 1),
  };
}

// Returns the number of parameters of a language model.
function gptParameters(model) {
  return model.blocks * blockParameters(model, 1) + embeddingParameters(model, 1) + headParameters(model, 1);
}
function blockParameters({ width: E }, tp) {
  return (4 * E * E + 3 * E) / tp + 5 * E + (8 * E * E + 4 * E) / tp + E;
}
function embeddingParameters({ width: E, vocabulary, context }, tp) {
  return (vocabulary / tp + context) * E;
}
function headParameters({ width: E, vocabulary }, tp) {
  return (vocabulary / tp) * E + 2 * E;
}

// Returns the bytes of {parameters, gradients, optimizer, activations, buckets} on a GPU of each stage. `model` has
// blocks, width, heads, context, vocabulary and blockwise (attention in blocks of keys); `mesh` has dp, pp, tp, zero,
// samples (sequences of a micro-batch), microBatches (of a replica) and recompute. Mixed precision, AdamW, 1F1B,
// sequence parallelism, and stage 3 of ZeRO with prefetch, as in `plan --model gpt`.
function meshMemory(model, mesh) {
  const { blocks, width: E, heads: H, context: T, vocabulary: V } = model;
  const { dp, pp, tp, zero, recompute, samples } = mesh, bytes = 2;
  const block = (T * ((10 * E) / tp + (8 * E + (model.blockwise ? 4 : 5 * T) * H + 16 * E) / tp)) / bytes;
  const head = (T * ((bytes * E) / tp + (4 * V) / tp)) / bytes;
  const stream = (T * E) / tp;
  return range(0, pp).map((stage) => {
    const isFirst = stage === 0, isLast = stage === pp - 1;
    const count = Math.floor(blocks / pp) + (stage < blocks % pp ? 1 : 0);
    const units = [
      [count, blockParameters(model, tp)],
      [isFirst ? 1 : 0, embeddingParameters(model, tp)],
      [isLast ? 1 : 0, headParameters(model, tp)],
    ];
    const parameters = units.reduce((sum, [number, size]) => sum + number * size, 0);
    const largest = Math.max(...units.map(([number, size]) => (number > 0 ? size : 0)));
    const kept = count * (recompute ? stream : block) + (isFirst ? stream : 0) + (isLast ? head : 0);
    const scores = model.blockwise ? 0 : (H * T) / tp;
    const widest = T * Math.max((4 * E) / tp, E + scores, isLast ? V / tp : 0);
    const ahead = Math.min(mesh.microBatches, pp - stage);
    const inputs = isFirst ? 0 : Math.min(mesh.microBatches, ahead + 1);
    const messages = (isLast ? 0 : stream) + (isFirst ? 0 : 2 * stream);
    const gathered = largest * [0, 0, 1, 4][zero];
    return {
      ...modelStates(parameters, dp, zero, true),
      activations: bytes * samples * (ahead * kept + (recompute ? block : 0) + inputs * stream + 2 * widest),
      buckets: bytes * (samples * messages + gathered),
    };
  });
}
