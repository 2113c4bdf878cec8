// The gallery of the most over-confident images, with filters; and the start of the page.

const PAGE = 24;
const ORDERS = {
  gap: (a, b) => b.confidence - b.accuracy - (a.confidence - a.accuracy),
  confidence: (a, b) => b.confidence - a.confidence,
  accuracy: (a, b) => a.accuracy - b.accuracy,
  entropy: (a, b) => b.entropy - a.entropy,
  name: (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }),
};
let visible = PAGE;

/** The examples that pass the filters, in the chosen order. */
function filtered() {
  const [method, dataset, order] = ["gallery-method", "gallery-dataset", "gallery-order"].map((id) => byId(id).value);
  const text = byId("gallery-name").value.toLowerCase();
  const least = Number(byId("gallery-gap").value) / 100;
  return data.gallery
    .filter((e) => (!method || e.method === method) && (!dataset || e.dataset === dataset))
    .filter((e) => e.name.toLowerCase().includes(text) && e.confidence - e.accuracy >= least)
    .sort(ORDERS[order]);
}

function card(example) {
  const gap = example.confidence - example.accuracy;
  const pictures = example.pictures.map(([heading, index]) =>
    element("figure", {}, picture(index, `${heading} of ${example.name}, ${example.method}`), element("figcaption", {}, heading)));
  const facts = [["confidence", percent(example.confidence, 1)], ["accuracy", percent(example.accuracy, 1)], ["gap", points(gap)], ["entropy", decimal(example.entropy)]];
  return element("article", { class: "card" },
    element("header", {}, element("h3", { title: example.name }, example.name), element("span", {}, `${example.method} · ${example.dataset}`)),
    element("div", { class: "pictures" }, ...pictures),
    element("dl", {}, ...facts.map(([term, value]) => element("div", {}, element("dt", {}, term), element("dd", {}, value)))));
}

function drawGallery() {
  const examples = filtered();
  byId("gallery-cards").replaceChildren(...examples.slice(0, visible).map(card));
  byId("gallery-count").textContent = `${Math.min(visible, examples.length)} of ${examples.length} shown, ${data.gallery.length} in all`;
  byId("gallery-gap-value").textContent = `${byId("gallery-gap").value.replace("-", "−")} points`;
  byId("gallery-more").hidden = visible >= examples.length;
}

function startGallery() {
  if (!data.gallery.length) return;
  for (const [id, key] of [["gallery-method", "method"], ["gallery-dataset", "dataset"]]) {
    const values = [...new Set(data.gallery.map((e) => e[key]))];
    byId(id).append(...values.map((value) => element("option", { value }, value)));
    byId(id).closest("label").hidden = values.length < 2;
  }
  const gap = byId("gallery-gap");
  gap.min = Math.min(0, ...data.gallery.map((e) => Math.floor(100 * (e.confidence - e.accuracy))));
  gap.value = gap.min;
  byId("gallery-filters").addEventListener("input", () => {
    visible = PAGE;
    drawGallery();
  });
  byId("gallery-more").addEventListener("click", () => {
    const first = visible;
    visible += PAGE;
    drawGallery();
    const card = byId("gallery-cards").children[first];
    card.tabIndex = -1;
    card.focus();
  });
  drawGallery();
}

if (data.records.length) {
  startDiagrams();
  startWhatif();
}
startTraining();
startAlpha();
startGallery();
document.documentElement.dataset.ready = "true";
