"use strict";

function drawInstances(rows) {
  const score = isScore(filter.question);
  const column = (title, name, hint) => ({ title, value: (row) => columns[name][row], show: (row) => number(columns[name][row]), hint });
  section(
    "instances",
    "Instances",
    "Every instance that passes the filters. A line opens the details.",
    sortableTable({
      columns: [
        { title: "input", value: (row) => columns.index[row] },
        { title: "label", value: (row) => columns.label[row] },
        { title: "network", value: (row) => taskOf(row).network, left: true },
        ...(score ? [{ title: "score", value: (row) => taskOf(row).score, left: true }] : []),
        { title: "radius", value: (row) => taskOf(row).eps, show: (row) => number(taskOf(row).eps) },
        { title: "method", value: (row) => taskOf(row).label, show: (row) => methodName(taskOf(row).label), left: true },
        { title: "verdict", value: (row) => verdictOf(row), show: (row) => chip(verdictOf(row)), left: true },
        ...(score ? [column("clean", "clean", "Score of the input itself")] : []),
        column("attack", "attack", score ? "Worst score found" : "Smallest margin found by the attack"),
        column("bound", "bound", score ? "Certified bound on the score" : "Certified lower bound on the margin"),
        { title: "CPU", value: (row) => columns.cpu[row], show: (row) => seconds(columns.cpu[row]) },
      ],
      items: rows,
      onclick: showDetail,
    }),
  );
}

function showDetail(row) {
  const dialog = document.getElementById("detail");
  const task = taskOf(row);
  const facts = [
    ["network", task.network],
    ["data", task.data],
    ["perturbation", `radius ${task.eps}, ${perturbation(task)}`],
    [isScore(task.question) ? "score" : "property", task.score ?? task.property ?? NONE],
  ];
  const values = isScore(task.question) ? ["clean", "attack", "bound"] : ["attack", "bound"];
  const answers = siblingsOf(row).map((one) =>
    element(
      "tr",
      {},
      element("td", { class: "left" }, methodName(taskOf(one).label, task.question)),
      element("td", { class: "left" }, chip(verdictOf(one))),
      ...values.map((name) => element("td", {}, number(columns[name][one], 6))),
      element("td", {}, seconds(columns.cpu[one])),
    ),
  );
  const said = [...new Set(siblingsOf(row).map((one) => [taskOf(one).label, messageOf(one)]).filter(([, text]) => text).map((pair) => pair.join(": ")))];
  dialog.replaceChildren(
    element(
      "div",
      { class: "title" },
      element("h2", {}, `Input ${columns.index[row]}, label ${columns.label[row]}`),
      element("button", { type: "button", "aria-label": "Close", onclick: () => dialog.close() }, "✕"),
    ),
    ...[pictureStrip(row)].filter(Boolean),
    element("dl", {}, facts.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])),
    element(
      "div",
      { class: "scroll" },
      element(
        "table",
        {},
        element("thead", {}, element("tr", {}, ["method", "verdict", ...values, "CPU"].map((name, place) => element("th", { class: place < 2 ? "left" : "" }, name)))),
        element("tbody", {}, answers),
      ),
    ),
    ...said.map((text) => element("p", { class: "hint" }, text)),
  );
  if (!dialog.open) dialog.showModal();
}
