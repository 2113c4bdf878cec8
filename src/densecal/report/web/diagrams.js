// Diagrams of evaluation records and training logs, each as the specification of a chart.

const FIGURES = {
  ece_ew: "ECE", oe_ew: "over-confidence (OE)", ue_ew: "under-confidence (UE)", ece_image_mean: "ECE, mean over images",
  brier: "Brier score", nll: "NLL", accuracy: "accuracy", mean_confidence: "mean confidence",
};
const UNSCALED = ["nll"];
const HIGH_IS_GOOD = ["accuracy"];

/** One figure of several methods with its interval, one row per method. */
function forest(records, key) {
  const scaled = UNSCALED.includes(key) ? 1 : 100;
  const shown = records.filter((r) => r.figures[key] !== null)
    .map((r) => ({ r, value: scaled * r.figures[key], ci: (r.intervals[key] ?? []).map((v) => scaled * v) }));
  const all = shown.length ? shown.flatMap(({ value, ci }) => [value, ...ci]) : [0];
  const from = HIGH_IS_GOOD.includes(key) || key === "mean_confidence" ? Math.min(...all) : 0;
  const room = (Math.max(...all) - from) * 0.08 || 1;
  const best = Math[HIGH_IS_GOOD.includes(key) ? "max" : "min"](...shown.map((s) => s.value));
  const shownValue = (value) => value.toFixed(scaled === 1 ? 3 : 2);
  const marked = (s) => shown.length > 1 && key !== "mean_confidence" && shownValue(s.value) === shownValue(best);
  const unit = scaled === 1 ? "" : " %";
  const label = (s) => (s.ci.length ? `, 95 % interval ${shownValue(s.ci[0])} to ${shownValue(s.ci[1])}${unit}` : "");
  const most = innerWidth < 600 ? 20 : 40;
  const longest = Math.max(3, ...shown.map((s) => Math.min(most, s.r.name.length)));
  return {
    title: `${FIGURES[key]} of every method with its interval`,
    height: 58 + 30 * shown.length,
    margin: { left: 26 + 6.8 * longest, top: 14 },
    x: { label: FIGURES[key] + (unit ? " (%)" : ""), domain: [from ? from - room : 0, Math.max(...all) + room] },
    y: {
      domain: [shown.length - 0.5, -0.5], names: true, ticks: shown.map((_, i) => i),
      format: (i) => `${marked(shown[i]) ? "★ " : ""}${cut(shown[i].r.name, most)}`,
    },
    nearest: "xy",
    points: shown.map((s, i) => ({ x: s.value, y: i, text: `${s.r.name}\n${FIGURES[key]} ${shownValue(s.value)}${unit}${label(s)}` })),
    marks(plot) {
      shown.forEach((s, i) => {
        const y = plot.y(i);
        const line = { class: `series s${s.r.colour % COLOURS}` };
        if (s.ci.length) {
          const [low, high] = s.ci.map(plot.x);
          plot.g.append(shape("path", { d: `M${low} ${y}H${high}M${low} ${y - 5}V${y + 5}M${high} ${y - 5}V${y + 5}`, ...line }));
        }
        plot.g.append(shape("circle", { cx: plot.x(s.value), cy: y, r: 5, class: `dot s${s.r.colour % COLOURS}` }));
      });
    },
    table: {
      head: ["method", FIGURES[key], "low", "high"],
      rows: shown.map((s) => [s.r.name, s.value.toFixed(3), ...(s.ci.length ? s.ci.map((v) => v.toFixed(3)) : ["–", "–"])]),
    },
  };
}

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

