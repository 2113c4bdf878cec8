// What if: the figures and the reliability diagram of a record after division of its logits by a temperature.

const whatif = byId("whatif-at");
const WHATIF_BINS = 10;
const sigmoid = (z) => 1 / (1 + Math.exp(-z));
const withLogits = () => shown().filter((record) => record.logits);

/** Every bin of logits that holds pixels: its middle, and its background and foreground pixels. */
function logitBins({ limit, background, foreground }) {
  const width = (2 * limit) / background.length;
  return background.map((n, i) => ({ z: -limit + (i + 0.5) * width, n, k: foreground[i] })).filter(({ n, k }) => n + k > 0);
}

/** The slope of the NLL in 1 / T, which rises with it. */
const nllSlope = (bins, s) => bins.reduce((sum, { z, n, k }) => sum + z * (n * sigmoid(s * z) - k * sigmoid(-s * z)), 0);

/** The temperature with the least NLL, or null where there is none between 0.01 and 100. */
function bestTemperature(bins) {
  let [low, high] = [0.01, 100];
  if (nllSlope(bins, low) >= 0 || nllSlope(bins, high) <= 0) return null;
  for (let i = 0; i < 60; i++) {
    const middle = Math.sqrt(low * high);
    if (nllSlope(bins, middle) < 0) low = middle;
    else high = middle;
  }
  return 1 / low;
}

/** Figures and reliability curve at a temperature; F at a threshold. */
function atTemperature(bins, temperature, threshold) {
  const sums = Array.from({ length: WHATIF_BINS }, () => ({ n: 0, confidence: 0, correct: 0 }));
  let [total, brier, nll, tp, fp, positives, confidence] = [0, 0, 0, 0, 0, 0, 0];
  for (const { z, n, k } of bins) {
    const p = sigmoid(z / temperature), c = Math.max(p, 1 - p), all = n + k;
    const bin = sums[Math.min(Math.floor(c * WHATIF_BINS), WHATIF_BINS - 1)];
    bin.n += all;
    bin.confidence += all * c;
    bin.correct += z > 0 ? k : n;
    total += all;
    confidence += all * c;
    brier += n * p * p + k * (1 - p) ** 2;
    nll += n * Math.log1p(Math.exp(z / temperature)) + k * Math.log1p(Math.exp(-z / temperature));
    positives += k;
    if (p > threshold) [tp, fp] = [tp + k, fp + n];
  }
  const gaps = sums.map((bin) => (bin.confidence - bin.correct) / total);
  const part = (sign) => gaps.reduce((sum, gap) => sum + Math.max(0, sign * gap), 0);
  const mean = (key) => sums.map((bin) => (bin.n ? bin[key] / bin.n : null));
  return {
    ece: part(1) + part(-1), oe: part(1), ue: part(-1), brier: brier / total, nll: nll / total, confidence: confidence / total,
    f: F(ratio(tp, tp + fp), ratio(tp, positives)),
    curve: { count: sums.map((bin) => bin.n), confidence: mean("confidence"), accuracy: mean("correct"), xName: "confidence", yName: "accuracy" },
  };
}

let whatifCharts = [];

function drawWhatif() {
  const temperature = 2 ** Number(whatif.value), threshold = Number(byId("whatif-threshold").value) / 100;
  byId("whatif-value").textContent = decimal(temperature, 2);
  whatif.setAttribute("aria-valuetext", decimal(temperature, 2));
  byId("whatif-threshold-value").textContent = decimal(threshold, 2);
  byId("whatif-rows").replaceChildren(...withLogits().map((record) => {
    const s = atTemperature(logitBins(record.logits), temperature, threshold);
    const best = bestTemperature(logitBins(record.logits));
    const cells = [s.ece, s.oe, s.ue, s.brier].map((v) => percent(v)).concat(decimal(s.nll), decimal(s.f), percent(s.confidence), best === null ? "–" : decimal(best, 2));
    return element("tr", {}, element("th", { scope: "row" }, record.name), ...cells.map((text) => element("td", {}, text)));
  }));
  whatifCharts.forEach((draw) => draw());
}

/** A diagram per method of the chosen data set. */
function layOutWhatif() {
  const records = withLogits();
  const select = byId("whatif-of"), before = select.value;
  select.replaceChildren(...records.map((record) => element("option", { value: record.name }, record.name)));
  if (records.some((record) => record.name === before)) select.value = before;
  whatifCharts = [];
  byId("whatif-panels").replaceChildren(...records.map((record) => {
    const figure = element("figure", { class: "panel" });
    whatifCharts.push(chart(figure, () => reliability(record, atTemperature(logitBins(record.logits), 2 ** Number(whatif.value), 0.5).curve)));
    figure.prepend(element("figcaption", { title: record.name }, element("span", {}, record.name)));
    return figure;
  }));
  drawWhatif();
}

function startWhatif() {
  if (!whatif) return;
  for (const control of [whatif, byId("whatif-threshold")]) control.addEventListener("input", drawWhatif);
  for (const control of [datasetSelect, shownBox]) control.addEventListener("change", layOutWhatif);
  byId("whatif-best").addEventListener("click", () => {
    const record = withLogits().find((r) => r.name === byId("whatif-of").value);
    const best = record && bestTemperature(logitBins(record.logits));
    if (best) whatif.value = Math.log2(best);
    drawWhatif();
  });
  byId("whatif-reset").addEventListener("click", () => {
    whatif.value = 0;
    drawWhatif();
  });
  layOutWhatif();
}
