// Draws each graph of the page: what is in view, in full where names are legible, as outlines where it is not.
const WIDE = 232, LANE = 18, GAP_X = 16, GAP_Y = 46, HEAD = 46, ROW = 16, MARGIN = 28;
const MOST_DETAILED = 400, LEGIBLE = 0.35, MOST_ROWS = 40;
const make = (name, attributes, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};
const shortened = (text, room) => {
  const letters = [...text];
  const half = Math.floor((room - 1) / 2);
  return letters.length <= room ? text : `${letters.slice(0, room - 1 - half).join("")}…${letters.slice(-half).join("")}`;
};

class Graph {
  constructor(box, data) {
    Object.assign(this, { box, nodes: data.nodes, anchor: data.anchor, selected: -1, open: new Set(), scale: 1 });
    this.svg = box.querySelector("svg");
    this.pane = box.querySelector("aside");
    this.spoken = box.querySelector("[aria-live]");
    this.readers = this.nodes.map(() => []);
    this.nodes.forEach((node, index) => node.reads.forEach((source) => this.readers[source].push(index)));
    this.layers = [];
    this.nodes.forEach((node, index) => (this.layers[node.layer] ??= []).push(index));
    this.placeColumns();
    this.placeLayers();
    this.listen();
    this.start();
  }

  placeColumns() {
    const wide = new Set(this.nodes.map((node) => node.column));
    const count = 1 + Math.max(...this.nodes.flatMap((node) => [node.column, node.lane ?? 0]));
    this.middles = [];
    let x = MARGIN;
    for (let column = 0; column < count; column += 1) {
      const width = wide.has(column) ? WIDE : LANE;
      this.middles.push(x + width / 2);
      x += width + GAP_X;
    }
    this.width = x - GAP_X + MARGIN;
  }

  rows(index) {
    return this.open.has(index) ? this.nodes[index].parts.slice(0, MOST_ROWS) : [];
  }

  tall(index) {
    const rows = this.rows(index).length;
    return HEAD + (rows ? rows * ROW * 2 + 6 : 0);
  }

  placeLayers() {
    this.tops = [];
    let y = MARGIN;
    for (const members of this.layers) {
      this.tops.push(y);
      y += Math.max(...members.map((index) => this.tall(index))) + GAP_Y;
    }
    this.height = y - GAP_Y + 20 + MARGIN;
  }

  // Screen and graph: `left` and `top` are where the view begins in the graph.
  start() {
    const { width, height } = this.size();
    this.scale = Math.min(1, Math.max(LEGIBLE, width / this.width));
    if (this.height * this.scale < height) this.scale = Math.min(1, width / this.width, height / this.height);
    [this.left, this.top] = [0, 0];
    this.move(0, 0);
  }

  size() {
    const { width, height } = this.svg.getBoundingClientRect();
    return { width: width || 800, height: height || 500 };
  }

  zoom(factor, x, y) {
    const { width, height } = this.size();
    const least = Math.min(LEGIBLE, width / this.width, height / this.height);
    const scale = Math.min(4, Math.max(least, this.scale * factor));
    this.left += x / this.scale - x / scale;
    this.top += y / this.scale - y / scale;
    this.scale = scale;
    this.move(0, 0);
  }

  whole() {
    const { width, height } = this.size();
    this.scale = Math.min(1, width / this.width, height / this.height);
    this.move(0, 0);
  }

  move(x, y) {
    const { width, height } = this.size();
    const limit = (value, view, size) => Math.min(Math.max(value, 0), size - view);
    const [before, wide, tall] = [this.top, width / this.scale, height / this.scale];
    this.left = wide > this.width ? (this.width - wide) / 2 : limit(this.left + x / this.scale, wide, this.width);
    this.top = tall > this.height ? 0 : limit(this.top + y / this.scale, tall, this.height);
    this.draw();
    return this.top !== before;
  }

  // The layers whose places are in view.
  range() {
    const end = this.top + this.size().height / this.scale;
    const first = this.tops.findIndex((_, layer) => (this.tops[layer + 1] ?? Infinity) > this.top);
    const last = this.tops.findLastIndex((y) => y < end);
    return [Math.max(0, first), Math.max(0, last)];
  }

  draw() {
    const { width, height } = this.size();
    this.svg.setAttribute("viewBox", `${this.left} ${this.top} ${width / this.scale} ${height / this.scale}`);
    const [first, last] = this.range();
    const shown = this.layers.slice(first, last + 1).flat();
    const detailed = this.scale >= LEGIBLE && shown.length <= MOST_DETAILED;
    const parts = [make("path", { class: "edges", d: this.edges(first, last) })];
    if (detailed) for (const index of shown) parts.push(this.node(index));
    else parts.push(...this.outlines(shown));
    this.svg.replaceChildren(...parts);
  }

  edges(first, last) {
    const lines = [];
    this.nodes.forEach((node, index) => {
      const readers = this.readers[index];
      const low = Math.max(node.layer, ...readers.map((reader) => this.nodes[reader].layer));
      if (!readers.length || node.layer > last || low < first) return;
      for (const reader of readers) lines.push(this.edge(index, reader));
    });
    return lines.join("");
  }