/** Accuracy over confidence, gap hatched, pixels below. */
function reliability(record, curve) {
  const { xName, yName } = curve;
  const bins = curve.count.length;
  const held = [...curve.count.keys()].filter((i) => curve.count[i] > 0);
  const first = curve.count.slice(0, Math.floor(bins / 2)).some((n) => n > 0) ? 0 : Math.floor(bins / 2) / bins;
  const total = curve.count.reduce((a, b) => a + b, 0);
  const range = (i) => `${decimal(i / bins, 2)} to ${decimal((i + 1) / bins, 2)}`;
  const banded = (i) => curve.low && curve.low[i] !== null && curve.high[i] !== null;
  const expected = (i) => (banded(i) ? `a calibrated model: ${percent(curve.low[i])} to ${percent(curve.high[i])}\n` : "");
  return {
    title: `Reliability of ${record.name} on ${record.dataset}`,
    height: 290,
    margin: { bottom: 104 },
    x: { label: xName, domain: [first, 1] },
    y: { label: yName, domain: [0, 1] },
    nearest: "x",
    points: held.map((i) => ({
      x: (i + 0.5) / bins, y: curve.accuracy[i],
      text: `${xName} ${range(i)}\n${yName} ${percent(curve.accuracy[i])}\nmean ${xName} ${percent(curve.confidence[i])}\n`
        + `gap ${points(curve.confidence[i] - curve.accuracy[i])}\n${expected(i)}${whole(curve.count[i])} pixels (${percent(curve.count[i] / total, 1)})`,
    })),
    marks(plot) {
      const most = Math.max(...curve.count), base = plot.bottom + 84, room = 36;
      for (const i of held) {
        const [left, right] = [plot.x(i / bins) + 1, plot.x((i + 1) / bins) - 1];
        const width = Math.max(right - left, 1);
        const [a, c] = [plot.y(curve.accuracy[i]), plot.y(curve.confidence[i])];
        plot.g.append(shape("rect", { x: left, width, y: a, height: Math.max(plot.bottom - a, 0), class: "bar" }));
        const over = curve.confidence[i] > curve.accuracy[i];
        plot.g.append(shape("rect", { x: left, width, y: Math.min(a, c), height: Math.abs(a - c), class: over ? "gap over" : "gap under" }));
        if (banded(i)) {
          const x = (left + right) / 2, [low, high] = [plot.y(curve.low[i]), plot.y(curve.high[i])];
          plot.g.append(shape("path", { d: `M${x} ${low}V${high}M${x - 4} ${low}H${x + 4}M${x - 4} ${high}H${x + 4}`, class: "expected" }));
        }
        const tall = Math.max(1.5, (room * Math.log10(1 + curve.count[i])) / Math.log10(1 + most));
        plot.g.append(shape("rect", { x: left, width, y: base - tall, height: tall, class: "count" }));
      }
      plot.g.append(shape("line", { x1: plot.x(first), y1: plot.y(first), x2: plot.x(1), y2: plot.y(1), class: "ideal" }));
      plot.g.append(shape("line", { x1: plot.left, x2: plot.right, y1: base, y2: base, class: "axis" }));
      plot.g.append(shape("text", { x: plot.left - 7, y: base - 12, "text-anchor": "end", class: "note" }, "pixels"));
      plot.g.append(shape("text", { x: plot.left - 7, y: base, "text-anchor": "end", class: "note" }, "(log)"));
    },
    table: {
      head: [xName, "pixels", `mean ${xName}`, yName, "gap"],
      rows: held.map((i) => [range(i), whole(curve.count[i]), percent(curve.confidence[i]), percent(curve.accuracy[i]), points(curve.confidence[i] - curve.accuracy[i])]),
    },
  };
}

/** Accuracy around every confidence, without bins; the density of pixels below. */
function smoothReliability(record, curve) {
  const { xName, yName } = curve, last = curve.accuracy.length - 1;
  const held = [...curve.accuracy.keys()].filter((i) => curve.accuracy[i] !== null);
  const first = Math.max(0, (held[0] ?? 0) / last - 0.02);
  const most = Math.max(...curve.density);
  return {
    title: `Smooth reliability of ${record.name} on ${record.dataset}`,
    height: 290,
    margin: { bottom: 104 },
    x: { label: xName, domain: [first, 1] },
    y: { label: yName, domain: [0, 1] },
    nearest: "x",
    points: held.map((i) => ({ x: i / last, y: curve.accuracy[i], text: `around ${xName} ${decimal(i / last, 2)}\n${yName} ${percent(curve.accuracy[i])}` })),
    marks(plot) {
      const xs = held.map((i) => i / last), base = plot.bottom + 84, room = 36;
      plot.g.append(shape("line", { x1: plot.x(first), y1: plot.y(first), x2: plot.x(1), y2: plot.y(1), class: "ideal" }));
      plot.g.append(shape("path", { d: path(plot, xs, held.map((i) => curve.accuracy[i])), ...series(record.colour) }));
      const heights = held.map((i) => `${plot.x(i / last)} ${base - room * Math.sqrt(curve.density[i] / most)}`);
      if (held.length) plot.g.append(shape("path", { d: `M${plot.x(xs[0])} ${base}L${heights.join("L")}L${plot.x(xs[xs.length - 1])} ${base}Z`, class: "count" }));
      plot.g.append(shape("line", { x1: plot.left, x2: plot.right, y1: base, y2: base, class: "axis" }));
      plot.g.append(shape("text", { x: plot.left - 7, y: base - 6, "text-anchor": "end", class: "note" }, "pixels"));
    },
    table: { head: [xName, yName], rows: held.map((i) => [decimal(i / last, 2), percent(curve.accuracy[i])]) },
  };
}

