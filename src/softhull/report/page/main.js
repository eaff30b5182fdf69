"use strict";

function drawAnswers() {
  const rows = selection();
  const here = columns.task.reduce((sum, task) => sum + (tasks[task].question === filter.question ? 1 : 0), 0);
  document.getElementById("count").textContent =
    rows.length === here ? `${whole(here)} instances` : `${whole(rows.length)} of ${whole(here)} instances`;
  cardsShown = CARDS;
  writeAddress();
  drawEmpty(rows);
  drawCards(rows);
  drawHeadline(rows);
  drawRadius(rows);
  drawRadii(rows);
  drawDatasets(rows);
  drawBrackets(rows);
  drawScatter(rows);
  drawCost(rows);
  drawDisagreements(rows);
  drawPictures(rows);
  drawInstances(rows);
}

addEventListener("hashchange", () => {
  if (!SIZE) return;
  readAddress();
  drawFilters(onFilter);
  drawAnswers();
});

let waiting = null;
function onFilter(typing = false) {
  clearTimeout(waiting);
  waiting = setTimeout(drawAnswers, typing ? 150 : 0);
}

const THEMES = ["auto", "light", "dark"];
const THEME_SIGNS = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" };
const darkWanted = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";

function showTheme() {
  document.documentElement.dataset.theme = theme === "auto" ? (darkWanted.matches ? "dark" : "light") : theme;
  document.getElementById("theme").textContent = THEME_SIGNS[theme];
}

function onTheme() {
  showTheme();
  if (SIZE) drawAnswers();
}

document.getElementById("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  onTheme();
});
darkWanted.addEventListener("change", onTheme);
document.getElementById("detail").addEventListener("click", (event) => {
  if (event.target === event.currentTarget) event.currentTarget.close();
});

document.getElementById("about").textContent = content.about;
showTheme();
drawReproduce();
if (SIZE) {
  drawAlarm();
  readAddress();
  drawFilters(onFilter);
  drawAnswers();
} else {
  section("headline", "Nothing answered yet", "The store holds no answered instance; run the campaign and write the report again.");
}
document.documentElement.dataset.ready = "yes";
