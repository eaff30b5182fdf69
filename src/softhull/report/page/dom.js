"use strict";

// Elements are made from text nodes alone: nothing of a store is ever read as HTML.
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "role" || name === "for") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

function section(id, title, hint, ...children) {
  const place = document.getElementById(id);
  place.hidden = false;
  place.replaceChildren(element("h2", {}, title), hint ? element("p", { class: "hint" }, hint) : "", ...children.flat(Infinity));
  return place;
}

function hideSection(id) {
  const place = document.getElementById(id);
  place.replaceChildren();
  place.hidden = true;
}

function choice(label, options, value, onchange) {
  const box = element(
    "select",
    { "aria-label": label, onchange: () => onchange(box.value) },
    options.map(([key, text]) => element("option", { value: key, selected: key === value }, text)),
  );
  return element("label", { class: "choice" }, element("span", {}, label), box);
}

function chip(kind, text = kind) {
  return element("span", { class: `chip ${kind}` }, text);
}

const NONE = "–";

function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (typeof value !== "number") return String(value); // a damaged store
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("-", "−");
  return (size >= 100 ? value.toFixed(1) : String(+value.toPrecision(digits))).replace("-", "−");
}

function whole(value) {
  return value.toLocaleString("en");
}

function percent(part, total) {
  return total ? `${((100 * part) / total).toFixed(1)} %` : NONE;
}

function seconds(value) {
  if (value === null || Number.isNaN(value)) return NONE;
  if (value < 1e-3) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toPrecision(3)} ms`;
  if (value < 120) return `${value.toPrecision(3)} s`;
  return value < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}
