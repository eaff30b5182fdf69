"use strict";

function card(value, text, kind = "") {
  return element("div", { class: `card ${kind}` }, element("strong", {}, value), element("span", {}, text));
}

function drawCards() {
  const place = document.getElementById("cards");
  const all = [...Array(SIZE).keys()];
  const robust = all.filter((row) => !isScore(taskOf(row).question));
  const scores = all.length - robust.length;
  const cpu = columns.cpu.reduce((sum, value) => sum + value, 0);
  const cards = [card(whole(SIZE), `instances in ${whole(tasks.length)} tasks`)];
  if (robust.length) {
    cards.push(card(percent(count(robust, "certified"), robust.length), `of ${whole(robust.length)} certified robust`, "certified"));
    cards.push(card(percent(count(robust, "falsified"), robust.length), "falsified by an attack", "falsified"));
    cards.push(card(percent(count(robust, "unknown"), robust.length), "unknown", "unknown"));
  }
  if (scores) cards.push(card(whole(count(all, "bounded")), "scores bounded", "bounded"));
  const errors = count(all, "error");
  if (errors) cards.push(card(whole(errors), "errors", "error"));
  if (content.unanswered) cards.push(card(whole(content.unanswered), "asked, not yet answered", "unknown"));
  cards.push(card(seconds(cpu), "CPU time in all"));
  place.replaceChildren(...cards);
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

function drawHeadline(rows) {
  const byTask = [...grouped(rows, (row) => columns.task[row])].map(([number_, members]) => ({ task: tasks[number_], rows: members }));
  const score = isScore(filter.question);
  const total = (item) => item.rows.length;
  const of = (verdict) => ({
    title: verdict,
    value: (item) => count(item.rows, verdict),
    show: (item) => whole(count(item.rows, verdict)),
  });
  const average = (name) => ({
    title: name,
    value: (item) => mean(item.rows.map((row) => columns[name][row])),
    show: (item) => number(mean(item.rows.map((row) => columns[name][row]))),
    hint: `Mean ${name} over the instances`,
  });
  const present = (verdict) => rows.some((row) => verdictOf(row) === verdict);
  const names = [
    { title: "network", value: ({ task }) => task.network, left: true, wide: true },
    ...(unique(tasks.map((task) => task.data)).length > 1 ? [{ title: "data", value: ({ task }) => task.data, left: true, wide: true }] : []),
    ...(score ? [{ title: "score", value: ({ task }) => task.score, left: true }] : []),
    { title: "radius", value: ({ task }) => task.eps, show: ({ task }) => number(task.eps) },
    { title: "method", value: ({ task }) => task.label, show: ({ task }) => methodName(task.label), left: true, wide: true },
    { title: "instances", value: total, show: (item) => whole(total(item)) },
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
    title: "CPU, median",
    value: (item) => median(item.rows.map((row) => columns.cpu[row])),
    show: (item) => seconds(median(item.rows.map((row) => columns.cpu[row]))),
    hint: "Median CPU time of an instance",
  };
  section(
    "headline",
    "At a glance",
    score
      ? "Means over the instances: the score of the input itself, the worst score an attack found, and the certified bound no perturbed input can pass."
      : "One line per question and method. Certified: no perturbed input changes the class. Falsified: a counterexample was found and replayed.",
    sortableTable({
      columns: [...names, ...answers, ...(present("error") ? [of("error")] : []), cost],
      items: byTask,
      page: 100,
      caption: "One line per task",
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
