// Draws every figure of the page into its place, fits it to screen and paper, and opens folded tables for printing.
(function () {
  "use strict";
  const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
  const PAPER = { wide: 660, half: 320, height: 690 }; // fits A4 and letter with the margins of the style sheet
  const charts = [];

  function scalable(place) {
    // lets the style sheet scale the picture on paper, even where no print event comes
    place.querySelectorAll("svg.main-svg").forEach(function (svg) {
      svg.setAttribute("viewBox", "0 0 " + svg.getAttribute("width") + " " + svg.getAttribute("height"));
    });
  }

  function draw(script) {
    const place = script.previousElementSibling;
    const figure = JSON.parse(script.textContent);
    try {
      Plotly.newPlot(place, figure.data, figure.layout, CONFIG);
      place.on("plotly_afterplot", function () { scalable(place); });
      scalable(place);
      charts.push(place);
    } catch (error) {
      place.textContent = "This chart could not be drawn; its numbers are in a table.";
      console.error(error);
    }
  }

  function toPaper() {
    document.querySelectorAll("details").forEach(function (part) {
      part.dataset.wasOpen = part.open ? "yes" : "";
      part.open = true;
    });
    charts.forEach(function (place) {
      const wide = place.closest(".half") === null;
      const height = Math.min(place.offsetHeight, PAPER.height);
      place.dataset.height = place.style.height;
      place.style.height = height + "px";
      Plotly.relayout(place, { width: wide ? PAPER.wide : PAPER.half, height: height });
    });
  }

  function toScreen() {
    document.querySelectorAll("details").forEach(function (part) { part.open = Boolean(part.dataset.wasOpen); });
    charts.forEach(function (place) {
      place.style.height = place.dataset.height;
      Plotly.relayout(place, { width: null, height: null, autosize: true });
    });
  }

  document.querySelectorAll("script[data-chart]").forEach(draw);
  window.addEventListener("beforeprint", toPaper);
  window.addEventListener("afterprint", toScreen);
  document.documentElement.dataset.charts = String(charts.length);
})();
