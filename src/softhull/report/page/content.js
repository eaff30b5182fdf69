"use strict";

// Columns of equal length describe the instances; a row is a position in them.
const content = JSON.parse(document.getElementById("content").textContent);
const { tasks, columns, verdicts, messages } = content;
const SIZE = columns.task.length;

const QUESTIONS = [...new Set(tasks.map((task) => task.question))];
const QUESTION_NAMES = { robustness: "Robustness", uncertainty: "Scores", dataset: "Data sets" };
const unique = (values) => [...new Set(values)];
const methodsOf = Object.fromEntries(
  QUESTIONS.map((question) => [question, unique(tasks.filter((task) => task.question === question).map((task) => task.label))]),
);
const SERIES = 8; // colours of the theme
const seriesOf = (label, question) => (methodsOf[question].indexOf(label) % SERIES) + 1;
const isScore = (question) => question !== "robustness";

const verdictOf = (row) => verdicts[columns.verdict[row]];
const taskOf = (row) => tasks[columns.task[row]];
const messageOf = (row) => messages[columns.message[row]];

// Tasks of one group ask the same with different methods; a family is a group for all radii.
function perturbation(task) {
  const norm = task.norm === "inf" ? "l∞" : `l${task.norm === "2" ? "₂" : task.norm === "1" ? "₁" : task.norm}`;
  return task.clip ? `${norm}, inputs in [${task.clip[0]}, ${task.clip[1]}]` : norm;
}

function familyName(task) {
  const asked = isScore(task.question) ? task.score : task.property === "all" ? null : propertyName(task);
  return [task.network, task.data, asked, perturbation(task)].filter(Boolean).join(" · ");
}

tasks.forEach((task, number) => {
  task.number = number;
  task.family = JSON.stringify([task.question, task.network, task.data, task.norm, task.clip, task.property, task.score]);
  task.group = JSON.stringify([task.family, task.eps]);
});

// The answers of all methods to one instance of one group, by row.
const siblings = (() => {
  const found = new Map();
  for (let row = 0; row < SIZE; row++) {
    const key = `${taskOf(row).group} ${columns.index[row]}`;
    if (found.has(key)) found.get(key).push(row);
    else found.set(key, [row]);
  }
  return found;
})();

const siblingsOf = (row) => siblings.get(`${taskOf(row).group} ${columns.index[row]}`);

// What no two sound methods can say of one instance.
const contradictions = [...siblings.values()].filter((rows) => {
  const said = rows.map(verdictOf);
  return said.includes("certified") && said.includes("falsified");
});

function median(values) {
  return quantile(values, 0.5);
}

function quantile(values, share) {
  if (!values.length) return NaN;
  const sorted = Float64Array.from(values).sort();
  const place = (sorted.length - 1) * share;
  const low = Math.floor(place);
  return sorted[low] + (place - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : NaN;
}

function count(rows, verdict) {
  let found = 0;
  for (const row of rows) if (verdictOf(row) === verdict) found++;
  return found;
}

function grouped(rows, key) {
  const found = new Map();
  for (const row of rows) {
    const name = key(row);
    if (found.has(name)) found.get(name).push(row);
    else found.set(name, [row]);
  }
  return found;
}
