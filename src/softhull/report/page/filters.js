"use strict";

const NOTHING = { network: "", data: "", eps: "", method: "", verdict: "", score: "", text: "" };
const filter = { question: QUESTIONS[0], ...NOTHING };

// Filters live in the address behind the #: a link shows the same selection. What the page does not know is ignored.
function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const question = given.get("question");
  Object.assign(filter, { question: QUESTIONS.includes(question) ? question : QUESTIONS[0] }, NOTHING);
  const here = tasks.filter((task) => task.question === filter.question);
  const known = {
    network: here.map((task) => task.network),
    data: here.map((task) => task.data),
    eps: here.map((task) => String(task.eps)),
    method: here.map((task) => task.label),
    score: here.map((task) => task.score),
    verdict: verdicts,
  };
  for (const [name, values] of Object.entries(known)) if (values.includes(given.get(name))) filter[name] = given.get(name);
  filter.text = (given.get("text") ?? "").slice(0, 200);
}

function writeAddress() {
  const chosen = Object.entries(filter).filter(([name, value]) => value && !(name === "question" && value === QUESTIONS[0]));
  const text = new URLSearchParams(chosen).toString();
  if (text !== location.hash.slice(1)) history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}

function passes(row) {
  const task = taskOf(row);
  return (
    task.question === filter.question &&
    (!filter.network || task.network === filter.network) &&
    (!filter.data || task.data === filter.data) &&
    (!filter.eps || String(task.eps) === filter.eps) &&
    (!filter.method || task.label === filter.method) &&
    (!filter.score || task.score === filter.score) &&
    (!filter.verdict || verdictOf(row) === filter.verdict) &&
    (!filter.text || matches(row))
  );
}

// A number is an index; anything else is looked for in the message and the names.
function matches(row) {
  const text = filter.text.toLowerCase();
  if (/^\d+$/.test(text)) return columns.index[row] === Number(text);
  const label = /^label\s*[:=]?\s*(\d+)$/.exec(text);
  if (label) return columns.label[row] === Number(label[1]);
  const task = taskOf(row);
  return [messageOf(row), task.network, task.data, task.label].some((part) => part.toLowerCase().includes(text));
}

function selection() {
  const rows = [];
  for (let row = 0; row < SIZE; row++) if (passes(row)) rows.push(row);
  return rows;
}

function drawFilters(onchange) {
  const place = document.getElementById("filters");
  const here = tasks.filter((task) => task.question === filter.question);
  const tell = (name) => (value) => {
    filter[name] = value;
    onchange();
  };
  const several = (name, label, values) =>
    values.length > 1 ? choice(label, [["", "all"], ...values.map((v) => [String(v), String(v)])], filter[name], tell(name)) : null;
  const seen = new Set();
  for (let row = 0; row < SIZE; row++) if (taskOf(row).question === filter.question) seen.add(verdictOf(row));
  const search = element("input", {
    type: "search",
    placeholder: "index, label 7, message …",
    value: filter.text,
    "aria-label": "Search",
    oninput: () => {
      filter.text = search.value.trim();
      onchange(true);
    },
  });
  const tabs = QUESTIONS.map((question) =>
    element(
      "button",
      {
        type: "button",
        class: "tab",
        "aria-pressed": String(question === filter.question),
        onclick: () => {
          Object.assign(filter, { question }, NOTHING);
          drawFilters(onchange);
          onchange();
        },
      },
      QUESTION_NAMES[question] ?? question,
    ),
  );
  const reset = element(
    "button",
    {
      type: "button",
      id: "reset",
      onclick: () => {
        Object.assign(filter, NOTHING);
        drawFilters(onchange);
        onchange();
      },
    },
    "Reset",
  );
  place.replaceChildren(
    ...(QUESTIONS.length > 1 ? [element("div", { class: "tabs" }, tabs)] : []),
    element(
      "div",
      { class: "choices" },
      several("network", "Network", unique(here.map((task) => task.network))),
      several("data", "Data", unique(here.map((task) => task.data))),
      several("score", "Score", unique(here.map((task) => task.score).filter(Boolean))),
      several("eps", "Radius", unique(here.map((task) => task.eps)).sort((a, b) => a - b)),
      several("method", "Method", unique(here.map((task) => task.label))),
      several("verdict", "Verdict", verdicts.filter((verdict) => seen.has(verdict))),
      element("label", { class: "choice search" }, element("span", {}, "Search"), search),
      reset,
    ),
    element("output", { id: "count" }),
  );
}
