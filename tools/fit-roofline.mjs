// Fits the constants of src/mocker/timing/calibration.ts to open measurements and judges them on what was not fitted.
//   node tools/fit-roofline.mjs PATH/splitwise_perf_model.csv        (after npm run build)
// Fit: Llama-2-70B, every other shape of the work. Judge: its other shapes, and BLOOM-176B completely.
import { readFileSync } from "node:fs";
import { fittedCalibrations } from "../dist/mocker/timing/calibration.js";
import { gpus } from "../dist/mocker/timing/gpus.js";
import { modelShapeFromConfig } from "../dist/mocker/timing/model-shape.js";
import { rooflineTiming } from "../dist/mocker/timing/roofline.js";
import { emptyPass } from "../dist/mocker/timing/timing.js";

const path = process.argv[2];
if (path === undefined) {
  console.error("usage: node tools/fit-roofline.mjs PATH/splitwise_perf_model.csv (SplitwiseSim, data/perf_model.csv)");
  process.exit(1);
}

const models = {
  "llama2-70b": modelShapeFromConfig({
    model_type: "llama",
    num_hidden_layers: 80,
    hidden_size: 8192,
    num_attention_heads: 64,
    num_key_value_heads: 8,
    intermediate_size: 28672,
    vocab_size: 32000,
  }),
  "bloom-176b": modelShapeFromConfig({
    model_type: "bloom",
    n_layer: 70,
    hidden_size: 14336,
    n_head: 112,
    vocab_size: 250880,
  }),
};
const hardware = { "a100-80gb": "a100_sxm", "h100-80gb": "h100_sxm" }; // rows with a power cap are left out

const rows = readRows(path);
const shapes = [...new Set(rows.map((row) => row.shape))].sort();
const isFitted = (row) => row.model === "llama2-70b" && shapes.indexOf(row.shape) % 2 === 0;
const fitted = {};
for (const gpu of Object.values(hardware)) {
  fitted[gpu] = fitTo(rows.filter((row) => row.gpu === gpu && isFitted(row)));
  console.log(gpu, fitted[gpu]);
}
console.log("\nin the code:", fittedCalibrations);
console.log("\nmean absolute error in %, and mean signed error, of prefill and decode:");
console.log("| rows | GPU | tensor parallel | prefill | decode |\n|---|---|---|---|---|");
for (const [name, belongs] of [
  ["Llama-2-70B, fitted shapes", isFitted],
  ["Llama-2-70B, other shapes", (row) => row.model === "llama2-70b" && !isFitted(row)],
  ["BLOOM-176B", (row) => row.model === "bloom-176b"],
]) {
  for (const gpu of Object.values(hardware)) {
    for (const parallel of [2, 4, 8]) {
      const part = rows.filter((row) => belongs(row) && row.gpu === gpu && row.parallel === parallel);
      if (part.length === 0) continue;
      const cells = ["prefill", "decode"].map((phase) => {
        const errors = part.map((row) => predict(row, phase, fitted[gpu]) / row[phase] - 1);
        return `${percent(mean(errors.map(Math.abs)))} (${mean(errors) < 0 ? "" : "+"}${percent(mean(errors))})`;
      });
      console.log(`| ${name} | ${gpu} | ${parallel} | ${cells.join(" | ")} |`);
    }
  }
}

function readRows(file) {
  const [header, ...lines] = readFileSync(file, "utf8").trim().split("\n");
  const names = header.split(",");
  const all = lines.map((line) => Object.fromEntries(line.split(",").map((cell, at) => [names[at], cell])));
  return all
    .map((row) => ({
      model: row.model,
      gpu: hardware[row.hardware],
      parallel: Number(row.tensor_parallel),
      prompt: Number(row.prompt_size),
      batch: Number(row.batch_size),
      output: Number(row.token_size),
      prefill: Number(row.prompt_time),
      decode: Number(row.token_time),
      shape: [row.batch_size, row.prompt_size, row.token_size].map((cell) => cell.padStart(5)).join(" "),
    }))
    .filter((row) => row.gpu !== undefined && !(row.batch === 64 && row.parallel === 2)); // those ran out of memory
}

function predict(row, phase, calibration) {
  const timing = rooflineTiming({
    model: models[row.model],
    gpu: gpus[row.gpu],
    tensorParallel: row.parallel,
    calibration,
  });
  const pass = emptyPass();
  if (phase === "prefill") {
    pass.prefillRequests = row.batch;
    pass.prefillsCompleted = row.batch;
    pass.prefillTokens = row.batch * row.prompt;
    pass.prefillSquares = row.batch * row.prompt * row.prompt;
  } else {
    pass.decodeRequests = row.batch;
    pass.decodeTokens = row.batch;
    pass.decodeContextTokens = row.batch * (row.prompt + row.output / 2);
  }
  return timing.passMs(pass);
}

/** Smallest mean absolute logarithmic error, by a search along each constant with shrinking steps. */
function fitTo(part) {
  const start = { compute: 0.6, memory: 0.7, link: 0.5, perLayerMs: 0.3, perHopMs: 0.005, perSequenceMs: 0.1 };
  const names = Object.keys(start);
  const toCalibration = (values) => Object.fromEntries(names.map((name, at) => [name, values[at]]));
  const loss = (values) => {
    if (values.slice(0, 3).some((value) => value > 0.95)) return Number.POSITIVE_INFINITY; // no kernel reaches more
    const calibration = toCalibration(values);
    let sum = 0;
    for (const row of part) {
      for (const phase of ["prefill", "decode"])
        sum += Math.abs(Math.log(predict(row, phase, calibration) / row[phase]));
    }
    return sum;
  };
  let best = Object.values(start);
  let bestLoss = loss(best);
  for (let step = 0.3; step > 0.002; ) {
    let improved = false;
    for (let at = 0; at < best.length; at++) {
      for (const factor of [1 + step, 1 / (1 + step)]) {
        const candidate = best.with(at, best[at] * factor);
        const candidateLoss = loss(candidate);
        if (candidateLoss < bestLoss) [best, bestLoss, improved] = [candidate, candidateLoss, true];
      }
    }
    if (!improved) step /= 2;
  }
  return toCalibration(best.map((value) => Number(value.toPrecision(3))));
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function percent(value) {
  return (100 * value).toFixed(1);
}
