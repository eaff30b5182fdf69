"use strict";

const against = { x: null, y: null };

// Bounds of one method against those of another, on the instances both answered.
function drawScatter(rows) {
  const labels = methodsOf[filter.question];
  if (!rows.length || labels.length < 2) return hideSection("scatter");
  if (!labels.includes(against.x)) [against.x] = labels;
  if (!labels.includes(against.y) || against.y === against.x) against.y = labels.find((label) => label !== against.x);
  // A filter for one method must not hide the other half of the pairs.
  const wanted = new Set(rows.map((row) => siblingsOf(row)));
  const points = [];
  for (const group of wanted) {
    const [a, b] = [against.x, against.y].map((label) => group.find((row) => taskOf(row).label === label));
    if (a === undefined || b === undefined || columns.bound[a] === null || columns.bound[b] === null) continue;
    points.push({ x: columns.bound[a], y: columns.bound[b], rows: [a, b] });
  }
  const score = isScore(filter.question);
  const kind = ({ x, y, rows: [a, b] }) => {
    if (score) {
      if (Math.abs(x - y) <= 1e-6 * Math.max(Math.abs(x), Math.abs(y))) return "equal";
      return x > y === (taskOf(a).worst_when === "high") ? "y" : "x";
    }
    const [p, q] = [verdictOf(a), verdictOf(b)].map((verdict) => verdict === "certified");
    return p === q ? (p ? "both" : "neither") : p ? "x" : "y";
  };
  const legends = score
    ? [["y", `${against.y} tighter`], ["x", `${against.x} tighter`], ["equal", "equal"]]
    : [["both", "both certify"], ["y", `only ${against.y}`], ["x", `only ${against.x}`], ["neither", "neither certifies"]];
  const colours = {
    both: themeColour("certified"),
    equal: themeColour("soft"),
    neither: themeColour("soft"),
    x: methodColour(against.x),
    y: methodColour(against.y),
  };
  const parts = legends.map(([key, label]) => ({ key, label, data: points.filter((point) => kind(point) === key) }));
  const what = score ? "certified bound on the score" : "certified margin to the nearest class";
  const swap = (axisName) => (value) => {
    const other = axisName === "x" ? "y" : "x";
    if (against[other] === value) against[other] = against[axisName];
    against[axisName] = value;
    drawScatter(rows);
  };
  const options = labels.map((label) => [label, label]);
  section(
    "scatter",
    "Method against method",
    `${whole(points.length)} instances answered by both. ` +
      (score ? "On the diagonal both bounds are equal." : "Above the diagonal the vertical method proves more."),
    element("div", { class: "choices" }, choice("Across", options, against.x, swap("x")), choice("Up", options, against.y, swap("y"))),
    chart(
      "scatter",
      "scatter",
      {
        datasets: parts
          .filter((part) => part.data.length)
          .map((part) => ({
            label: `${part.label} (${whole(part.data.length)})`,
            data: part.data,
            backgroundColor: faded(colours[part.key], points.length > 2000 ? 0.4 : 0.7),
            pointRadius: points.length > 2000 ? 2 : 3.5,
          })),
      },
      {
        label: `${what}, ${against.y} against ${against.x}`,
        scales: { x: axis(`${what}, ${against.x}`, { type: "linear" }), y: axis(`${what}, ${against.y}`) },
        legend: { position: "bottom" },
        plugins: [diagonal],
        onClick: (event, hits, made) =>
          hits.length && showDetail(made.data.datasets[hits[0].datasetIndex].data[hits[0].index].rows[0]),
        tooltip: {
          label: (item) => {
            const [row] = item.raw.rows;
            return ` input ${columns.index[row]}, radius ${number(taskOf(row).eps)}: ${number(item.raw.x)} and ${number(item.raw.y)}`;
          },
        },
      },
      380,
    ),
  );
}

