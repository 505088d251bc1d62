// An image goes to /predict, and comes back drawn; the statistics are asked for once a second.
const byId = (id) => document.getElementById(id);
const message = byId("message");
const colours = ["#2a6fdb", "#d9541e", "#12906b", "#8b46c9", "#b8860b", "#c2317a", "#1792a4", "#6b7280"];

const headers = () => (byId("key").value ? { "X-API-Key": byId("key").value } : {});

const say = (text, bad = false) => {
  message.textContent = text;
  message.classList.toggle("bad", bad);
};

const row = (body, cells) => {
  const line = body.insertRow();
  for (const cell of cells) line.insertCell().textContent = cell;
};

const draw = (bitmap, results) => {
  const canvas = byId("canvas");
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  const pen = canvas.getContext("2d");
  pen.drawImage(bitmap, 0, 0);
  const width = Math.max(2, Math.round(Math.max(bitmap.width, bitmap.height) / 400));
  pen.lineWidth = width;
  pen.font = `${width * 7}px system-ui, sans-serif`;
  pen.textBaseline = "top";
  for (const found of results) {
    const colour = colours[(found.class_id ?? 0) % colours.length];
    pen.strokeStyle = pen.fillStyle = colour;
    for (const polygon of found.polygons ?? []) {
      pen.beginPath();
      polygon.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
      pen.closePath();
      pen.globalAlpha = 0.35;
      pen.fill();
      pen.globalAlpha = 1;
    }
    if (Array.isArray(found.polygon)) {
      pen.beginPath();
      found.polygon.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
      pen.closePath();
      pen.stroke();
    }
    for (const [x, y] of found.keypoints ?? []) pen.fillRect(x - width, y - width, 2 * width, 2 * width);
    if (!found.xyxy) continue;
    const [x1, y1, x2, y2] = found.xyxy;
    pen.strokeRect(x1, y1, x2 - x1, y2 - y1);
    const text = `${found.label} ${found.score.toFixed(2)}`;
    const top = Math.max(0, y1 - width * 9);
    pen.fillRect(x1, top, pen.measureText(text).width + 2 * width, width * 9);
    pen.fillStyle = "#fff";
    pen.fillText(text, x1 + width, top + width);
  }
  byId("hint").hidden = true;
  canvas.hidden = false;
};

const list = (results) => {
  const table = byId("results");
  table.tBodies[0].replaceChildren();
  for (const found of results) {
    const where = found.xyxy ? found.xyxy.map((side) => Math.round(side)).join(", ") : "";
    row(table.tBodies[0], [found.label ?? found.text ?? JSON.stringify(found), (found.score ?? 0).toFixed(3), where]);
  }
  table.hidden = !results.length;
};

const predict = async (file) => {
  say("Running");
  try {
    const bitmap = await createImageBitmap(file);
    const query = new URLSearchParams(byId("parameters").value.trim());
    query.set("model", byId("model").value);
    const started = performance.now();
    const answer = await fetch(`/predict?${query}`, { method: "POST", body: file, headers: headers() });
    const took = performance.now() - started;
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    const results = Array.isArray(found.results) ? found.results : [found.results];
    draw(bitmap, results);
    list(results);
    say(`${results.length} found in ${took.toFixed(0)} ms`);
  } catch (error) {
    say(error.message || String(error), true);
  }
};

const drop = byId("drop");
drop.addEventListener("click", () => byId("file").click());
drop.addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === " ") byId("file").click();
});
byId("file").addEventListener("change", (event) => {
  if (event.target.files.length) predict(event.target.files[0]);
  event.target.value = "";
});
for (const name of ["dragover", "dragleave", "drop"]) {
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", name === "dragover");
    if (name === "drop" && event.dataTransfer.files.length) predict(event.dataTransfer.files[0]);
  });
}

let before = new Map();
const statistics = async () => {
  try {
    const answer = await fetch("/v2/models/stats", { headers: headers() });
    if (!answer.ok) return;
    const now = performance.now();
    const body = byId("statistics").tBodies[0];
    const rows = [];
    const next = new Map();
    for (const model of (await answer.json()).model_stats) {
      const { success, fail } = model.inference_stats;
      const name = `${model.name} ${model.version}`;
      const last = before.get(name);
      const rate = last ? (1000 * (success.count - last.count)) / (now - last.now) : 0;
      next.set(name, { count: success.count, now });
      rows.push([
        name, success.count, fail.count, Math.max(0, rate).toFixed(1),
        success.count ? `${(success.ns / success.count / 1e6).toFixed(1)} ms` : "",
        model.execution_count ? (model.inference_count / model.execution_count).toFixed(1) : "",
      ]);
    }
    body.replaceChildren();
    for (const cells of rows) row(body, cells);
    before = next;
  } catch {
    // the server ends, or starts again: the next look tells
  }
};
statistics();
setInterval(statistics, 1000);
