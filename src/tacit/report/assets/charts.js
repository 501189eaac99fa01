// Draws every figure of the page with Chart.js, lets readers hide series, choose a silo and open the data of a chart,
// follows the light or dark theme, and fits charts to paper.
(function () {
  "use strict";
  const PAPER = { wide: 660, half: 320, height: 690 }; // fits A4 and letter with the margins of the style sheet
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
  const MARKS = {
    circle: "circle", diamond: "rectRot", square: "rect", "triangle-up": "triangle", "triangle-down": "triangle",
    cross: "cross", x: "crossRot", star: "star",
  };
  const FEW_POINTS = 12; // lines with more points have no marks
  const LETTER = 6.6; // width of a letter, in pixels
  const root = document.documentElement;
  const drawn = []; // { chart, figure, place }

  // ---- numbers and names

  function fixed(value, digits) {
    return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }
  const FORMATS = {
    metric: function (value) {
      const size = Math.abs(value);
      if (size > 0 && size < 0.0005) { return value.toExponential(1); }
      return fixed(value, Number.isInteger(value) || size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3);
    },
    digits: function (value) { return Number(value.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 9 }); },
    share: function (value) { return fixed(100 * value, 1) + " %"; },
  };
  function format(name, value) { return value === null || value === undefined ? "–" : FORMATS[name || "metric"](value); }

  function shorten(text, longest) {
    const flat = String(text).split(/\s+/).join(" ");
    if (flat.length <= longest) { return flat; }
    const keep = Math.max(4, longest - 1);
    return flat.slice(0, Math.ceil(keep * 0.6)) + "…" + flat.slice(-Math.floor(keep * 0.4));
  }
  function shortened(labels, longest) {
    // cut in the middle, at the end or at the start: the first way that keeps names apart
    const ways = [
      function (text) { return shorten(text, longest); },
      function (text) { return text.length > longest ? text.slice(0, longest - 1) + "…" : text; },
      function (text) { return text.length > longest ? "…" + text.slice(1 - longest) : text; },
    ];
    const all = new Set(labels).size;
    const found = ways.map(function (way) { return labels.map(way); });
    return found.find(function (one) { return new Set(one).size === all; }) || found[0];
  }
  function wrapped(text, longest) {
    // lines of at most so many letters, broken between words
    return text.split(" ").reduce(function (lines, word) {
      const last = lines.at(-1);
      if (last && (last + " " + word).length <= longest) { return lines.slice(0, -1).concat(last + " " + word); }
      return lines.concat(shorten(word, longest));
    }, []);
  }
  function inBox(chart, text) { return shorten(text, Math.max(16, Math.floor(chart.width / LETTER) - 16)); }

  function color(name, alpha) {
    const found = getComputedStyle(root).getPropertyValue("--" + name).trim();
    return alpha ? found + alpha : found;
  }

  // ---- axes

  function axis(spec, more) {
    const ticks = { color: color("soft"), font: { size: 12 }, maxTicksLimit: root.clientWidth < 600 ? 5 : 7, maxRotation: 0, ...(more || {}).ticks };
    if (spec.whole) { ticks.precision = 0; }
    const made = {
      type: spec.log ? "logarithmic" : "linear",
      beginAtZero: Boolean(spec.zero),
      title: { display: Boolean(spec.title), text: spec.title, color: color("soft"), font: { size: 12 } },
      grid: { color: color("line"), drawTicks: false },
      border: { display: false },
      ...more,
      ticks: { padding: 6, ...ticks },
    };
    if (spec.log) {
      made.ticks.maxTicksLimit = 12;
      made.ticks.callback = function (value) {
        const lead = Number(String(value.toExponential()).split("e")[0]);
        return [1, 2, 5].includes(lead) ? FORMATS.digits(value) : null;
      };
    }
    return made;
  }

  function names(labels, longest, more, wrap) {
    // a place for each label; the full name is in the hover box
    const short = shortened(labels, longest());
    const small = labels.length > 45 ? 9 : labels.length > 31 ? 10 : 12;
    return {
      type: "linear",
      min: -0.6,
      max: labels.length - 0.4,
      offset: false,
      grid: { display: false, drawTicks: false },
      border: { display: false },
      ...more,
      ticks: {
        stepSize: 1, autoSkip: false, padding: 6, color: color("ink"), font: { size: small }, includeBounds: false,
        ...(more || {}).ticks,
        callback: function (value) {
          const label = labels[value], most = longest();
          if (label === undefined) { return null; }
          return wrap ? wrapped(label, most) : short[value];
        },
      },
      afterBuildTicks: function (scale) { scale.ticks = labels.map(function (_, index) { return { value: index }; }); },
    };
  }

  // ---- datasets

  function look(one) {
    const paint = color(one.color);
    return {
      label: one.name,
      borderColor: paint,
      backgroundColor: paint,
      borderWidth: 2.5,
      borderDash: one.dash,
      pointStyle: MARKS[one.mark] || "circle",
      pointRotation: one.mark === "triangle-down" ? 180 : 0,
      pointHoverRadius: 6,
      spanGaps: true,
    };
  }

  function pairs(x, y) { return x.map(function (value, index) { return { x: value, y: y[index] }; }); }

  function xOf(figure, one) { return one.x || figure.series[0].x; }

  function edges(one, x, behind) {
    // the band around a line: two lines of the same name, and the space between them
    if (!one.low) { return []; }
    const edge = { label: one.name, edge: true, borderWidth: 0, pointRadius: 0, pointHitRadius: 0, pointHoverRadius: 0, spanGaps: true, order: behind + 1 };
    return [{ ...edge, data: pairs(x, one.low) }, { ...edge, data: pairs(x, one.high), fill: "-1", backgroundColor: color(one.color, "26") }];
  }

  function lines(figure) {
    const band = figure.series.findIndex(function (one) { return one.color === "pale"; });
    const shown = figure.series.concat(figure.chosen ? [figure.chosen] : []);
    return {
      type: "line",
      data: {
        datasets: shown.map(function (one, index) {
          const x = xOf(figure, one);
          const made = { ...look(one), data: pairs(x, one.y), pointRadius: x.length <= FEW_POINTS ? 4 : 0 };
          if (one.color === "pale") { made.borderWidth = 1; made.pointRadius = 0; made.borderDash = []; }
          if (one.color === "pale" && index > band) { made.fill = band; made.backgroundColor = color("pale", "55"); }
          return { ...made, order: shown.length - index };
        }).concat(shown.flatMap(function (one) { return edges(one, xOf(figure, one), shown.length); })),
      },
      options: {
        scales: { x: axis(figure.x, { bounds: "data", grid: { display: false } }), y: axis(figure.y) },
        interaction: { mode: "nearest", axis: "x", intersect: false },
        plugins: {
          tooltip: {
            filter: function (item) { return !item.dataset.edge; },
            itemSort: function (a, b) { return b.datasetIndex - a.datasetIndex; },
            callbacks: {
              title: function (items) { return items.length ? (figure.x.title || "") + " " + FORMATS.digits(items[0].parsed.x) : ""; },
              label: function (item) { return inBox(item.chart, item.dataset.label) + ": " + format(figure.y.format, item.parsed.y); },
            },
          },
        },
      },
    };
  }

  function dots(figure, place) {
    const many = figure.rows.length > 31;
    const datasets = figure.series.map(function (one) {
      const red = new Set(one.red || []);
      const paint = one.values.map(function (_, row) { return color(red.has(row) ? "danger" : one.color); });
      return {
        ...look(one),
        data: one.values.map(function (value, row) { return { x: value, y: row }; }),
        showLine: false,
        clip: 10,
        pointRadius: many ? 4 : 6,
        pointHoverRadius: many ? 6 : 8,
        pointBorderWidth: 2,
        pointBorderColor: paint,
        pointBackgroundColor: one.hollow ? color("paper") : paint,
      };
    }).reverse(); // the last series is drawn on top
    if (figure.spans) {
      const ends = [];
      figure.spans.forEach(function (span, row) {
        if (span[0] === null || span[1] === null) { return; }
        ends.push({ x: span[0], y: row }, { x: span[1], y: row }, { x: NaN, y: NaN });
      });
      datasets.push({ data: ends, borderColor: color("rule"), borderWidth: 3, pointRadius: 0, pointHitRadius: 0, pointHoverRadius: 0 });
    }
    return {
      type: "scatter",
      data: { datasets: datasets.map(function (one) { return { showLine: true, ...one }; }) },
      options: {
        scales: {
          x: axis(figure.x, { grace: "3%" }),
          y: names(figure.rows, function () { return place.offsetWidth < 500 ? (figure.wrap ? 20 : 16) : 28; }, {
            reverse: true,
            ticks: { font: function (tick) { return { size: many ? 10 : 12, weight: tick.index === 0 && figure.rows[0] === "All silos" ? "bold" : "normal" }; } },
            grid: { color: color("line"), drawTicks: false },
          }, figure.wrap),
        },
        interaction: { mode: "nearest", axis: "y", intersect: false },
        plugins: {
          tooltip: {
            filter: function (item) { return item.dataset.label !== undefined; },
            callbacks: {
              title: function (items) { return items.length ? inBox(items[0].chart, figure.rows[items[0].parsed.y]) : ""; },
              label: function (item) { return inBox(item.chart, item.dataset.label) + ": " + format(figure.x.format, item.parsed.x); },
              footer: function (items) { return items.length && figure.notes ? figure.notes[items[0].parsed.y] : ""; },
            },
          },
        },
      },
    };
  }

  function bars(figure, place) {
    const amount = axis({ title: figure.unit, zero: true });
    const flat = figure.sideways;
    const place_of = names(figure.labels, function () { return flat ? (place.offsetWidth < 500 ? 16 : 28) : 12; }, {
      reverse: flat,
      ticks: figure.labels.length > 61 ? { display: false } : flat ? {} : { maxRotation: 60, color: color("soft") },
    });
    return {
      type: "bar",
      data: {
        datasets: [{
          data: figure.values.map(function (value, index) { return flat ? { x: value, y: index } : { x: index, y: value }; }),
          backgroundColor: color("accent"), barPercentage: 0.9, categoryPercentage: 0.8, minBarLength: 1, maxBarThickness: 60,
        }],
      },
      options: {
        indexAxis: flat ? "y" : "x",
        scales: flat ? { x: amount, y: place_of } : { x: place_of, y: amount },
        interaction: { mode: "nearest", axis: flat ? "y" : "x", intersect: false },
        plugins: {
          tooltip: {
            callbacks: {
              title: function (items) { return items.length ? inBox(items[0].chart, figure.labels[items[0].dataIndex]) : ""; },
              label: function (item) { return format("metric", figure.values[item.dataIndex]) + " " + figure.unit; },
            },
          },
        },
      },
    };
  }

  function middle(figure, index) { return (figure.edges[index] + figure.edges[index + 1]) / 2; }

  function histogram(figure) {
    const last = figure.edges.length - 1;
    return {
      type: "bar",
      data: {
        datasets: [{
          data: figure.values.map(function (count, index) { return { x: middle(figure, index), y: count }; }),
          backgroundColor: color("accent"), barPercentage: 1, categoryPercentage: 0.92,
        }],
      },
      options: {
        scales: {
          x: axis({ title: figure.x }, {
            offset: false, min: figure.edges[0], max: figure.edges[last], ticks: { includeBounds: false },
            grid: { drawTicks: false, color: function (tick) { return tick.tick && tick.tick.value === 0 ? color("ink") : "transparent"; } },
          }),
          y: axis({ title: figure.y, zero: true, whole: true }),
        },
        interaction: { mode: "nearest", axis: "x", intersect: false },
        plugins: {
          tooltip: {
            callbacks: {
              title: function (items) {
                const index = items.length ? items[0].dataIndex : 0;
                return format("metric", figure.edges[index]) + " to " + format("metric", figure.edges[index + 1]);
              },
              label: function (item) { return item.parsed.y + " " + figure.y; },
            },
          },
        },
      },
    };
  }

  // ---- shades

  function channels(hex) { return [1, 3, 5].map(function (at) { return parseInt(hex.slice(at, at + 2), 16); }); }

  function heat(figure, place) {
    const known = figure.values.flat().filter(function (value) { return value !== null; });
    const low = Math.min(...known), high = Math.max(...known);
    const n = figure.rows.length, m = figure.columns.length;
    const share = function (value) { return high > low ? (value - low) / (high - low) : 1; };
    const ends = [channels(color("faint")), channels(color("full"))];
    const shade = function (value) {
      if (value === null) { return "transparent"; }
      const mixed = ends[0].map(function (start, k) { return Math.round(start + share(value) * (ends[1][k] - start)); });
      return "rgb(" + mixed.join(",") + ")";
    };
    const cells = [];
    figure.values.forEach(function (row, y) { row.forEach(function (value, x) { cells.push({ x: x, y: y, v: value }); }); });
    const shown = function (value) { return figure.share ? format("share", value) : format("metric", value); };
    const gap = n <= 14 && m <= 12 ? 2 : 0;
    const numbers = {
      id: "numbers",
      afterDatasetsDraw: function (chart) {
        const area = chart.chartArea;
        if (!gap || area.width / m < 44) { return; } // a tap shows the number
        chart.ctx.save();
        chart.ctx.font = "11px " + FONT;
        chart.ctx.textAlign = "center";
        chart.ctx.textBaseline = "middle";
        chart.getDatasetMeta(0).data.forEach(function (cell, index) {
          const value = cells[index].v;
          if (value === null) { return; }
          const center = cell.getCenterPoint();
          chart.ctx.fillStyle = share(value) > 0.55 ? color("paper") : color("ink");
          chart.ctx.fillText(figure.share ? Math.round(100 * value) + " %" : shown(value), center.x, center.y);
        });
        chart.ctx.restore();
      },
    };
    const side = function (labels, longest, more) {
      const hidden = labels.length > 61;
      const found = names(labels, longest, { min: -0.5, max: labels.length - 0.5, ...more });
      found.ticks.display = !hidden;
      return found;
    };
    return {
      type: "matrix",
      data: {
        datasets: [{
          data: cells,
          backgroundColor: function (cell) { return cell.raw ? shade(cell.raw.v) : "transparent"; },
          width: function (cell) { return Math.max(1, (cell.chart.chartArea || { width: 0 }).width / m - gap); },
          height: function (cell) { return Math.max(1, (cell.chart.chartArea || { height: 0 }).height / n - gap); },
        }],
      },
      options: {
        scales: {
          x: side(figure.columns, function () { return 14; }, { position: "top", ticks: { maxRotation: 90, color: color("soft") } }),
          y: side(figure.rows, function () { return place.offsetWidth < 500 ? 12 : 20; }, { reverse: true, ticks: {} }),
        },
        interaction: { mode: "nearest", intersect: false },
        plugins: {
          tooltip: {
            callbacks: {
              title: function (items) {
                const cell = items.length ? items[0].raw : null;
                return cell ? [inBox(items[0].chart, figure.rows[cell.y]), inBox(items[0].chart, figure.columns[cell.x])] : "";
              },
              label: function (item) { return (shown(item.raw.v) + " " + figure.unit).trim(); },
            },
          },
        },
      },
      plugins: [numbers],
    };
  }

  const KINDS = { lines: lines, dots: dots, bars: bars, histogram: histogram, heat: heat };

  // ---- what all charts share

  function merged(config) {
    const tooltip = {
      backgroundColor: color("paper"), titleColor: color("ink"), bodyColor: color("ink"), footerColor: color("soft"),
      borderColor: color("rule"), borderWidth: 1, cornerRadius: 3, padding: 9, boxPadding: 5, usePointStyle: true,
      bodyFont: { size: 13 }, titleFont: { size: 13 }, footerFont: { size: 12, weight: "normal" }, animation: false,
    };
    const plugins = config.options.plugins;
    config.options = {
      ...config.options,
      animation: false,
      maintainAspectRatio: false,
      responsive: !root.classList.contains("on-paper"),
      layout: { padding: { right: 12, top: 6 } },
      plugins: { legend: { display: false }, tooltip: { ...tooltip, ...plugins.tooltip } },
    };
    return config;
  }

  function make(entry) {
    const hidden = new Set((entry.figure.series || []).filter(function (one) { return one.off && !entry.chart; }).map(function (one) { return one.name; }));
    if (entry.chart) {
      entry.chart.data.datasets.forEach(function (one, index) { if (!entry.chart.isDatasetVisible(index)) { hidden.add(one.label); } });
      entry.chart.destroy();
    }
    const config = merged(KINDS[entry.figure.kind](entry.figure, entry.place));
    config.data.datasets.forEach(function (one) { one.hidden = hidden.has(one.label); });
    entry.chart = new Chart(entry.place.querySelector("canvas"), config);
  }

  function toggle(button) {
    const shown = button.getAttribute("aria-pressed") !== "true";
    const scope = button.closest("figure") || button.closest("section");
    button.setAttribute("aria-pressed", String(shown));
    drawn.forEach(function (entry) {
      if (!scope.contains(entry.place)) { return; }
      entry.chart.data.datasets.forEach(function (one, index) {
        if (one.label === button.dataset.series) { entry.chart.setDatasetVisibility(index, shown); }
      });
      entry.chart.update();
    });
  }

  function chooser(entry) {
    const extra = entry.figure.extra;
    const label = document.createElement("label"), select = document.createElement("select");
    label.className = "choose";
    label.append(extra.label + " ", select);
    select.add(new Option("none", ""));
    Object.keys(extra.series).forEach(function (name) { select.add(new Option(shorten(name, 60), name)); });
    select.addEventListener("change", function () {
      const name = select.value;
      entry.figure.chosen = name && { name: name, color: "orange", dash: [], mark: "diamond", x: extra.x, y: extra.series[name] };
      make(entry);
    });
    entry.place.before(label);
  }

  // ---- the data of a chart as a table

  function dataOf(figure) {
    const wide = function (x) { return format("digits", x); };
    if (figure.kind === "lines") {
      const series = figure.series.concat(figure.chosen ? [figure.chosen] : []);
      const columns = series.map(function (one) { const x = xOf(figure, one); return new Map(x.map(function (value, k) { return [value, one.y[k]]; })); });
      const all = [...new Set(series.flatMap(function (one) { return xOf(figure, one); }))].sort(function (a, b) { return a - b; });
      return [[figure.x.title || "x", ...series.map(function (one) { return one.name; })]].concat(
        all.map(function (x) { return [wide(x), ...columns.map(function (column) { return format("digits", column.get(x)); })]; }));
    }
    if (figure.kind === "dots") {
      return [["", ...figure.series.map(function (one) { return one.name; })]].concat(
        figure.rows.map(function (row, k) { return [row, ...figure.series.map(function (one) { return format("digits", one.values[k]); })]; }));
    }
    if (figure.kind === "heat") {
      return [["", ...figure.columns]].concat(
        figure.rows.map(function (row, k) { return [row, ...figure.values[k].map(function (value) { return format(figure.share ? "share" : "digits", value); })]; }));
    }
    if (figure.kind === "bars") {
      return [["", figure.unit]].concat(figure.labels.map(function (label, k) { return [label, format("digits", figure.values[k])]; }));
    }
    return [[figure.x, figure.y]].concat(figure.values.map(function (count, k) {
      return [wide(figure.edges[k]) + " to " + wide(figure.edges[k + 1]), String(count)];
    }));
  }

  function fill(details, figure) {
    const rows = dataOf(figure), table = document.createElement("table"), scroll = document.createElement("div");
    rows.forEach(function (cells, number) {
      const row = (number ? table.tBodies[0] || table.createTBody() : table.createTHead()).insertRow();
      cells.forEach(function (text, column) {
        const cell = document.createElement(number && column ? "td" : "th");
        cell.textContent = text;
        if (cell.tagName === "TH") { cell.scope = number ? "row" : "col"; }
        row.append(cell);
      });
    });
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    scroll.append(table);
    details.className = "data table" + (rows.length > 31 ? " tall" : "");
    while (details.children.length > 1) { details.lastChild.remove(); }
    details.append(scroll);
  }

  // ---- the page

  function start(script) {
    const figure = JSON.parse(script.textContent), box = script.closest("figure");
    const entry = { figure: figure, place: box.querySelector(".chart"), chart: null };
    try {
      make(entry);
      if (figure.extra) { chooser(entry); }
      drawn.push(entry);
    } catch (error) {
      entry.place.textContent = "This chart could not be drawn; its data is below.";
      console.error(error);
    }
    const details = box.querySelector("details.data");
    details.addEventListener("toggle", function () { if (details.open) { fill(details, figure); } });
  }

  function toPaper() {
    root.classList.add("on-paper");
    document.querySelectorAll("details:not(.data)").forEach(function (part) {
      part.dataset.wasOpen = part.open ? "yes" : "";
      part.open = true;
    });
    drawn.forEach(function (entry) {
      make(entry);
      const wide = entry.place.closest(".half") === null;
      entry.chart.resize(wide ? PAPER.wide : PAPER.half, Math.min(entry.place.offsetHeight, PAPER.height));
    });
  }

  function toScreen() {
    root.classList.remove("on-paper");
    document.querySelectorAll("details:not(.data)").forEach(function (part) { part.open = Boolean(part.dataset.wasOpen); });
    drawn.forEach(make);
  }

  Chart.defaults.font.family = FONT;
  document.querySelectorAll("script[data-chart]").forEach(start);
  document.querySelectorAll(".legend button").forEach(function (button) {
    button.addEventListener("click", function () { toggle(button); });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () { drawn.forEach(make); });
  window.addEventListener("beforeprint", toPaper);
  window.addEventListener("afterprint", toScreen);
  root.dataset.charts = String(drawn.length);
})();
