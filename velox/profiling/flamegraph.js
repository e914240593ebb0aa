(() => {
  const svg = document.documentElement;
  const pad = +svg.dataset.pad, charWidth = +svg.dataset.char, total = +svg.dataset.total;
  const drawn = +svg.getAttribute("height");
  const byId = id => document.getElementById(id);
  const detail = byId("detail"), query = byId("query");
  // Parents come before their children, and boxes of a row from left to right. Times are whole nanoseconds.
  const frames = Array.from(document.querySelectorAll("g.f"), g => ({
    g, short: g.dataset.short, long: g.dataset.long,
    start: +g.dataset.x, size: +g.dataset.w, depth: +g.dataset.d,
    title: g.querySelector("title").textContent, rect: g.querySelector("rect"), text: g.querySelector("text"),
  }));
  const root = frames[0];
  if (!root) return;
  const hint = detail.textContent;
  let zoom = root, width = 0;

  function label({ short, long }, w) {
    const room = Math.floor((w - 8) / charWidth);
    if (long.length <= room) return long;
    return room < 3 ? "" : short.length <= room ? short : short.slice(0, room - 1) + "…";
  }

  const gapped = w => w > 4 ? w - 1 : Math.max(w * 0.75, 0.3);

  function place(frame) {
    const end = frame.start + frame.size, zoomEnd = zoom.start + zoom.size;
    const above = frame.depth < zoom.depth && frame.start <= zoom.start && end >= zoomEnd;
    const inside = frame.depth >= zoom.depth && frame.start >= zoom.start && end <= zoomEnd;
    const scale = (width - 2 * pad) / zoom.size;
    const x = above ? pad : pad + (frame.start - zoom.start) * scale;
    const w = above ? width - 2 * pad : frame.size * scale;
    const shown = (above || inside) && w >= 0.3;
    frame.g.classList.toggle("hidden", !shown);
    frame.g.classList.toggle("above", above);
    if (!shown) return;
    frame.rect.setAttribute("x", x.toFixed(2));
    frame.rect.setAttribute("width", gapped(w).toFixed(2));
    frame.text.setAttribute("x", (x + 4).toFixed(2));
    frame.text.textContent = label(frame, w);
  }

  function layout() {
    // A tall picture gets a scroll bar, which takes its 15 px or so from the window.
    const bar = drawn > window.innerHeight ? 15 : 0;
    const height = Math.max(drawn, window.innerHeight - bar);
    width = Math.max(window.innerWidth - bar, 860);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    byId("box").setAttribute("x", width - pad - 250);
    byId("reset").setAttribute("x", width - pad - 266);
    byId("matched").setAttribute("x", width - pad - 266);
    frames.forEach(place);
  }

  function zoomTo(frame) {
    zoom = frame;
    svg.classList.toggle("zoomed", frame !== root);
    layout();
  }

  function search() {
    const wanted = query.value.trim();
    let pattern = null;
    try { pattern = new RegExp(wanted, "i"); }
    catch { pattern = new RegExp(wanted.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i"); }
    let matched = 0, end = -1;
    for (const frame of frames) {
      const hit = wanted !== "" && pattern.test(frame.title);
      frame.g.classList.toggle("hit", hit);
      // What a match calls is its own time already.
      if (hit && frame.start >= end) { matched += frame.size; end = frame.start + frame.size; }
    }
    svg.classList.toggle("searching", wanted !== "");
    byId("matched").textContent = wanted ? `${(100 * matched / total).toFixed(1)} % matched` : "";
  }

  for (const frame of frames) {
    frame.g.addEventListener("click", () => zoomTo(frame));
    frame.g.addEventListener("mouseenter", () => {
      detail.textContent = frame.title.replaceAll("\n", "  ·  ");
    });
    frame.g.addEventListener("mouseleave", () => { detail.textContent = hint; });
  }
  byId("reset").addEventListener("click", () => zoomTo(root));
  query.addEventListener("input", search);
  window.addEventListener("resize", layout);
  window.addEventListener("keydown", event => {
    if (event.key === "Escape") { query.value = ""; query.blur(); search(); zoomTo(root); }
    if (event.key === "/" && document.activeElement !== query) { event.preventDefault(); query.focus(); }
  });
  svg.classList.add("live");
  layout();
})();
