"use strict";

function drawReproduce() {
  const fact = (name, value) => [element("dt", {}, name), element("dd", {}, value)];
  const models = (task) =>
    Array.isArray(task.models)
      ? task.models.map((model) => element("div", {}, `${model?.path ?? "?"} `, element("code", {}, `sha256 ${model?.sha256 ?? "?"}`)))
      : [element("code", {}, JSON.stringify(task.models))];
  const details = tasks.map((task) =>
    element(
      "details",
      {},
      element(
        "summary",
        {},
        `${QUESTION_NAMES[task.question] ?? task.question}: ${task.network}${task.score ? ` · ${task.score}` : ""} · radius ${number(task.eps)} · ${task.label}`,
      ),
      element(
        "dl",
        {},
        fact("networks", element("div", {}, models(task))),
        fact("data", task.data_path),
        fact("softhull", task.version),
        fact("task", element("code", {}, task.hash)),
        fact("settings", element("pre", {}, JSON.stringify(task.settings, null, 2))),
      ),
    ),
  );
  section(
    "reproduce",
    "To reproduce",
    "Every task with its settings, the hashes of its networks and the version that answered it; then the runs that filled the store.",
    element("div", { class: "tasks" }, details),
    element("h3", {}, "Runs"),
    plainTable("runs", ["began", "ended", "softhull", "command"], content.runs.map((run) => [run.began, run.ended ?? "not ended", run.version, run.command]), (value, place) =>
      place === 3 ? element("code", { class: "wrap" }, value) : value,
      4,
    ),
  );
  document.getElementById("footer").replaceChildren(
    `Written by softhull ${content.softhull} on ${content.made}. Charts by Chart.js (MIT licence).`,
  );
}
