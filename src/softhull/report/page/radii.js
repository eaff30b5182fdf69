"use strict";

// The largest radius certified and the smallest one broken, of every input under every method, over the radii tried.
function radiiOf(rows) {
  const found = new Map();
  for (const row of rows) {
    const task = taskOf(row);
    const key = JSON.stringify([task.family, task.label, columns.index[row]]);
    if (!found.has(key)) found.set(key, { row, task, index: columns.index[row], certified: null, broken: null, largest: 0, wrong: false });
    const one = found.get(key);
    const verdict = verdictOf(row);
    one.largest = Math.max(one.largest, task.eps);
    if (verdict === "certified") one.certified = Math.max(one.certified ?? 0, task.eps);
    if (verdict === "falsified") one.broken = Math.min(one.broken ?? Infinity, task.eps);
    if (verdict === "misclassified") one.wrong = true;
  }
  return [...found.values()];
}

function drawRadii(rows) {
  const tried = unique(rows.map((row) => taskOf(row).eps));
  if (isScore(filter.question) || !rows.length || tried.length < 2 || filter.verdict) return hideSection("radii");
  const items = radiiOf(rows);
  const radius = (value, none) => (value === null ? none : number(value));
  section(
    "radii",
    "Certified radius of every input",
    "Certified: the largest radius tried at which the input stays the class. Broken: the smallest one with a counterexample. " +
      "“at least” marks inputs certified at the largest radius tried. A line opens the input.",
    sortableTable({
      name: "certified radius",
      columns: [
        { title: "input", value: (item) => item.index },
        { title: "label", value: (item) => columns.label[item.row] },
        ...(unique(items.map((item) => item.task.network)).length > 1 ? [{ title: "network", value: (item) => item.task.network, left: true, wide: true }] : []),
        { title: "method", value: (item) => item.task.label, show: (item) => methodName(item.task.label), left: true, wide: true },
        {
          title: "certified radius",
          value: (item) => (item.wrong ? null : (item.certified ?? 0)),
          show: (item) => (item.wrong ? "misclassified" : `${item.certified !== null && item.certified === item.largest ? "at least " : ""}${radius(item.certified, "none")}`),
        },
        { title: "broken at", value: (item) => item.broken, show: (item) => radius(item.broken, "not found") },
      ],
      items,
      page: 15,
      stacked: true,
      onclick: (item) => showDetail(item.row),
    }),
  );
}
