"use strict";

const SHOWN_METRICS = [
  ["ece", "calibration error (ECE)"],
  ["accuracy", "accuracy"],
  ["nll", "mean NLL"],
  ["brier", "mean Brier score"],
  ["confidence_low", "mean confidence, lowest"],
];

// Metrics of whole data sets: clean, attacked, certified; then the reliability diagram of the largest radius.
function drawDatasets(rows) {
  const wanted = new Set(rows.map((row) => columns.task[row]));
  const here = content.datasets.filter((each) => wanted.has(each.task));
  if (!here.length) return hideSection("datasets");
  const families = [...grouped(here, (each) => `${tasks[each.task].family} ${tasks[each.task].label}`).values()];
  const parts = families.slice(0, FAMILIES_SHOWN).map((members, place) => datasetCharts([...members].sort((a, b) => a.eps - b.eps), place));
  section(
    "datasets",
    "Whole data sets",
    "Every sample may be perturbed on its own. The true worst value of a metric lies between what the attack reached and what is certified.",
    ...parts,
  );
}

function datasetCharts(members, place) {
  const task = tasks[members[0].task];
  const hue = methodColour(task.label);
  const title = element("h3", {}, `${familyName(task)} · ${whole(members[0].total)} samples`);
  const charts = SHOWN_METRICS.map(([name, text]) => {
    const line = (side, look) => ({
      label: side,
      data: members.map((each) => ({ x: each.eps, y: each.metrics[name][side] })),
      borderColor: hue,
      backgroundColor: faded(hue, 0.18),
      borderWidth: 2,
      pointRadius: 3,
      ...look,
    });
    return chart(
      `dataset ${place} ${name}`,
      "line",
      {
        datasets: [
          line("certified", { fill: "+1" }),
          line("attack", { borderDash: [6, 4], pointStyle: "triangle", pointRadius: 5 }),
          line("clean", { borderColor: themeColour("soft"), borderDash: [2, 3], pointStyle: "crossRot", pointRadius: 5 }),
        ],
      },
      {
        label: `${text} against the radius`,
        title: text,
        interaction: { mode: "index", intersect: false },
        scales: { x: axis("radius", { type: "linear" }), y: axis(text) },
        legend: { position: "bottom" },
        tooltip: { title: (items) => `radius ${number(items[0].parsed.x)}`, label: (item) => ` ${item.dataset.label}: ${number(item.parsed.y)}` },
      },
      260,
    );
  });
  return [title, element("div", { class: "grid" }, charts, reliabilityChart(members[members.length - 1], place, hue)), setSizes(members)];
}

function reliabilityChart(each, place, hue) {
  const bins = each.reliability;
  const points = (name, colour, style) => ({
    type: "line",
    label: name,
    data: bins.map((bin) => bin[name].accuracy),
    showLine: false,
    pointStyle: style,
    pointRadius: 4,
    borderColor: colour,
    backgroundColor: colour,
  });
  return chart(
    `reliability ${place}`,
    "bar",
    {
      labels: bins.map((bin) => `${number(bin.from, 2)}–${number(bin.to, 2)}`),
      datasets: [
        points("clean", themeColour("soft"), "circle"),
        points("attack", themeColour("falsified"), "rect"),
        {
          type: "line",
          label: "calibrated",
          data: bins.map((bin) => (bin.from + bin.to) / 2),
          borderColor: themeColour("line"),
          backgroundColor: themeColour("line"),
          borderDash: [3, 3],
          pointRadius: 0,
        },
        {
          label: "certified band",
          data: bins.map((bin) => (bin.certified.accuracy[0] === null ? null : bin.certified.accuracy)),
          backgroundColor: faded(hue, 0.18),
          borderColor: hue,
          borderWidth: 1,
          borderSkipped: false,
          barPercentage: 1,
          categoryPercentage: 1,
        },
      ],
    },
    {
      label: `reliability diagram at radius ${each.eps}`,
      title: `accuracy by confidence, radius ${number(each.eps)}`,
      scales: { x: axis("confidence"), y: axis("accuracy", { min: 0, max: 1 }) },
      legend: { position: "bottom" },
    },
    260,
  );
}

function setSizes(members) {
  const known = members.filter((each) => each.sets);
  if (!known.length) return null;
  const head = ["radius", "not robust", "robust", "from boxes of logits"];
  const cells = known.map((each) => [each.eps, each.sets.plain, each.sets.robust, each.sets.boxes]);
  return element(
    "div",
    {},
    element("p", { class: "hint" }, "Mean size of conformal prediction sets (1 − p of the label, 90 % coverage), half of the samples for calibration, 20 random splits."),
    plainTable("sizes of prediction sets", head, cells, (value) => number(value)),
  );
}