  edge(from, to) {
    const [a, b] = [this.nodes[from], this.nodes[to]];
    const [x, y] = [this.middles[a.column], this.tops[a.layer] + this.tall(from)];
    const [toX, toY] = [this.middles[b.column], this.tops[b.layer]];
    if (b.layer <= a.layer) {
      // a loop goes around on the right
      const side = Math.max(x, toX) + WIDE / 2 + 10;
      return `M${x} ${y}C${x} ${y + 24} ${side} ${y + 24} ${side} ${y}V${toY}C${side} ${toY - 24} ${toX} ${toY - 24} ${toX} ${toY}`;
    }
    const bend = (x0, y0, x1, y1) => `C${x0} ${(y0 + y1) / 2} ${x1} ${(y0 + y1) / 2} ${x1} ${y1}`;
    if (b.layer === a.layer + 1 || a.lane === null) return `M${x} ${y}${bend(x, y, toX, toY)}`;
    const lane = this.middles[a.lane];
    const [enter, leave] = [this.tops[a.layer + 1], toY - GAP_Y];
    return `M${x} ${y}${bend(x, y, lane, enter)}V${leave}${bend(lane, leave, toX, toY)}`;
  }

  outlines(shown) {
    const paths = new Map();
    for (const index of shown) {
      const node = this.nodes[index];
      const kind = `${node.kind} ${node.mark} ${index === this.selected ? "selected" : ""}`;
      const [x, y] = [this.middles[node.column] - WIDE / 2, this.tops[node.layer]];
      const known = paths.get(kind) ?? [];
      known.push(`M${x} ${y}h${WIDE}v${this.tall(index)}h${-WIDE}z`);
      paths.set(kind, known);
    }
    return [...paths].map(([kind, lines]) => make("path", { class: `node ${kind}`, d: lines.join("") }));
  }

  node(index) {
    const node = this.nodes[index];
    const [left, tall] = [this.middles[node.column] - WIDE / 2, this.tall(index)];
    const chosen = index === this.selected ? "selected" : "";
    const group = make("g", { class: `node ${node.kind} ${node.mark} ${chosen}`, transform: `translate(${left} ${this.tops[node.layer]})` });
    group.append(
      make("title", {}, this.told(index)),
      make("rect", { width: WIDE, height: tall, rx: 4 }),
      make("text", { x: 8, y: 18, class: "operators" }, shortened(node.title, node.parts.length ? 25 : 27)),
      make("text", { x: 8, y: 35, class: "faint" }, shortened(node.name, 34)),
      make("text", { x: WIDE / 2 - 6, y: tall + 14, class: "faint type" }, shortened(node.type, 24)),
    );
    if (node.share) group.append(make("rect", { class: "bar", x: 1, y: HEAD - 4, width: (WIDE - 2) * node.share, height: 3 }));
    if (node.parts.length) group.append(make("text", { class: "fold", x: WIDE - 16, y: 19, "data-fold": "" }, this.open.has(index) ? "−" : "+"));
    this.rows(index).forEach((part, row) => {
      const y = HEAD + 14 + row * ROW * 2;
      group.append(
        make("text", { x: 22, y }, shortened(part.name, 28)),
        make("text", { x: 22, y: y + 13, class: "faint" }, shortened(`${part.operators}  ${part.type}`, 32)),
      );
      for (const above of part.reads) {
        if (above >= MOST_ROWS) continue;
        const from = HEAD + 10 + above * ROW * 2;
        group.append(make("path", { class: "inner", d: `M16 ${from}C6 ${from} 6 ${y - 4} 16 ${y - 4}` }));
      }
    });
    return group;
  }

  told(index) {
    const node = this.nodes[index];
    return [`${node.kind} ${node.call ?? ""}`.trim(), node.title, node.name, node.type, ...node.facts.map(([key, value]) => `${key} ${value}`)]
      .filter(Boolean).join(", ");
  }

  select(index, shows) {
    this.selected = index;
    const reads = this.nodes[index].reads.length;
    this.spoken.textContent = `${this.told(index)}; reads ${reads}, read by ${this.readers[index].length}`;
    if (shows) this.show(index);
    this.reveal(index);
  }

  reveal(index) {
    const { width, height } = this.size();
    const node = this.nodes[index];
    const [x, y] = [this.middles[node.column], this.tops[node.layer]];
    if (this.scale < LEGIBLE) this.scale = LEGIBLE * 2;
    const [wide, tall] = [width / this.scale, height / this.scale];
    if (x - WIDE / 2 < this.left || x + WIDE / 2 > this.left + wide) this.left = x - wide / 2;
    if (y < this.top || y + this.tall(index) > this.top + tall) this.top = y - tall / 3;
    this.move(0, 0);
  }

  fold(index) {
    if (!this.nodes[index].parts.length) return;
    if (!this.open.delete(index)) this.open.add(index);
    this.placeLayers();
    this.draw();
  }

