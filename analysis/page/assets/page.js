"use strict";
(() => {
  const SVG = "svg[data-x]";
  const pairs = (text) => [...text.matchAll(/(-?[\d.]+),(-?[\d.]+)(?:,(-?[\d.e+-]+))?/g)].map((m) => m.slice(1).map(Number));

  // --- values under the pointer: paths are read back through the axes -------------------------------------------
  const axis = (told) => {
    const [scale, unit, low, high, start, end, ...label] = told.split(" ");
    return { scale, unit, low: +low, high: +high, start: +start, end: +end, label: label.join(" ") };
  };
  const bent = (a, v) => (a.scale === "log" ? Math.log10(v) : a.scale === "nines" ? -Math.log10(1 - v) : v);
  const value = (a, px) => {
    const low = bent(a, a.low);
    const at = low + ((bent(a, a.high) - low) * (px - a.start)) / (a.end - a.start);
    return a.scale === "log" ? 10 ** at : a.scale === "nines" ? 1 - 10 ** -at : at;
  };
  const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"]];
  const digits = (v) => {
    const [scale, prefix] = PREFIXES.find(([least]) => Math.abs(v) >= least) || [1, ""];
    return (v / scale).toLocaleString("en", { maximumSignificantDigits: Math.abs(v) >= 1000 ? 4 : 3 }) + prefix;
  };
  const shown = (a, v) => {
    if (a.scale === "nines") return "p" + Number((100 * v).toPrecision(v > 0.999 ? 5 : 4));
    if (a.unit === "share") return digits(100 * v) + "%";
    if (a.unit === "clock") return digits(v) + " s";
    if (a.unit === "s") return v >= 1 ? digits(v) + " s" : v >= 1e-3 ? digits(v * 1e3) + " ms" : digits(v * 1e6) + " µs";
    if (a.unit === "change") return signed(100 * (v - 1)) + "%";
    if (a.unit === "points") return signed(100 * v) + " pp";
    return digits(v) + (a.unit === "times" ? "×" : "");
  };
  const signed = (v) => (v > 0 ? "+" : "") + digits(v);

  const plots = new WeakMap();
  const plot = (svg) => {
    if (!plots.has(svg)) {
      const series = [...svg.querySelectorAll("[data-name]")].map((mark) => ({
        name: mark.dataset.name,
        at: pairs(mark.dataset.at ?? mark.getAttribute("d")).sort((a, b) => a[0] - b[0]),
      }));
      const y = svg.dataset.y && axis(svg.dataset.y); // a forest has rows instead
      plots.set(svg, { x: axis(svg.dataset.x), y, series: series.filter((s) => s.at.length) });
    }
    return plots.get(svg);
  };

  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "status");
  document.body.append(tip);
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  cursor.setAttribute("r", "5");
  cursor.setAttribute("class", "cursor");
  const hide = () => {
    tip.hidden = true;
    cursor.remove();
  };
  hide();

  const show = (svg, one, [x, y, told]) => {
    const p = plot(svg);
    tip.replaceChildren();
    const name = document.createElement("b");
    name.textContent = one.name;
    const known = (a, px) => `${a.label}: ${shown(a, told === undefined || Number.isNaN(told) ? value(a, px) : told)}`;
    if (p.y) tip.append(name, `${p.x.label}: ${shown(p.x, value(p.x, x))}`, document.createElement("br"), known(p.y, y));
    else tip.append(name, known(p.x, x));
    tip.hidden = false;
    cursor.setAttribute("cx", x);
    cursor.setAttribute("cy", y);
    svg.append(cursor);
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const left = Math.min(box.left + x * scale + 12, innerWidth - tip.offsetWidth - 8);
    const top = box.top + y * scale - tip.offsetHeight - 12;
    tip.style.left = `${Math.max(8, left) + scrollX}px`;
    tip.style.top = `${(top < 4 ? box.top + y * scale + 16 : top) + scrollY}px`;
  };

  document.addEventListener("pointermove", (event) => {
    const svg = event.target.closest && event.target.closest(SVG);
    if (!svg) return hide();
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = null, least = 40 ** 2;
    for (const one of plot(svg).series)
      for (const at of one.at) {
        const off = (at[0] - x) ** 2 + (at[1] - y) ** 2;
        if (off < least) [best, least] = [[one, at], off];
      }
    if (best) show(svg, ...best);
    else hide();
  });

  // Arrow keys on a focused figure: left and right along a series (or a row), up and down to another one. The first
  // key shows where one is: at the beginning, or at the value of the first row.
  const places = new WeakMap();
  const STEP = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  document.addEventListener("keydown", (event) => {
    const figure = document.activeElement;
    const svg = figure && figure.tagName === "FIGURE" && figure.querySelector(SVG);
    if (event.key === "Escape") hide();
    if (!svg || !STEP[event.key]) return;
    const series = plot(svg).series;
    if (!series.length) return;
    event.preventDefault();
    const [down, right] = STEP[event.key];
    const before = places.get(svg);
    let [line, share] = before || [0, plot(svg).y ? 0 : 0.5];
    if (before) line = (line + down + series.length) % series.length;
    const at = series[line].at;
    if (before) share = Math.min(1, Math.max(0, share + right / Math.max(1, Math.min(60, at.length - 1))));
    places.set(svg, [line, share]);
    show(svg, series[line], at[Math.round(share * (at.length - 1))]);
  });
  document.addEventListener("focusout", hide);

  // --- tables: a click on a heading sorts --------------------------------------------------------------------------
  const key = (row, column) => {
    const cell = row.cells[column];
    if (!cell || cell.dataset.v === "") return null;
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  const sort = (table, column, heading) => {
    const down = heading.getAttribute("aria-sort") === "descending";
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => (a === null ? 1 : b === null ? -1 : down ? compare(a, b) : compare(b, a)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };
  for (const table of document.querySelectorAll("table.sortable"))
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      if (!heading.textContent) return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = heading.textContent;
      heading.replaceChildren(button);
      button.addEventListener("click", () => sort(table, column, heading));
    });

  // --- theme: system, light, dark -------------------------------------------------------------------------------------
  const theme = document.getElementById("theme");
  const THEMES = ["system", "light", "dark"];
  const kept = () => {
    try {
      return localStorage.getItem("loadgen-theme");
    } catch {
      return null; // a page from a file may not be allowed to remember anything
    }
  };
  const apply = (name) => {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    theme.textContent = `Theme: ${name}`;
    theme.dataset.now = name;
  };
  theme.hidden = false;
  apply(THEMES.includes(kept()) ? kept() : "system");
  theme.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(theme.dataset.now) + 1) % THEMES.length];
    apply(next);
    try {
      localStorage.setItem("loadgen-theme", next);
    } catch {
      // as above
    }
  });
})();
