"use strict";

const CARDS = 12;
let cardsShown = CARDS;

function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

function inputPicture(row) {
  const set = content.pictures.sets[taskOf(row).pictures];
  const found = set?.inputs[columns.index[row]];
  return found ? { shape: set.shape, pixels: bytes(found) } : null;
}

function worstPicture(row) {
  const found = content.pictures.worst[row];
  return found ? { shape: content.pictures.sets[taskOf(row).pictures].shape, pixels: bytes(found) } : null;
}

function canvasOf([height, width, colours], colourAt, text) {
  const canvas = element("canvas", { width, height, role: "img", "aria-label": text, title: text });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(width, height);
  for (let pixel = 0; pixel < width * height; pixel++) image.data.set([...colourAt(pixel, colours), 255], 4 * pixel);
  pen.putImageData(image, 0, 0);
  return canvas;
}

function drawPicture({ shape, pixels }, text) {
  return canvasOf(shape, (pixel, colours) => (colours === 3 ? pixels.subarray(3 * pixel, 3 * pixel + 3) : [0, 0, 0].fill(pixels[pixel])), text);
}

// What was added in warm, what was taken away in cold colours, the largest change at full strength.
function drawChange(before, after) {
  const largest = largestChange(before, after);
  const at = (pixel, colours) => {
    let sum = 0;
    for (let c = 0; c < colours; c++) sum += after.pixels[colours * pixel + c] - before.pixels[colours * pixel + c];
    const share = Math.max(-1, Math.min(1, sum / colours / largest));
    const strength = Math.abs(share);
    const full = share > 0 ? [214, 96, 36] : [38, 110, 190];
    return full.map((value) => 246 + strength * (value - 246));
  };
  return canvasOf(before.shape, at, `change of the input, at most ${largest} of 255`);
}

function largestChange(before, after) {
  return Math.max(1, before.pixels.reduce((most, value, place) => Math.max(most, Math.abs(after.pixels[place] - value)), 0));
}

// What the colours of a change mean, in steps of the 255 that black and white are apart.
function changeScale(before, after) {
  const largest = largestChange(before, after);
  return element("div", { class: "scale" }, `−${largest}`, element("i"), `+${largest} of 255`);
}

function pictureStrip(row) {
  const [input, worst] = [inputPicture(row), worstPicture(row)];
  const figure = (drawing, text) => element("figure", {}, drawing, element("figcaption", {}, text));
  const strip = [];
  const named = (text, number_) => (number_ === null || number_ === undefined ? text : `${text}: ${number_}`);
  if (input) strip.push(figure(drawPicture(input, "the input"), named("input", columns.predicted[row])));
  if (worst) strip.push(figure(drawPicture(worst, "the worst input found"), named(verdictOf(row) === "falsified" ? "counterexample" : "worst found", columns.new_class[row])));
  if (input && worst) strip.push(figure(drawChange(input, worst), "change"));
  if (!strip.length) return null;
  const parts = [element("div", { class: "strip" }, strip)];
  if (input && worst) parts.push(changeScale(input, worst));
  return element("div", {}, parts);
}

// The class that a counterexample is taken for.
function turned(row) {
  const found = columns.new_class[row];
  return found === null || found === columns.label[row] ? "" : ` → ${found}`;
}

function drawPictures(rows) {
  const withWorst = rows.filter((row) => content.pictures.worst[row]);
  const shown = withWorst.length ? withWorst : rows.filter((row) => inputPicture(row));
  if (!shown.length) return hideSection("pictures");
  const harm = (row) => (isScore(taskOf(row).question) && taskOf(row).worst_when === "high" ? -1 : 1) * (columns.attack[row] ?? 0);
  // Every input once, where it fared worst.
  const once = grouped([...shown].sort((a, b) => harm(a) - harm(b)), (row) => `${taskOf(row).pictures} ${columns.index[row]}`);
  const order = [...once.values()].map(([worst]) => worst);
  const cards = order.slice(0, cardsShown).map((row) => {
    const task = taskOf(row);
    return element(
      "button",
      { type: "button", class: "picture", onclick: () => showDetail(row) },
      pictureStrip(row),
      element("span", {}, `input ${columns.index[row]}, label ${columns.label[row]}${turned(row)}`, chip(verdictOf(row))),
      element("small", {}, `${task.network}${task.score ? ` · ${task.score}` : ""} · ${number(task.eps)} · ${task.label}`),
    );
  });
  const more = element(
    "button",
    {
      type: "button",
      class: "more",
      hidden: order.length <= cardsShown,
      onclick: () => {
        cardsShown += 2 * CARDS;
        drawPictures(rows);
      },
    },
    `Show more of ${whole(order.length)}`,
  );
  section(
    "pictures",
    "Inputs and worst inputs",
    `Every input where it fared worst, the worst first. ${content.pictures.note}`.trim(),
    element("div", { class: "pictures" }, cards),
    more,
  );
}
