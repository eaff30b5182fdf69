"use strict";

function card(value, text, kind = "") {
  return element("div", { class: `card ${kind}` }, element("strong", {}, value), element("span", {}, text));
}

// What the selection holds. Shares of verdicts and mean scores are shown for one task alone: one network, method and
// radius; of several, the table below has a line for each.
function drawCards(rows) {
  const chosen = unique(rows.map((row) => columns.task[row])).map((number_) => tasks[number_]);
  const several = (values, one, many) => {
    const found = unique(values.filter((value) => value !== null));
    return found.length ? [card(found.length === 1 ? String(found[0]) : whole(found.length), found.length === 1 ? one : many)] : [];
  };
  const cards = [
    ...several(chosen.map((task) => task.network), "network", "networks"),
    ...several(chosen.map((task) => task.label), "method", "methods"),
    ...several(chosen.map((task) => task.eps), "radius", "radii"),
    card(whole(unique(rows.map((row) => `${taskOf(row).data} ${columns.index[row]}`)).length), "inputs"),
  ];
  if (chosen.length === 1 && !filter.verdict && !filter.text) {
    if (isScore(filter.question)) {
      const sides = { clean: "mean score, unperturbed", attack: "mean score, attacked", bound: "mean score, certified" };
      for (const [name, text] of Object.entries(sides)) cards.push(card(number(mean(rows.map((row) => columns[name][row]))), text, "bounded"));
    } else {
      for (const verdict of ["certified", "falsified", "unknown"]) cards.push(card(percent(count(rows, verdict), rows.length), VERDICT_WORDS[verdict], verdict));
    }
  }
  const errors = count(rows, "error");
  if (errors) cards.push(card(whole(errors), "errors", "error"));
  if (content.unanswered) cards.push(card(whole(content.unanswered), "asked, not yet answered", "unknown"));
  cards.push(card(seconds(rows.reduce((sum, row) => sum + columns.cpu[row], 0)), "CPU time in all"));
  document.getElementById("cards").replaceChildren(...cards);
}

function drawEmpty(rows) {
  if (rows.length) return hideSection("empty");
  section("empty", "Nothing passes these filters", "Change or reset the filters above to see answers again.");
}

function drawAlarm() {
  const place = document.getElementById("alarm");
  place.hidden = !contradictions.length;
  if (!contradictions.length) return;
  const [first] = contradictions;
  const task = taskOf(first[0]);
  place.replaceChildren(
    element("strong", {}, `${whole(contradictions.length)} contradiction${contradictions.length > 1 ? "s" : ""}. `),
    `One method certified what another falsified, for example input ${columns.index[first[0]]} of ${task.data} on ` +
      `${task.network} at radius ${task.eps}. One of the two is wrong; please report it.`,
  );
}

const VERDICT_WORDS = { certified: "certified: stays the class", falsified: "falsified: a counterexample", unknown: "undecided" };
const SIDE_NAMES = {
  false: { attack: "margin, attacked", bound: "margin, certified", clean: "margin, unperturbed" },
  true: { attack: "score, attacked", bound: "score, certified", clean: "score, unperturbed" },
};
const sideName = (name) => SIDE_NAMES[isScore(filter.question)][name];

// What is asked of a class, in words.
function propertyName(task) {
  return { all: "stays the class", "runner-up": "the runner-up never wins", targets: "no target class wins" }[task.property] ?? task.property ?? NONE;
}

function drawHeadline(rows) {
  if (!rows.length) return hideSection("headline");
  const byTask = [...grouped(rows, (row) => columns.task[row])].map(([number_, members]) => ({ task: tasks[number_], rows: members }));
  const score = isScore(filter.question);
  const total = (item) => item.rows.length;
  const of = (verdict) => ({
    title: verdict,
    value: (item) => count(item.rows, verdict),
    show: (item) => whole(count(item.rows, verdict)),
  });
  const average = (name) => ({
    title: sideName(name),
    value: (item) => mean(item.rows.map((row) => columns[name][row])),
    show: (item) => number(mean(item.rows.map((row) => columns[name][row]))),
    hint: `Mean over the instances: ${sideName(name)}`,
  });
  const present = (verdict) => rows.some((row) => verdictOf(row) === verdict);
  const names = [
    { title: "network", value: ({ task }) => task.network, left: true, wide: true },
    ...(unique(tasks.map((task) => task.data)).length > 1 ? [{ title: "data", value: ({ task }) => task.data, left: true, wide: true }] : []),
    ...(score ? [{ title: "score", value: ({ task }) => task.score, left: true }] : []),
    { title: "radius", value: ({ task }) => task.eps, show: ({ task }) => number(task.eps) },
    { title: "method", value: ({ task }) => task.label, show: ({ task }) => methodName(task.label), left: true, wide: true },
    { title: "inputs", value: total, show: (item) => whole(total(item)) },
  ];
  const answers = score
    ? [average("clean"), average("attack"), average("bound")]
    : [
        {
          title: "certified %",
          value: (item) => count(item.rows, "certified") / total(item),
          show: (item) => shareBar(item.rows),
          wide: true,
        },
        ...["certified", "falsified", "unknown", "misclassified"].map(of),
      ];
  const cost = {
    title: "CPU per input, median",
    value: (item) => median(item.rows.map((row) => columns.cpu[row])),
    show: (item) => seconds(median(item.rows.map((row) => columns.cpu[row]))),
    wide: true,
    hint: "Median CPU time of an input; a stage that works on several inputs shares its time among them",
  };
  section(
    "headline",
    "At a glance",
    score
      ? "Means over the instances: the score of the input itself, the worst score an attack found, and the certified bound no perturbed input can pass."
      : "One line per network, radius and method. Certified: no perturbed input changes the class. Falsified: a counterexample was found and replayed.",
    sortableTable({
      columns: [...names, ...answers, ...(present("error") ? [of("error")] : []), cost],
      items: byTask,
      page: 100,
      caption: "At a glance",
      stacked: true,
    }),
  );
}

function methodName(label, question = filter.question) {
  const dot = element("i", { class: "dot" });
  dot.style.background = `var(--series-${seriesOf(label, question)})`;
  return element("span", { class: "method" }, dot, label);
}

function shareBar(rows) {
  const bar = element("span", { class: "bar", "aria-hidden": "true" });
  for (const verdict of ["certified", "unknown", "falsified", "misclassified", "error"]) {
    const share = count(rows, verdict) / rows.length;
    if (!share) continue;
    const part = element("i", { class: verdict, title: `${verdict} ${(100 * share).toFixed(1)} %` });
    part.style.width = `${100 * share}%`;
    bar.append(part);
  }
  return element("span", { class: "share" }, bar, element("b", {}, percent(count(rows, "certified"), rows.length)));
}
