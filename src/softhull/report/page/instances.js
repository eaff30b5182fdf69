"use strict";

function drawInstances(rows) {
  if (!rows.length) return hideSection("instances");
  const score = isScore(filter.question);
  const column = (title, name, hint) => ({ title, value: (row) => columns[name][row], show: (row) => number(columns[name][row]), hint });
  section(
    "instances",
    "Instances",
    `Every instance that passes the filters. ${score ? "" : "Margins are differences of logits to the nearest class: above 0 the input stays the class. "}A line opens the details.`,
    sortableTable({
      name: "instances",
      columns: [
        { title: "input", value: (row) => columns.index[row] },
        { title: "label", value: (row) => columns.label[row] },
        { title: "network", value: (row) => taskOf(row).network, left: true },
        ...(score ? [{ title: "score", value: (row) => taskOf(row).score, left: true }] : []),
        { title: "radius", value: (row) => taskOf(row).eps, show: (row) => number(taskOf(row).eps) },
        { title: "method", value: (row) => taskOf(row).label, show: (row) => methodName(taskOf(row).label), left: true },
        { title: "verdict", value: (row) => verdictOf(row), show: (row) => chip(verdictOf(row)), left: true },
        { title: "new class", value: (row) => columns.new_class[row], show: (row) => columns.new_class[row] ?? NONE, hint: "The class of the worst input found" },
        ...(score ? [column(sideName("clean"), "clean", "Score of the input itself")] : []),
        column(sideName("attack"), "attack", score ? "Worst score found by the attack" : "Smallest margin to another class that the attack found"),
        column(sideName("bound"), "bound", score ? "Certified bound on the score" : "Certified lower bound on the margin to the nearest class"),
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
    [isScore(task.question) ? "score" : "property", task.score ?? propertyName(task)],
    ["predicted class", columns.predicted[row] ?? NONE],
    ["new class", columns.new_class[row] ?? NONE],
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
      { class: "scroll", tabIndex: 0, role: "group", "aria-label": "answers of all methods" },
      element(
        "table",
        {},
        element("thead", {}, element("tr", {}, ["method", "verdict", ...values.map((name) => SIDE_NAMES[isScore(task.question)][name]), "CPU"].map((name, place) => element("th", { class: place < 2 ? "left" : "", scope: "col" }, name)))),
        element("tbody", {}, answers),
      ),
    ),
    ...said.map((text) => element("p", { class: "hint" }, text)),
  );
  if (!dialog.open) dialog.showModal();
}
