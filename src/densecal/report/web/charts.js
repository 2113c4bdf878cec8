// Charts: axes and marks as inline SVG, values on hover and by arrow keys, and every chart also as a table.

const COLOURS = 8;
const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const tip = document.getElementById("tip");

/** An HTML element; text is always text, never markup. */
function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

const percent = (value, digits = 2) => (value === null ? "–" : `${(100 * value).toFixed(digits)} %`);
const points = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(100 * value).toFixed(1)} points`;
const decimal = (value, digits = 3) => (value === null || Number.isNaN(value) ? "–" : value.toFixed(digits));
const whole = (value) => value.toLocaleString("en");
const short = (value) =>
  value >= 1e9 ? `${+(value / 1e9).toPrecision(3)} G` : value >= 1e6 ? `${+(value / 1e6).toPrecision(3)} M`
    : value >= 1e3 ? `${+(value / 1e3).toPrecision(3)} k` : `${+value.toPrecision(3)}`;

/** Colour and dash of the i-th series. Dashes tell series apart without colour, and a repeated colour has another dash. */
const series = (i) => ({ class: `series s${i % COLOURS}`, "stroke-dasharray": DASHES[(i + Math.floor(i / COLOURS)) % DASHES.length] });

/** Round values that cover a domain. */
function ticks({ domain: [low, high], whole }, count) {
  const raw = Math.max((high - low) / count, whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map((f) => f * power).find((s) => s >= raw * 0.999);
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) values.push(i * step);
  return values;
}

function logTicks([low, high]) {
  const values = [];
  for (let e = Math.ceil(Math.log10(low) - 1e-9); e <= Math.log10(high) + 1e-9; e++) values.push(10 ** e);
  const apart = Math.ceil(values.length / 5);
  return values.filter((_, i) => i % apart === 0);
}

/** From values to pixels. */
function scale(axis, from, to) {
  const map = axis.log ? Math.log10 : (v) => v;
  const [low, high] = axis.domain.map(map);
  const span = high - low || 1;
  return (v) => from + ((map(v) - low) / span) * (to - from);
}

/** A tick's text: as many decimals as the step asks for. */
function tickText(axis, value, all) {
  if (axis.format) return axis.format(value);
  if (axis.log) return value >= 0.01 ? short(value) : `10${[...Math.log10(value).toFixed(0)].map((c) => SUPERSCRIPTS[c]).join("")}`;
  const step = all.length > 1 ? all[1] - all[0] : 1;
  let digits = 0;
  while (digits < 6 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits++;
  return value.toFixed(digits);
}

/**
 * A chart in a <figure>.
 *
 * spec: title, height, x and y ({label, domain, log, whole, ticks, format, names}), marks(plot) which draws into plot.g with
 * plot.x and plot.y, points ([{x, y, text}] that can be visited, in order), nearest ("x" or "xy"), table ({head, rows}),
 * legend ([{index, text}]), margin. Returns a function that redraws it.
 */
function chart(host, spec) {
  const svg = shape("svg", {
    tabindex: 0, role: "group", "aria-roledescription": "chart", "aria-label": `${spec().title}. Arrow keys read the values.`,
  });
  const legend = element("div", { class: "legend" });
  host.prepend(legend, svg);
  let state = null;
  const draw = () => {
    state = drawChart(svg, spec());
    legend.replaceChildren(...(state.spec.legend ?? []).map(legendEntry));
  };
  visit(svg, () => state);
  asTable(host, () => state.spec.table);
  let width = 0;
  new ResizeObserver(() => {
    // after this frame: drawing changes the height, which is being observed
    requestAnimationFrame(() => {
      if (!svg.clientWidth || svg.clientWidth === width) return;
      width = svg.clientWidth;
      draw();
    });
  }).observe(host);
  return () => { if (width) draw(); };
}

function legendEntry({ index, text, className }) {
  const key = shape("svg", { width: 26, height: 10, "aria-hidden": true });
  if (className) key.append(shape("rect", { width: 26, height: 10, class: className }));
  else key.append(shape("line", { x1: 0, x2: 26, y1: 5, y2: 5, ...series(index) }));
  return element("span", {}, key, text);
}

/** Clear the SVG and draw frame and marks. */
function drawChart(svg, spec) {
  const width = svg.clientWidth;
  const height = spec.height ?? 240;
  const m = { right: 14, top: 10, bottom: 42, ...spec.margin };
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  const plot = {
    spec, width, height, right: width - m.right, top: m.top, bottom: height - m.bottom,
    g: shape("g"), over: shape("g", { "pointer-events": "none" }),
  };
  plot.up = axisTicks(spec.y, (plot.bottom - plot.top) / 38);
  const longest = Math.max(...plot.up.map((value) => tickText(spec.y, value, plot.up).length));
  plot.left = m.left ?? 30 + 7 * Math.max(longest, 3);
  plot.x = scale(spec.x, plot.left, plot.right);
  plot.y = scale(spec.y, plot.bottom, plot.top);
  svg.replaceChildren(frame(plot), plot.g, plot.over);
  spec.marks(plot);
  return plot;
}

const axisTicks = (axis, count) => axis.ticks ?? (axis.log ? logTicks(axis.domain) : ticks(axis, Math.max(2, count)));

/** Grid lines, tick texts and axis labels. */
function frame(plot) {
  const { spec, left, right, top, bottom, up } = plot;
  const g = shape("g", { class: "frame" });
  const along = axisTicks(spec.x, (right - left) / 70);
  for (const value of along) {
    const at = plot.x(value);
    g.append(shape("line", { x1: at, x2: at, y1: top, y2: bottom, class: "grid" }));
    g.append(shape("text", { x: at, y: bottom + 15, "text-anchor": "middle" }, tickText(spec.x, value, along)));
  }
  for (const value of up) {
    const at = plot.y(value);
    if (!spec.y.names) g.append(shape("line", { x1: left, x2: right, y1: at, y2: at, class: "grid" }));
    g.append(shape("text", { x: left - 7, y: at + 4, "text-anchor": "end" }, tickText(spec.y, value, up)));
  }
  g.append(shape("text", { x: (left + right) / 2, y: plot.height - 6, "text-anchor": "middle", class: "label" }, spec.x.label));
  if (spec.y.label) {
    const middle = (top + bottom) / 2;
    const turned = { x: 13, y: middle, "text-anchor": "middle", class: "label", transform: `rotate(-90 13 ${middle})` };
    g.append(shape("text", turned, spec.y.label));
  }
  return g;
}

/** Values under the pointer, and one after another by the arrow keys. */
function visit(svg, current) {
  let at = -1;
  const show = (index, byKey) => {
    const plot = current();
    const point = plot?.spec.points[index];
    if (!point) return;
    at = index;
    const [x, y] = [plot.x(point.x), plot.y(point.y)];
    plot.over.replaceChildren(shape("circle", { cx: x, cy: y, r: 6, class: "visited" }));
    showTip(point.text, svg, x, y, byKey);
  };
  const hide = () => {
    current()?.over.replaceChildren();
    tip.hidden = true;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    show(nearest(current(), event.clientX - box.left, event.clientY - box.top), false);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) show(Math.max(at, 0), true); });
  svg.addEventListener("keydown", (event) => {
    const last = current().spec.points.length - 1;
    const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") hide();
    if (to === undefined) return;
    event.preventDefault();
    show(Math.min(Math.max(to, 0), last), true);
  });
}

function nearest(plot, x, y) {
  const alongOnly = plot.spec.nearest === "x";
  let best = -1, least = alongOnly ? Infinity : 40 ** 2;
  plot.spec.points.forEach((point, i) => {
    const dx = plot.x(point.x) - x, dy = plot.y(point.y) - y;
    const distance = alongOnly ? dx * dx + 1e-3 * dy * dy : dx * dx + dy * dy;
    if (distance < least) [best, least] = [i, distance];
  });
  return best;
}

/** The text beside a point of a chart; spoken when it was reached by a key. */
function showTip(text, svg, x, y, spoken) {
  tip.setAttribute("aria-live", spoken ? "polite" : "off");
  tip.replaceChildren(...text.split("\n").map((line) => element("div", {}, line)));
  tip.hidden = false;
  const box = svg.getBoundingClientRect();
  const left = Math.min(Math.max(box.left + x - tip.offsetWidth / 2, 6), document.documentElement.clientWidth - tip.offsetWidth - 6);
  const above = box.top + y - tip.offsetHeight - 12;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 4 ? above : box.top + y + 14}px`;
}

