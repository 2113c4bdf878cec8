// The page: theme, sortable tables, which data set and methods are shown, the threshold, training and alpha.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`)?.value;

// ------------------------------------------------------------------ theme

const themeButton = byId("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
const labelTheme = () => { themeButton.textContent = isDark() ? "Light" : "Dark"; };
themeButton.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  labelTheme();
});
dark.addEventListener("change", labelTheme);
labelTheme();

// ------------------------------------------------------------------ sortable tables

/** Sort the rows by a column; rows without a value stay last. */
function sortBy(table, column, direction) {
  const body = table.tBodies[0];
  const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const numeric = table.tHead.rows[0].cells[column].dataset.kind === "number";
  const sign = direction === "ascending" ? 1 : -1;
  const compare = (a, b) => {
    if (!numeric) return sign * value(a).localeCompare(value(b), "en", { numeric: true });
    const [x, y] = [a, b].map((row) => (value(row) === "" ? NaN : Number(value(row))));
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
    return sign * (x - y);
  };
  body.append(...[...body.rows].sort(compare));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const first = head.dataset.first ?? "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const direction = head.getAttribute("aria-sort") === first ? other : first;
    heads.forEach((cell) => cell.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction);
    sortBy(table, column, direction);
  }));
}

// ------------------------------------------------------------------ what is shown

const MOST = 8;
const datasetSelect = byId("dataset");
const shownBox = byId("shown");
const names = [...new Set(data.records.map((record) => record.name))];
const least = (name) => Math.min(...data.records.filter((r) => r.name === name).map((r) => r.figures.ece_ew ?? 1));
const firstShown = new Set([...names].sort((a, b) => least(a) - least(b)).slice(0, MOST));

// where there are more methods than colours, those shown first have distinct colours
if (names.length > COLOURS) {
  const order = [...firstShown, ...names.filter((name) => !firstShown.has(name))];
  for (const one of [...data.records, ...data.runs]) if (names.includes(one.name)) one.colour = order.indexOf(one.name);
}

const tickedNames = () => new Set([...shownBox.querySelectorAll("input:checked")].map((box) => box.value));

/** The records of the chosen data set whose method is ticked. */
function shown() {
  const ticked = tickedNames();
  return data.records.filter((record) => record.dataset === datasetSelect.value && ticked.has(record.name));
}

/** A diagram under a one-line caption and an optional smaller line, so that neighbours are level. */
function panel(title, small, spec) {
  const figure = element("figure", { class: "panel" });
  chart(figure, spec);
  const caption = element("figcaption", { title }, element("span", {}, title));
  if (small) caption.append(element("small", {}, small));
  figure.prepend(caption);
  return figure;
}

/** One diagram per record, side by side. */
function panels(host, records, spec) {
  host.replaceChildren(...records.map((record) => panel(record.name, record.ece && `ECE ${record.ece}`, () => spec(record))));
}

function drawDiagrams() {
  const records = shown();
  redraw.forest?.();
  const curve = reliabilityCurve();
  panels(byId("reliability-panels"), records.filter((r) => curve(r)), (r) => (curve(r).density ? smoothReliability : reliability)(r, curve(r)));
  panels(byId("joint-panels"), records, (r) => joint(r, jointLow(records)));
  panels(byId("confidence-panels"), records, confidences);
  drawThreshold();
  drawTrust(records);
  drawOutside();
}

/** Which curve of a record the reliability diagrams show, with the names of its axes. */
function reliabilityCurve() {
  const select = byId("class");
  if (select?.value) {
    const curve = (record) => record.classes[Number(select.value)];
    return (record) => curve(record) && { ...curve(record), xName: `probability of ${curve(record).name}`, yName: "share of the class" };
  }
  const foreground = { xName: "foreground probability", yName: "share of foreground" };
  if (chosen("kind") === "foreground") return (record) => record.foreground && { ...record.foreground, ...foreground };
  if (chosen("kind") === "smooth_foreground") return (record) => record.smooth_foreground && { ...record.smooth_foreground, ...foreground };
  if (chosen("kind") === "smooth") return (record) => record.smooth && { ...record.smooth, xName: "confidence", yName: "accuracy" };
  return (record) => ({ ...record.reliability, xName: "confidence", yName: "accuracy" });
}

const redraw = {};

