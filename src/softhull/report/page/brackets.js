"use strict";

const bracket = { task: null, order: "bound" };
const BRACKETS_SHOWN = 2000;

// Clean score, worst score attacked, certified bound of every instance of one task.
function drawBrackets(rows) {
  const scored = rows.filter((row) => isScore(taskOf(row).question) && columns.bound[row] !== null);
  const byTask = grouped(scored, (row) => columns.task[row]);
  if (!byTask.size) return hideSection("brackets");
  if (!byTask.has(bracket.task)) bracket.task = [...byTask.keys()].reduce((a, b) => (tasks[b].eps > tasks[a].eps ? b : a));
  const task = tasks[bracket.task];
  const order = {
    bound: (row) => columns.bound[row],
    gap: (row) => Math.abs(columns.bound[row] - columns.attack[row]),
    clean: (row) => columns.clean[row],
    index: (row) => columns.index[row],
  };
  const members = [...byTask.get(bracket.task)].sort((a, b) => order[bracket.order](a) - order[bracket.order](b));
  const shown = members.slice(-BRACKETS_SHOWN);
  const bar = (label, from, to, colour) => ({
    label,
    data: shown.map((row) => [columns[from][row], columns[to][row]]),
    backgroundColor: colour,
    borderSkipped: false,
    grouped: false,
    barPercentage: 1,
    categoryPercentage: shown.length > 300 ? 1 : 0.8,
  });
  const hue = methodColour(task.label);
  const names = [...byTask.keys()].map((key) => {
    const one = tasks[key];
    return [String(key), `${one.network} · ${one.score} · ${number(one.eps)} · ${one.label}`];
  });
  section(
    "brackets",
    "Brackets, instance by instance",
    "From the clean score to the attack: harm that was shown. From the attack to the certified bound: what is left open. Click for the instance." +
      (members.length > shown.length ? ` The ${whole(shown.length)} largest of ${whole(members.length)} are drawn.` : ""),
    element(
      "div",
      { class: "choices" },
      choice("Task", names, String(bracket.task), (value) => {
        bracket.task = Number(value);
        drawBrackets(rows);
      }),
      choice("Order by", Object.keys(order).map((name) => [name, name]), bracket.order, (value) => {
        bracket.order = value;
        drawBrackets(rows);
      }),
    ),
    chart(
      "brackets",
      "bar",
      {
        labels: shown.map((row) => columns.index[row]),
        datasets: [
          bar("unperturbed to attacked", "clean", "attack", faded(hue, 0.9)),
          bar("attacked to certified bound", "attack", "bound", faded(hue, 0.32)),
        ],
      },
      {
        label: `Brackets of ${task.score} of ${shown.length} instances`,
        interaction: { mode: "index", intersect: false },
        scales: {
          x: axis(`instances by ${bracket.order}`, { grid: { display: false }, ticks: { display: false } }),
          y: axis(task.score, { beginAtZero: true }),
        },
        onClick: (event, hits) => hits.length && showDetail(shown[hits[0].index]),
        tooltip: {
          title: (items) => `input ${items[0].label}, label ${columns.label[shown[items[0].dataIndex]]}`,
          label: (item) => {
            const row = shown[item.dataIndex];
            return item.datasetIndex
              ? ` certified bound ${number(columns.bound[row])}`
              : ` clean ${number(columns.clean[row])}, attack ${number(columns.attack[row])}`;
          },
        },
      },
      340,
    ),
  );
}