/** Images by mean confidence and accuracy: cells of a grid, darker where there are more. */
function joint(record, low) {
  const { cells, counts } = record.joint;
  const most = Math.max(...counts.map(([, , n]) => n));
  const range = (i) => `${((100 * i) / cells).toFixed(0)} to ${((100 * (i + 1)) / cells).toFixed(0)} %`;
  const centre = (i) => (i + 0.5) / cells;
  return {
    title: `Images of ${record.dataset} by confidence and accuracy, ${record.name}`,
    height: 290,
    x: { label: "mean confidence of an image", domain: [low, 1] },
    y: { label: "accuracy of the image", domain: [low, 1] },
    nearest: "xy",
    points: counts.map(([x, y, n]) => ({
      x: centre(x), y: centre(y),
      text: `${whole(n)} ${n === 1 ? "image" : "images"}\nconfidence ${range(x)}\naccuracy ${range(y)}`,
    })),
    marks(plot) {
      plot.g.append(shape("line", { x1: plot.x(low), y1: plot.y(low), x2: plot.x(1), y2: plot.y(1), class: "ideal" }));
      const wide = plot.x(1 / cells) - plot.x(0), tall = plot.y(0) - plot.y(1 / cells);
      for (const [x, y, n] of counts) {
        const box = { x: plot.x(x / cells), y: plot.y((y + 1) / cells), width: wide, height: tall };
        plot.g.append(shape("rect", { ...box, class: "cell", "fill-opacity": (0.25 + 0.75 * Math.sqrt(n / most)).toFixed(2) }));
      }
      const [cx, cy] = [plot.x(record.joint.mean_confidence), plot.y(record.joint.mean_accuracy)];
      plot.g.append(shape("path", { d: `M${cx - 7} ${cy}H${cx + 7}M${cx} ${cy - 7}V${cy + 7}`, class: "mean" }));
    },
    table: { head: ["confidence", "accuracy", "images"], rows: counts.map(([x, y, n]) => [range(x), range(y), n]) },
  };
}

/** Where the axes of a joint diagram begin. */
function jointLow(records) {
  const lowest = Math.min(...records.flatMap((r) => r.joint.counts.map(([x, y]) => Math.min(x, y) / r.joint.cells)));
  return Math.max(0, Math.floor(10 * lowest - 0.2) / 10);
}

/** Two histograms over [0, 1] on a logarithmic scale. */
function twoHistograms({ title, label, yLabel, from, sides, unit }) {
  const cells = sides[0].heights.length;
  const held = [...Array(cells).keys()].filter((i) => sides.some((s) => s.heights[i] > 0));
  const positive = sides.flatMap((s) => s.heights.filter((h) => h > 0));
  const values = (i) => sides.map((s) => `${s.name}: ${unit(s.heights[i])}`);
  const range = (i) => `${decimal(i / cells, 2)} to ${decimal((i + 1) / cells, 2)}`;
  return {
    title,
    height: 240,
    x: { label, domain: [Math.min(from, held[0] / cells), 1] },
    y: { label: yLabel, domain: [10 ** Math.floor(Math.log10(Math.min(...positive))), 10 ** Math.ceil(Math.log10(Math.max(...positive)))], log: true },
    nearest: "x",
    points: held.map((i) => ({ x: (i + 0.5) / cells, y: Math.max(...sides.map((s) => s.heights[i])), text: [`${label} ${range(i)}`, ...values(i)].join("\n") })),
    marks(plot) {
      for (const side of sides) plot.g.append(shape("path", { d: steps(plot, side.heights), ...series(side.index) }));
    },
    legend: sides.map((s) => ({ index: s.index, text: s.name })),
    table: { head: [label, ...sides.map((s) => s.name)], rows: held.map((i) => [range(i), ...sides.map((s) => unit(s.heights[i]))]) },
  };
}

