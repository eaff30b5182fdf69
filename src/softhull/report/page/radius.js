"use strict";

const FAMILIES_SHOWN = 6;

// What an attack leaves: instances that no method falsified and that were right to begin with.
function ceiling(rows) {
  const lost = new Set();
  const all = new Set();
  for (const row of rows) {
    all.add(columns.index[row]);
    if (["falsified", "misclassified"].includes(verdictOf(row))) lost.add(columns.index[row]);
  }
  return all.size ? (100 * (all.size - lost.size)) / all.size : null;
}

function drawRadius(rows) {
  const score = isScore(filter.question);
  const families = [...grouped(rows, (row) => taskOf(row).family).values()];
  if (!families.length) return hideSection("radius");
  const charts = families.slice(0, FAMILIES_SHOWN).map((members, place) => {
    const lines = [...grouped(members, (row) => taskOf(row).label)].map(([label, mine]) => ({
      label,
      data: along(mine, (here) =>
        score ? mean(here.map((row) => columns.bound[row])) : (100 * count(here, "certified")) / here.length,
      ),
      borderColor: methodColour(label),
      backgroundColor: methodColour(label),
      pointRadius: 4,
      borderWidth: 2,
      clip: 8,
    }));
    const dashed = (label, data, dash, pointStyle, colour) => ({
      label,
      data,
      borderColor: themeColour(colour),
      backgroundColor: themeColour(colour),
      borderDash: dash,
      borderWidth: 1.5,
      pointRadius: 5,
      pointStyle,
      clip: 8,
    });
    const average = (name) => along(members, (here) => mean(here.map((row) => columns[name][row])));
    if (score) {
      lines.push(dashed("attacked", average("attack"), [6, 4], "triangle", "falsified"));
      lines.push(dashed("unperturbed", average("clean"), [2, 3], "crossRot", "soft"));
    } else if (!filter.verdict) lines.push(dashed("not falsified", along(members, ceiling), [6, 4], "triangle", "soft"));
    const task = taskOf(members[0]);
    const what = score ? `mean ${task.score}` : "certified, % of the inputs";
    return chart(
      `radius ${place}`,
      "line",
      { datasets: lines },
      {
        label: `${what} against the radius, ${familyName(task)}`,
        title: familyName(task),
        interaction: { mode: "nearest", axis: "x", intersect: false },
        scales: {
          x: axis("radius", { type: "linear", grace: "6%" }),
          y: axis(what, score ? {} : { min: 0, max: 100 }),
        },
        legend: { position: "bottom" },
        tooltip: {
          title: (items) => `radius ${number(items[0].parsed.x)}`,
          label: (item) => ` ${item.dataset.label}: ${number(item.parsed.y)}${score ? "" : " %"}`,
        },
      },
      320,
    );
  });
  const left = families.length - charts.length;
  section(
    "radius",
    score ? "Scores against the radius" : "Certified share against the radius",
    (score
      ? "The true worst mean score lies between the attack and the lowest certified bound."
      : "The dashed line is the ceiling: what no attack broke. No sound method can pass it.") +
      (left ? ` ${whole(left)} more combinations: choose a network or data set above.` : ""),
    element("div", { class: "grid" }, charts),
  );
}

function along(rows, value) {
  return [...grouped(rows, (row) => taskOf(row).eps)]
    .sort(([a], [b]) => a - b)
    .map(([x, here]) => ({ x, y: value(here) }));
}
