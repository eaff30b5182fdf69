"use strict";

// Files for the reader: every table as CSV, every chart as PNG.
function download(name, url) {
  const link = element("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

function fileName(text, ending) {
  const plain = text.toLowerCase().replace(/[^a-z0-9.]+/g, "-").replace(/^-+|-+$/g, "");
  return `${plain.slice(0, 60) || "softhull"}.${ending}`;
}

// Cells as text; a spreadsheet must not take one for a formula.
function csvCell(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csvText(head, rows) {
  return [head, ...rows].map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
}

function csvButton(name, make) {
  const save = () => {
    const url = URL.createObjectURL(new Blob([make()], { type: "text/csv" }));
    download(fileName(name, "csv"), url);
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  };
  return element("button", { type: "button", class: "save", "aria-label": `Save the table ${name} as CSV`, onclick: save }, "CSV");
}

function pngButton(name, canvas) {
  const save = () => {
    const copy = element("canvas", { width: canvas.width, height: canvas.height });
    const pen = copy.getContext("2d");
    pen.fillStyle = themeColour("raised");
    pen.fillRect(0, 0, copy.width, copy.height);
    pen.drawImage(canvas, 0, 0);
    download(fileName(name, "png"), copy.toDataURL("image/png"));
  };
  return element("button", { type: "button", class: "save", "aria-label": `Save the chart ${name} as PNG`, onclick: save }, "PNG");
}

// A table that needs no sorting, with its CSV.
function plainTable(name, head, rows, show = (value) => value, left = 1) {
  const cell = (tag) => (value, place) => element(tag, { class: place < left ? "left" : "", ...(tag === "th" ? { scope: "col" } : {}) }, value);
  return element(
    "div",
    { class: "tabular" },
    element(
      "div",
      { class: "scroll", tabIndex: 0, role: "group", "aria-label": name },
      element(
        "table",
        {},
        element("caption", {}, name),
        element("thead", {}, element("tr", {}, head.map(cell("th")))),
        element("tbody", {}, rows.map((row) => element("tr", {}, row.map((value, place) => cell("td")(show(value, place), place))))),
      ),
    ),
    csvButton(name, () => csvText(head, rows)),
  );
}