/** How confident right and wrong pixels are. */
function confidences(record) {
  const { count, correct } = record.histogram;
  return twoHistograms({
    title: `Confidence of right and wrong pixels, ${record.name} on ${record.dataset}`,
    label: "confidence", yLabel: "pixels", from: 0.5, unit: (n) => `${whole(n)}`,
    sides: [
      { name: "right", heights: correct, index: 0 },
      { name: "wrong", heights: count.map((n, i) => n - correct[i]), index: 1 },
    ],
  });
}

/** Entropy of pixels in and out of distribution. */
function entropies(entry) {
  const share = (counts) => {
    const total = counts.reduce((a, b) => a + b, 0);
    return counts.map((n) => n / total);
  };
  return twoHistograms({
    title: `Entropy of ${entry.name} on ${entry.dataset} and on ${entry.outside}`,
    label: "entropy (share of its maximum)", yLabel: "share of pixels", from: 0, unit: (v) => percent(v, 3),
    sides: [
      { name: `in: ${entry.dataset}`, heights: share(entry.in), index: 0 },
      { name: `out: ${entry.outside}`, heights: share(entry.out), index: 1 },
    ],
  });
}

/** Lines over a common x; every point can be visited. */
function lines({ title, x, y, all, format, height = 250, cursor = null, dots = [] }) {
  const xText = x.text ?? ((v) => `${x.label} ${+v.toFixed(4)}`);
  return {
    title, height, x, y,
    nearest: "xy",
    points: all.flatMap((l) => l.xs.map((v, i) => ({ x: v, y: l.ys[i], text: `${l.name}\n${xText(v)}\n${l.label ?? y.label} ${format(l.ys[i])}${l.more?.(i) ?? ""}` })))
      .filter((p) => p.y !== null && p.y !== undefined),
    marks(plot) {
      for (const line of all) {
        plot.g.append(shape("path", { d: path(plot, line.xs, line.ys), ...series(line.index), class: `${series(line.index).class} ${line.className ?? ""}` }));
        if (line.xs.length === 1) plot.g.append(shape("circle", { cx: plot.x(line.xs[0]), cy: plot.y(line.ys[0]), r: 4, class: `dot s${line.index % COLOURS}` }));
      }
      if (cursor !== null) plot.g.append(shape("line", { x1: plot.x(cursor), x2: plot.x(cursor), y1: plot.top, y2: plot.bottom, class: "cursor" }));
      for (const dot of dots) plot.g.append(shape("circle", { cx: plot.x(dot.x), cy: plot.y(dot.y), r: 6, class: `dot s${dot.index % COLOURS}` }));
    },
    legend: all.length > 1 ? all.map((l) => ({ index: l.index, text: l.name })) : [],
    table: { head: ["series", x.label, y.label], rows: all.flatMap((l) => l.xs.map((v, i) => [l.name, +v.toFixed(4), l.ys[i] === null ? "–" : format(l.ys[i])])) },
  };
}

/** Risk of the most confident cases, by how a case's confidence is averaged. */
function riskCoverage(record) {
  const { risk, by } = record.trust;
  const all = Object.entries(by).map(([name, ys], index) => ({ name, index, xs: ys.map((_, i) => (i + 1) / ys.length), ys }));
  all.push({ name: "at random", index: all.length, xs: [all[0].xs[0], 1], ys: [risk, risk] });
  const most = Math.max(risk, ...all.flatMap((line) => line.ys));
  return lines({
    title: `Risk over coverage of the cases of ${record.dataset}, ${record.name}`, all, format: (v) => decimal(v, 4),
    x: { label: "share of cases, most confident first", domain: [0, 1] },
    y: { label: "mean risk, 1 − Dice", domain: [0, 1.05 * most || 1] },
  });
}