// How the CPU time of an instance is distributed, in equal steps of its logarithm.
function drawCost(rows) {
  const timed = rows.filter((row) => columns.cpu[row] > 0);
  if (!timed.length) return hideSection("cost");
  const logs = timed.map((row) => Math.log10(columns.cpu[row]));
  const low = logs.reduce((a, b) => Math.min(a, b));
  const high = logs.reduce((a, b) => Math.max(a, b));
  const bins = 24;
  const width = Math.max((high - low) / bins, 0.02);
  const edges = [...Array(bins).keys()].map((place) => 10 ** (low + (place + 0.5) * width));
  const byMethod = [...grouped(timed, (row) => taskOf(row).label)];
  const datasets = byMethod.map(([label, mine]) => {
    const heights = new Array(bins).fill(0);
    for (const row of mine) heights[Math.min(bins - 1, Math.floor((Math.log10(columns.cpu[row]) - low) / width))]++;
    return {
      label,
      data: heights.map((height) => (100 * height) / mine.length),
      borderColor: methodColour(label),
      backgroundColor: faded(methodColour(label), 0.25),
      fill: true,
      stepped: "middle",
      pointRadius: 0,
      borderWidth: 1.5,
    };
  });
  const cpu = (mine) => mine.map((row) => columns.cpu[row]);
  const statistic = (title, value) => ({ title, value: ([, mine]) => value(cpu(mine)), show: ([, mine]) => seconds(value(cpu(mine))) });
  section(
    "cost",
    "Cost",
    "CPU time of an input, on a logarithmic scale. A stage that works on several inputs shares its time among them.",
    chart(
      "cost",
      "line",
      { labels: edges.map((edge) => seconds(edge)), datasets },
      {
        label: "Distribution of the CPU time of an input",
        interaction: { mode: "index", intersect: false },
        scales: { x: axis("CPU time of an input"), y: axis("% of the inputs", { beginAtZero: true }) },
        legend: { position: "bottom" },
        tooltip: { label: (item) => ` ${item.dataset.label}: ${item.parsed.y.toFixed(1)} %` },
      },
      280,
    ),
    sortableTable({
      name: "cost by method",
      columns: [
        { title: "method", value: ([label]) => label, show: ([label]) => methodName(label), left: true },
        statistic("median", median),
        statistic("90 %", (values) => quantile(values, 0.9)),
        statistic("largest", (values) => values.reduce((a, b) => Math.max(a, b))),
        statistic("in all", (values) => values.reduce((a, b) => a + b)),
      ],
      items: byMethod,
    }),
  );
}

// Instances on which the methods do not agree, one column per method.
function drawDisagreements(rows) {
  const seen = new Set(rows.map((row) => siblingsOf(row)));
  const differing = [...seen].filter((group) => new Set(group.map(verdictOf)).size > 1);
  const labels = methodsOf[filter.question].filter((label) => differing.some((group) => group.some((row) => taskOf(row).label === label)));
  if (!rows.length || isScore(filter.question) || methodsOf[filter.question].length < 2) return hideSection("disagreements");
  const verdictBy = (group, label) => {
    const row = group.find((one) => taskOf(one).label === label);
    return row === undefined ? null : verdictOf(row);
  };
  const only = labels.map((label) => [
    label,
    differing.filter((group) => group.every((row) => (verdictOf(row) === "certified") === (taskOf(row).label === label))).length,
  ]);
  const remarks = only.filter(([, wins]) => wins).map(([label, wins]) => `${label} alone certifies ${whole(wins)}`);
  const text = differing.length
    ? `${whole(differing.length)} of ${whole(seen.size)} instances. ${remarks.join("; ")}${remarks.length ? "." : ""}`
    : `None: the methods agree on all ${whole(seen.size)} instances.`;
  const table = sortableTable({
    name: "disagreements",
    columns: [
      { title: "network", value: (group) => taskOf(group[0]).network, left: true },
      { title: "radius", value: (group) => taskOf(group[0]).eps, show: (group) => number(taskOf(group[0]).eps) },
      { title: "input", value: (group) => columns.index[group[0]] },
      { title: "label", value: (group) => columns.label[group[0]] },
      ...labels.map((label) => ({
        title: label,
        value: (group) => verdictBy(group, label),
        show: (group) => (verdictBy(group, label) ? chip(verdictBy(group, label)) : NONE),
        left: true,
      })),
    ],
    items: differing,
    page: 15,
    onclick: (group) => showDetail(group[0]),
  });
  section("disagreements", "Where the methods disagree", text, differing.length ? table : "");
}
