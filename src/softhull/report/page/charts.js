"use strict";

const drawn = new Map();

function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function methodColour(label) {
  return themeColour(`series-${seriesOf(label, filter.question)}`);
}

// Colours of the theme are written as #rrggbb.
function faded(colour, share) {
  return colour + Math.round(255 * share).toString(16).padStart(2, "0");
}

function axis(title, more = {}) {
  return {
    title: { display: true, text: title, color: themeColour("soft") },
    grid: { color: themeColour("grid") },
    border: { color: themeColour("line") },
    ticks: { color: themeColour("soft"), maxRotation: 0, autoSkipPadding: 12 },
    ...more,
  };
}

function chart(key, type, data, options, height = 300) {
  drawn.get(key)?.destroy();
  const canvas = element("canvas", { role: "img", "aria-label": options.label });
  const frame = element("div", { class: "chart" }, canvas);
  frame.style.height = `${height}px`;
  const legend = { labels: { color: themeColour("text"), usePointStyle: true, boxHeight: 7, padding: 14 }, ...options.legend };
  const settings = {
    type,
    data,
    options: {
      animation: false,
      responsive: true,
      maintainAspectRatio: false,
      normalized: true,
      interaction: options.interaction ?? { mode: "nearest", intersect: false },
      onClick: options.onClick,
      scales: options.scales,
      plugins: {
        legend,
        title: { display: Boolean(options.title), text: options.title, color: themeColour("text"), align: "start" },
        tooltip: {
          backgroundColor: themeColour("raised"),
          titleColor: themeColour("text"),
          bodyColor: themeColour("text"),
          borderColor: themeColour("line"),
          borderWidth: 1,
          usePointStyle: true,
          callbacks: options.tooltip ?? {},
        },
      },
    },
    plugins: options.plugins ?? [],
  };
  // A chart measures its place, so it is drawn once it has one.
  queueMicrotask(() => {
    if (frame.isConnected) drawn.set(key, new Chart(canvas, settings));
  });
  return element("div", { class: "drawing" }, frame, pngButton(options.label, canvas));
}

Chart.defaults.font.family = "system-ui, sans-serif";

// The diagonal on which two methods find the same.
const diagonal = {
  id: "diagonal",
  beforeDatasetsDraw(made) {
    const { ctx, chartArea: area, scales } = made;
    const low = Math.max(scales.x.min, scales.y.min);
    const high = Math.min(scales.x.max, scales.y.max);
    if (!(low < high)) return;
    ctx.save();
    ctx.beginPath();
    ctx.rect(area.left, area.top, area.width, area.height);
    ctx.clip();
    ctx.beginPath();
    ctx.setLineDash([5, 4]);
    ctx.strokeStyle = themeColour("soft");
    ctx.moveTo(scales.x.getPixelForValue(low), scales.y.getPixelForValue(low));
    ctx.lineTo(scales.x.getPixelForValue(high), scales.y.getPixelForValue(high));
    ctx.stroke();
    ctx.restore();
  },
};