function startDiagrams() {
  for (const name of names) {
    const box = element("input", { type: "checkbox", value: name, checked: firstShown.has(name) });
    shownBox.append(element("label", {}, box, name));
  }
  const figureSelect = byId("forest-figure");
  redraw.forest = chart(byId("forest"), () => forest(shown(), figureSelect.value));
  figureSelect.addEventListener("change", redraw.forest);
  document.addEventListener("click", (event) => { if (!byId("pick").contains(event.target)) byId("pick").open = false; });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") byId("pick").open = false; });
  for (const control of [datasetSelect, shownBox, byId("kind"), byId("class")]) control?.addEventListener("change", drawDiagrams);
  startThreshold();
  drawDiagrams();
}

// ------------------------------------------------------------------ threshold

const slider = byId("threshold-at");
const F = (p, r) => (p === null || r === null ? null : p + r === 0 ? 0 : (1.3 * p * r) / (0.3 * p + r));
const ratio = (a, b) => (b === 0 ? null : a / b);

/** Counts of pixels at a threshold in per cent, all images pooled. */
function confusion(record, at) {
  if (!record.thresholds) return null;
  const { tp, fp, positives, negatives } = record.thresholds;
  return { tp: tp[at], fp: fp[at], fn: positives - tp[at], tn: negatives - fp[at] };
}

/** Precision, recall and F at a threshold in per cent: of pooled pixels of raw maps, or means over stretched maps. */
function scores(record, at, pooled) {
  if (pooled) {
    const c = confusion(record, at);
    if (!c) return { precision: null, recall: null, f: null };
    const [precision, recall] = [ratio(c.tp, c.tp + c.fp), ratio(c.tp, c.tp + c.fn)];
    return { precision, recall, f: F(precision, recall) };
  }
  if (!record.curves) return { precision: null, recall: null, f: null };
  const t = Math.min(255, Math.floor((255 * at) / 100) + 1);
  return { precision: record.curves.precision[t], recall: record.curves.recall[t], f: record.curves.f[t] };
}

const withThresholds = () => shown().filter((record) => record.thresholds || record.curves);
const isPooled = () => chosen("pooling") !== "mean";
const PERCENTS = [...Array(101).keys()];

function thresholdCurve(key, label) {
  const pooled = isPooled(), at = Number(slider.value);
  const all = withThresholds().map((r) => ({ name: r.name, index: r.colour, xs: PERCENTS.map((k) => k / 100), ys: PERCENTS.map((k) => scores(r, k, pooled)[key]) }));
  const dots = withThresholds().map((r) => ({ x: at / 100, y: scores(r, at, pooled)[key], index: r.colour })).filter((d) => d.y !== null);
  return lines({
    title: `${label} over the threshold`, all, cursor: at / 100, dots, format: (v) => decimal(v),
    x: { label: "threshold", domain: [0, 1] }, y: { label, domain: [0, 1] },
  });
}

function precisionRecall() {
  const pooled = isPooled(), at = Number(slider.value);
  const all = withThresholds().map((r) => {
    const at_ = PERCENTS.map((k) => scores(r, k, pooled));
    return { name: r.name, index: r.colour, xs: at_.map((s) => s.recall ?? 0), ys: at_.map((s) => s.precision), more: (i) => `\nthreshold ${decimal(i / 100, 2)}` };
  });
  const dots = withThresholds().map((r) => ({ r, s: scores(r, at, pooled) })).filter(({ s }) => s.precision !== null)
    .map(({ r, s }) => ({ x: s.recall, y: s.precision, index: r.colour }));
  return lines({
    title: "Precision over recall", all, dots, format: (v) => decimal(v),
    x: { label: "recall", domain: [0, 1] }, y: { label: "precision", domain: [0, 1] },
  });
}

function startThreshold() {
  if (!slider) return;
  redraw.threshold = [
    chart(byId("f-curve"), () => thresholdCurve("f", "F")),
    chart(byId("precision-curve"), () => thresholdCurve("precision", "precision")),
    chart(byId("recall-curve"), () => thresholdCurve("recall", "recall")),
    chart(byId("precision-recall"), precisionRecall),
  ];
  let waiting = false;
  slider.addEventListener("input", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      drawThreshold();
    });
  });
  byId("pooling").addEventListener("change", drawThreshold);
  byId("confusion-of").addEventListener("change", drawConfusion);
}