/** The values of a chart as a table, made when it is opened. */
function asTable(host, content) {
  const details = element("details", { class: "as-table" }, element("summary", {}, "Values as a table"));
  details.addEventListener("toggle", () => {
    details.querySelector(".scroll")?.remove();
    if (!details.open) return;
    const { head, rows } = content();
    const table = element("table", {},
      element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, String(cell)))))));
    details.append(element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Values" }, table));
  });
  host.append(details);
}

/** SVG path through points; null leaves a gap. */
function path(plot, xs, ys) {
  let text = "", broken = true;
  xs.forEach((x, i) => {
    if (ys[i] === null || ys[i] === undefined) broken = true;
    else {
      text += `${broken ? "M" : "L"}${plot.x(x).toFixed(1)} ${plot.y(ys[i]).toFixed(1)}`;
      broken = false;
    }
  });
  return text;
}

/** Steps of a histogram over equal cells of [0, 1]; empty cells leave a gap. */
function steps(plot, heights, cells = heights.length) {
  let text = "";
  heights.forEach((height, i) => {
    if (!(height > 0)) return;
    const y = plot.y(height).toFixed(1);
    text += `${heights[i - 1] > 0 ? "L" : "M"}${plot.x(i / cells).toFixed(1)} ${y}L${plot.x((i + 1) / cells).toFixed(1)} ${y}`;
  });
  return text;
}