  foldAll() {
    const unfolds = !this.open.size;
    this.open = new Set(unfolds ? this.nodes.keys() : []);
    this.placeLayers();
    this.draw();
  }

  // What a click shows: facts, the nodes of the model, and the C.
  show(index) {
    const node = this.nodes[index];
    const item = (name, text) => Object.assign(document.createElement(name), text === undefined ? {} : { textContent: text });
    const parts = [item("h3", node.call === null ? node.name : `Call ${node.call}: ${node.title}`)];
    const facts = item("dl");
    for (const [key, value] of [["gives", node.type], ...node.facts]) facts.append(item("dt", key), item("dd", value));
    parts.push(facts);
    for (const [title, others] of [["Reads", node.reads], ["Read by", this.readers[index]]]) {
      if (!others.length) continue;
      const line = item("p", `${title} `);
      for (const other of others.slice(0, MOST_ROWS)) {
        const link = item("button", this.nodes[other].call === null ? this.nodes[other].name : `call ${this.nodes[other].call}`);
        link.addEventListener("click", () => this.select(other, true));
        line.append(link);
      }
      parts.push(line);
    }
    if (node.parts.length) {
      const list = item("ul");
      for (const part of node.parts) list.append(item("li", `${part.name}: ${part.operators} ${part.type}`));
      parts.push(item("h4", "Nodes of the model"), list);
    }
    const source = node.function && document.getElementById(this.anchor + node.function);
    if (source) parts.push(item("h4", node.function), item("pre", source.querySelector("pre").textContent));
    this.pane.replaceChildren(...parts);
    this.pane.hidden = false;
  }

  at(event) {
    const { left, top } = this.svg.getBoundingClientRect();
    const [x, y] = [this.left + (event.clientX - left) / this.scale, this.top + (event.clientY - top) / this.scale];
    const layer = this.tops.findLastIndex((place) => place <= y);
    return (this.layers[layer] ?? []).find((index) => {
      const middle = this.middles[this.nodes[index].column];
      return Math.abs(x - middle) <= WIDE / 2 && y <= this.tops[layer] + this.tall(index);
    });
  }

  step(key) {
    if (this.selected < 0) return this.select(0, false);
    const node = this.nodes[this.selected];
    const beside = [...this.layers[node.layer]].sort((a, b) => this.nodes[a].column - this.nodes[b].column);
    const place = beside.indexOf(this.selected);
    const next = {
      ArrowUp: node.reads[0], ArrowDown: this.readers[this.selected][0], ArrowLeft: beside[place - 1], ArrowRight: beside[place + 1],
    }[key];
    if (next !== undefined) this.select(next, false);
  }

  listen() {
    let from = null;
    let moved = false;
    this.svg.addEventListener("pointerdown", (event) => {
      [from, moved] = [[event.clientX, event.clientY], false];
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!from) return;
      const [x, y] = [from[0] - event.clientX, from[1] - event.clientY];
      if (!moved && Math.abs(x) + Math.abs(y) < 4) return;
      [from, moved] = [[event.clientX, event.clientY], true];
      this.move(x, y);
    });
    this.svg.addEventListener("pointerup", (event) => {
      from = null;
      const index = this.at(event);
      if (moved || index === undefined) return;
      const right = this.middles[this.nodes[index].column] + WIDE / 2;
      const x = this.left + (event.clientX - this.svg.getBoundingClientRect().left) / this.scale;
      if (x > right - 24 && this.nodes[index].parts.length) this.fold(index);
      else this.select(index, true);
    });
    this.svg.addEventListener("pointercancel", () => { from = null; });
    this.svg.addEventListener("wheel", (event) => {
      const box = this.svg.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY / 200), event.clientX - box.left, event.clientY - box.top);
      else if (!this.move(event.deltaX, event.deltaY)) return;
      event.preventDefault();
    }, { passive: false });
    const { commands } = this;
    this.svg.addEventListener("keydown", (event) => {
      if (event.key.startsWith("Arrow")) this.step(event.key);
      else if (event.key === "Enter" && this.selected >= 0) this.show(this.selected);
      else if (event.key === " " && this.selected >= 0) this.fold(this.selected);
      else if (commands[event.key]) commands[event.key]();
      else return;
      event.preventDefault();
    });
    for (const button of this.box.querySelectorAll("[data-key]")) button.addEventListener("click", () => commands[button.dataset.key]());
    let wide = this.size().width;
    new ResizeObserver(() => {
      const { width } = this.size();
      this.left += (wide - width) / 2 / this.scale;
      wide = width;
      if (this.selected < 0) this.draw();
      else this.reveal(this.selected);
    }).observe(this.svg);
  }

  get commands() {
    const zoom = (factor) => () => {
      const { width, height } = this.size();
      this.zoom(factor, width / 2, height / 2);
    };
    return { "+": zoom(1.4), "-": zoom(1 / 1.4), 0: () => this.whole(), 1: () => this.start(), f: () => this.foldAll() };
  }
}

for (const box of document.querySelectorAll(".graph")) {
  box.hidden = false;
  box.drawing = new Graph(box, JSON.parse(box.querySelector("script").textContent));
}