function drawThreshold() {
  if (!slider) return;
  const records = withThresholds(), at = Number(slider.value), pooled = isPooled();
  byId("threshold-value").textContent = decimal(at / 100, 2);
  slider.setAttribute("aria-valuetext", decimal(at / 100, 2));
  byId("threshold-rows").replaceChildren(...records.map((record) => {
    const c = confusion(record, at), s = scores(record, at, pooled);
    const counts = c ? [c.tp, c.fp, c.fn, c.tn].map(whole) : ["–", "–", "–", "–"];
    const overlap = c ? [ratio(c.tp, c.tp + c.fp + c.fn), ratio(c.tp + c.tn, c.tp + c.fp + c.fn + c.tn)].map((v) => decimal(v)) : ["–", "–"];
    const cells = [decimal(s.precision), decimal(s.recall), decimal(s.f), ...overlap, ...counts];
    return element("tr", {}, element("th", { scope: "row" }, record.name), ...cells.map((text) => element("td", {}, text)));
  }));
  const select = byId("confusion-of");
  const before = select.value;
  select.replaceChildren(...records.map((record) => element("option", { value: record.name }, record.name)));
  if (records.some((record) => record.name === before)) select.value = before;
  drawConfusion();
  redraw.threshold.forEach((draw) => draw());
}

/** The two-by-two table of one method, shaded by the share of all pixels. */
function drawConfusion() {
  const record = withThresholds().find((r) => r.name === byId("confusion-of").value);
  const c = record && confusion(record, Number(slider.value));
  for (const key of ["tp", "fp", "fn", "tn"]) {
    const cell = byId(`confusion-${key}`);
    cell.replaceChildren();
    cell.style.setProperty("--share", "0");
    if (!c) continue;
    const share = c[key] / (c.tp + c.fp + c.fn + c.tn);
    cell.style.setProperty("--share", share.toFixed(4));
    cell.append(element("strong", {}, whole(c[key])), element("small", {}, percent(share, 1)));
  }
}

// ------------------------------------------------------------------ training, alpha, out of distribution

function startTraining() {
  const host = byId("training-charts");
  if (!host) return;
  const kinds = [
    ["loss", "training loss", (v) => decimal(v, 4), 1],
    ["ece", "validation ECE (%)", (v) => decimal(v, 2), 100],
    ["accuracy", "validation accuracy (%)", (v) => decimal(v, 2), 100],
  ];
  for (const [key, label, format, factor] of kinds) {
    if (!data.runs.some((run) => run[key].some((v) => v !== null))) continue;
    host.append(panel(label, "", () => training(data.runs, key, label, format, factor)));
  }
  for (const run of data.runs.filter((r) => r.quantiles)) {
    host.append(panel(`${run.symbol} of ${run.name}`, "median, middle half, extremes", () => alphaQuantiles(run)));
  }
}

function startAlpha() {
  for (const run of data.runs.filter((r) => r.histogram)) {
    const ends = element("div");
    byId("alpha-charts").append(panel(run.name, "", () => alphaHistogram(run)), ends);
    for (const [title, images] of [["Highest", run.highest], ["Lowest", run.lowest]]) {
      if (!images.length) continue;
      const strip = element("div", { class: "strip" });
      for (const { name, value, pictures } of images) {
        const card = element("figure", { class: "shot" }, ...pictures.map(([heading, index]) => picture(index, `${heading} of ${name}`)));
        card.append(element("figcaption", {}, element("b", {}, decimal(value, 4)), element("span", { title: name }, name)));
        strip.append(card);
      }
      ends.append(element("h3", {}, `${title} ${run.symbol}, ${run.name}`), strip);
    }
  }
}

function drawTrust(records) {
  byId("cases-panels")?.replaceChildren(...records.filter((record) => record.trust).map((record) =>
    panel(record.name, `${whole(record.trust.cases)} cases`, () => riskCoverage(record))));
}

function drawOutside() {
  const ticked = tickedNames();
  byId("ood-panels")?.replaceChildren(...data.ood.filter((entry) => ticked.has(entry.name)).map((entry) => {
    const separation = `AUROC ${decimal(entry.auroc)}, FPR95 ${decimal(entry.fpr95)}`;
    return panel(`${entry.name}: ${entry.outside}`, separation, () => entropies(entry));
  }));
}

/** An image of the page's store. */
function picture(index, alt) {
  return element("img", { src: `data:image/webp;base64,${data.pictures[index]}`, alt, loading: "lazy", decoding: "async" });
}
