"""The style and the script of the HTML report."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

_LIGHT = """
--page:#f6f7f9; --card:#fff; --ink:#16181d; --soft:#5b6270; --line:#e3e6eb; --grid:#eceef2; --chip:#eef0f4;
--warn:#8a5a00; --warn-back:#fff5e0; --bad:#b3261e; --bad-back:#fdecea; --on:#fff;
--c0:#2a6fdb; --c1:#d9541e; --c2:#12906b; --c3:#8b46c9; --c4:#b8860b; --c5:#c2317a; --c6:#1792a4; --c7:#6b7280;
"""
_DARK = """
--page:#0f1115; --card:#181b21; --ink:#eceef2; --soft:#9aa3b2; --line:#2a2f38; --grid:#242932; --chip:#232831;
--warn:#f0c36a; --warn-back:#2c2413; --bad:#ff8a80; --bad-back:#331a19; --on:#0f1115;
--c0:#6ea8ff; --c1:#ff9466; --c2:#4ccfa3; --c3:#c49bf5; --c4:#e3bb52; --c5:#f58abb; --c6:#5fd0e0; --c7:#a3abb8;
"""

STYLE = (
    f":root{{{_LIGHT}color-scheme:light}}"
    f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{_DARK}color-scheme:dark}}}}"
    f":root[data-theme=dark]{{{_DARK}color-scheme:dark}}"
    + "".join(f".s{i}{{--c:var(--c{i % 8})}}" for i in range(64))
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:32px 20px 64px}
header{position:relative;margin-bottom:20px}
h1{font-size:26px;line-height:1.25;margin:2px 0 4px;overflow-wrap:anywhere}
h2{font-size:17px;margin:0 0 2px}
.brand{margin:0;color:var(--c0);font-weight:600;font-size:13px;letter-spacing:.04em}
.sub{margin:0;color:var(--soft);font-size:13.5px}
#theme{position:absolute;right:0;top:0;border:1px solid var(--line);background:var(--card);color:var(--ink);
border-radius:8px;width:36px;height:36px;font-size:17px;cursor:pointer}
ul{list-style:none;margin:0;padding:0}
.chips{display:flex;flex-wrap:wrap;gap:6px;margin-top:12px}
.chips li{background:var(--chip);border-radius:6px;padding:2px 9px;font-size:12.5px;color:var(--soft)}
.remark{margin:0 0 8px;padding:9px 14px;border-radius:8px;background:var(--warn-back);color:var(--warn);
font-size:13.5px;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:12px;margin:16px 0}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:12px}
.tile{padding:14px 16px}
.tile p{margin:0;color:var(--soft);font-size:12.5px}
.tile b{display:block;font-size:25px;font-weight:650;font-variant-numeric:tabular-nums;margin:2px 0 4px}
.tile small{font-size:13px;font-weight:500;color:var(--soft)}
.tile span{font-size:12px;color:var(--soft);overflow-wrap:anywhere}
.card{padding:20px 22px;margin:16px 0}
figure{margin:12px 0 4px}
svg{display:block;width:100%;height:auto;max-width:880px;margin:0 auto;font-family:inherit}
.grid{stroke:var(--grid);fill:none}
.axis{stroke:var(--soft);fill:none}
.tick{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}
.title{fill:var(--soft);font-size:12px}
.label{fill:var(--ink);font-size:12px}
.value{fill:var(--soft);font-size:12px;font-variant-numeric:tabular-nums}
.whisker{stroke:var(--c);stroke-width:1.5;opacity:.55;fill:none}
.leader{stroke:var(--c);opacity:.6;fill:none}
.dot{fill:var(--c)}
.mark{outline:none;cursor:default}
.mark text{font-size:10px;font-weight:650;text-anchor:middle;pointer-events:none}
.disc circle{fill:var(--c);stroke:var(--card);stroke-width:1.5}
.disc text{fill:var(--on)}
.ring circle{fill:var(--card);stroke:var(--c);stroke-width:2}
.ring text{fill:var(--c)}
.mark:hover circle,.mark:focus circle{stroke:var(--ink);stroke-width:2}
.part{fill:var(--c);outline:none}
.part:hover,.part:focus{filter:brightness(1.15)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;justify-content:center;font-size:12.5px;color:var(--soft)}
.key{display:inline-block;width:10px;height:10px;border-radius:3px;background:var(--c);margin-right:7px}
.badge{display:inline-block;min-width:19px;padding:0 4px;border-radius:10px;background:var(--chip);color:var(--soft);
font:650 11px/19px inherit;font-size:11px;font-style:normal;text-align:center}
.scroll{overflow-x:auto;margin-top:12px}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:550;font-size:12px;text-align:right;vertical-align:bottom;padding:6px 8px;
border-bottom:1px solid var(--line)}
td{text-align:right;padding:7px 8px;border-bottom:1px solid var(--grid);white-space:nowrap;vertical-align:top}
td small{display:block;color:var(--soft);font-size:11px}
th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}
td:nth-child(2){white-space:normal;min-width:230px}
tr.failed td{color:var(--soft)} tr.failed td:last-child{color:var(--bad);text-align:left}
.flag{background:var(--warn-back);color:var(--warn);border-radius:5px;padding:0 6px;font-size:11px;white-space:nowrap}
.reasons li{padding:8px 0;border-bottom:1px solid var(--grid);font-size:13.5px;overflow-wrap:anywhere}
.reasons li:last-child{border:0}
.method p{margin:6px 0 0;color:var(--soft);font-size:13.5px;max-width:85ch}
#tip{position:fixed;z-index:9;max-width:340px;padding:8px 11px;border-radius:8px;background:var(--ink);
color:var(--page);
font-size:12.5px;line-height:1.45;white-space:pre-line;pointer-events:none;box-shadow:0 4px 18px #0004}
@media print{#theme{display:none}.card,.tile{break-inside:avoid}}
"""
)

SCRIPT = """
const tip = document.getElementById("tip"), root = document.documentElement;
const show = (mark, x, y) => {
  tip.textContent = mark.dataset.tip; tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = (y + 16 + box.height > innerHeight ? y - box.height - 12 : y + 16) + "px";
};
document.addEventListener("mousemove", event => {
  const mark = event.target.closest && event.target.closest("[data-tip]");
  if (mark) show(mark, event.clientX, event.clientY); else tip.hidden = true;
});
document.addEventListener("focusin", event => {
  const mark = event.target.closest("[data-tip]");
  if (mark) { const box = mark.getBoundingClientRect(); show(mark, box.right, box.bottom); } else tip.hidden = true;
});
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme:dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
"""
