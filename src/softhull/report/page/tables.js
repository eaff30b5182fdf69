"use strict";

const PAGE = 25;

// A table sorted by a click on a heading, one page at a time. Columns: {title, value(item), show(item), left, hint, wide}.
// On a phone a stacked table shows every line as a block, the wide cells across it.
function sortableTable({ name = "", columns: fields, items, sort = null, descending = false, onclick = null, page = PAGE, caption, stacked = false }) {
  const state = { sort, descending, first: 0 };
  const body = element("tbody");
  const head = element("tr");
  const pager = element("div", { class: "pager" });
  let order = items;

  function compare(a, b) {
    const [x, y] = [a, b].map((item) => fields[state.sort].value(item));
    if (x === y) return 0;
    if (x === null || Number.isNaN(x)) return 1; // what is not known comes last in both directions
    if (y === null || Number.isNaN(y)) return -1;
    return (x < y ? -1 : 1) * (state.descending ? -1 : 1);
  }

  function draw() {
    if (state.sort !== null) order = [...items].sort(compare);
    head.replaceChildren(
      ...fields.map((field, place) =>
        element(
          "th",
          {
            class: field.left ? "left" : "",
            scope: "col",
            "aria-sort": place === state.sort ? (state.descending ? "descending" : "ascending") : "none",
          },
          element(
            "button",
            {
              type: "button",
              title: field.hint ?? `Sort by ${field.title}`,
              onclick: () => {
                state.descending = place === state.sort ? !state.descending : false;
                state.sort = place;
                state.first = 0;
                draw();
              },
            },
            field.title,
          ),
        ),
      ),
    );
    body.replaceChildren(
      ...order.slice(state.first, state.first + page).map((item) => {
        const cells = fields.map((field) => element("td", { class: `${field.left ? "left" : ""} ${field.wide ? "wide" : ""}`, "data-title": field.title }, (field.show ?? field.value)(item)));
        const row = element("tr", {}, cells);
        if (onclick) {
          row.tabIndex = 0;
          row.className = "link";
          row.addEventListener("click", () => onclick(item));
          row.addEventListener("keydown", (event) => event.key === "Enter" && onclick(item));
        }
        return row;
      }),
    );
    drawPager();
  }

  function turn(first) {
    state.first = Math.max(0, Math.min(first, Math.floor((order.length - 1) / page) * page));
    draw();
  }

  function drawPager() {
    pager.hidden = order.length <= page;
    const last = Math.min(state.first + page, order.length);
    const arrow = (text, label, to, off) =>
      element("button", { type: "button", "aria-label": label, disabled: off, onclick: () => turn(to) }, text);
    pager.replaceChildren(
      arrow("«", "First page", 0, state.first === 0),
      arrow("‹", "Previous page", state.first - page, state.first === 0),
      element("span", {}, `${whole(state.first + 1)} – ${whole(last)} of ${whole(order.length)}`),
      arrow("›", "Next page", state.first + page, last === order.length),
      arrow("»", "Last page", order.length, last === order.length),
    );
  }

  draw();
  const table = element("table", { class: stacked ? "stack" : "" }, element("caption", {}, caption ?? ""), element("thead", {}, head), body);
  if (!caption) table.firstChild.remove();
  const title = name || caption || "table";
  const csv = () => csvText(fields.map((field) => field.title), order.map((item) => fields.map((field) => field.value(item))));
  return element(
    "div",
    { class: "tabular" },
    element("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": title }, table),
    pager,
    csvButton(title, csv),
  );
}
