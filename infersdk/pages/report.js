// What is said of a mark, when the pointer is over it or it has the focus; and the button for light and dark.
const tip = document.getElementById("tip");
const root = document.documentElement;
const MARKED = 'svg [aria-roledescription$="mark"][aria-label], [data-tip]';

const show = (mark, x, y) => {
  tip.textContent = mark.dataset.tip || mark.getAttribute("aria-label");
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = (y + 16 + box.height > innerHeight ? y - box.height - 12 : y + 16) + "px";
};

for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
  for (const row of table.tBodies[0].rows) {
    for (const cell of row.cells) cell.dataset.label = heads[cell.cellIndex];
  }
}

for (const mark of document.querySelectorAll(MARKED)) mark.setAttribute("tabindex", "0");

document.addEventListener("mousemove", (event) => {
  const mark = event.target.closest && event.target.closest(MARKED);
  if (mark) show(mark, event.clientX, event.clientY);
  else tip.hidden = true;
});

document.addEventListener("focusin", (event) => {
  const mark = event.target.closest(MARKED);
  if (!mark) {
    tip.hidden = true;
    return;
  }
  const box = mark.getBoundingClientRect();
  show(mark, box.right, box.bottom);
});

document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme:dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