/** A figure of the training log over epochs. */
function training(runs, key, label, format, factor = 1) {
  const all = runs.map((run, i) => ({ name: run.name, index: run.colour ?? i, xs: run.epochs, ys: run[key].map((v) => (v === null ? null : factor * v)) }));
  const values = all.flatMap((l) => l.ys.filter((v) => v !== null));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const from = key === "accuracy" ? low - 0.05 * (high - low || 1) : Math.min(0, low);
  return lines({
    title: `${label} over epochs`, all, format,
    x: { label: "epoch", whole: true, domain: epochDomain(runs), text: (v) => `epoch ${v}` },
    y: { label, domain: [from, high + 0.05 * (high - from || 1)] },
  });
}

function epochDomain(runs) {
  const last = Math.max(...runs.flatMap((run) => run.epochs));
  return [1, Math.max(last, 2)];
}

/** Quantiles of alpha over epochs: band of the middle half, thin lines at the extremes. */
function alphaQuantiles(run) {
  const q = run.quantiles;
  const high = Math.max(...q.max, 1e-6), low = Math.min(0, ...q.min);
  const text = (i) => `epoch ${run.epochs[i]}\nmax ${decimal(q.max[i], 4)}\nupper quartile ${decimal(q.q75[i], 4)}\nmedian ${decimal(q.median[i], 4)}\n`
    + `lower quartile ${decimal(q.q25[i], 4)}\nmin ${decimal(q.min[i], 4)}`;
  return {
    title: `Quantiles of ${run.symbol} over epochs, ${run.name}`,
    height: 250,
    x: { label: "epoch", whole: true, domain: epochDomain([run]) },
    y: { label: run.symbol, domain: [low, high * 1.05] },
    nearest: "x",
    points: run.epochs.map((epoch, i) => ({ x: epoch, y: q.median[i], text: text(i) })),
    marks(plot) {
      const back = [...run.epochs].reverse();
      const area = `${path(plot, run.epochs, q.q75)}${path(plot, back, [...q.q25].reverse()).replace("M", "L")}Z`;
      plot.g.append(shape("path", { d: area, class: `band s${run.colour % COLOURS}` }));
      for (const key of ["min", "max"]) plot.g.append(shape("path", { d: path(plot, run.epochs, q[key]), class: `series thin s${run.colour % COLOURS}` }));
      plot.g.append(shape("path", { d: path(plot, run.epochs, q.median), class: `series s${run.colour % COLOURS}` }));
    },
    table: { head: ["epoch", "min", "q25", "median", "q75", "max"], rows: run.epochs.map((e, i) => [e, ...["min", "q25", "median", "q75", "max"].map((k) => decimal(q[k][i], 5))]) },
  };
}

/** How many training images have which alpha at the end. */
function alphaHistogram(run) {
  const { edges, counts } = run.histogram;
  const range = (i) => `${decimal(edges[i], 4)} to ${decimal(edges[i + 1], 4)}`;
  return {
    title: `Histogram of ${run.symbol} over training images, ${run.name}`,
    height: 250,
    x: { label: `${run.symbol} of a training image`, domain: [edges[0], edges[edges.length - 1]] },
    y: { label: "images", whole: true, domain: [0, Math.max(...counts) * 1.05] },
    nearest: "x",
    points: counts.map((n, i) => ({ x: (edges[i] + edges[i + 1]) / 2, y: n, text: `${run.symbol} ${range(i)}\n${whole(n)} images` })),
    marks(plot) {
      counts.forEach((n, i) => {
        const [left, right] = [plot.x(edges[i]), plot.x(edges[i + 1])];
        plot.g.append(shape("rect", { x: left + 0.5, width: Math.max(right - left - 1, 1), y: plot.y(n), height: plot.bottom - plot.y(n), class: `filled s${run.colour % COLOURS}` }));
      });
    },
    table: { head: [run.symbol, "images"], rows: counts.map((n, i) => [range(i), n]) },
  };
}
