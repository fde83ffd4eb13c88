// As much of a browser's document as `graph.js` uses, so that tests run it in Node: node page_dom.js SCRIPT DATA STEPS
// STEPS is code over `graph` (the drawing), `svg`, `pane`, `made` (how many elements were made) and `press(key)`; it
// returns what is printed as JSON.
"use strict";
const { readFileSync } = require("fs");
let made = 0;

class Element {
  constructor(tag) {
    Object.assign(this, { tag, attributes: {}, children: [], listeners: {}, dataset: {}, hidden: false, text: "" });
    made += 1;
  }

  set textContent(text) { [this.text, this.children] = [String(text), []]; }
  get textContent() { return this.text + this.children.map((child) => (typeof child === "string" ? child : child.textContent)).join(""); }
  get all() { return this.children.flatMap((child) => (typeof child === "string" ? [] : [child, ...child.all])); }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(kind, listener) { (this.listeners[kind] ??= []).push(listener); }
  dispatch(kind, event) { for (const listener of this.listeners[kind] ?? []) listener({ preventDefault() {}, ...event }); }
  setPointerCapture() {}
  getBoundingClientRect() { return { left: 0, top: 0, width: 800, height: 448 }; }
  querySelector(selector) { return this.querySelectorAll(selector)[0] ?? null; }
  querySelectorAll(selector) {
    const wanted = /^(?<tag>\w*)(?:\.(?<kind>\w+))?(?:\[(?<key>[\w-]+)\])?$/.exec(selector).groups;
    return this.all.filter((item) => (!wanted.tag || item.tag === wanted.tag)
      && (!wanted.kind || (item.attributes.class ?? "").split(" ").includes(wanted.kind))
      && (!wanted.key || wanted.key in item.attributes));
  }
}

const [script, data, steps] = process.argv.slice(2);
const element = (tag, attributes = {}, ...children) => {
  const item = new Element(tag);
  for (const [key, value] of Object.entries(attributes)) item.setAttribute(key, value);
  item.append(...children);
  return item;
};
const [svg, pane] = [element("svg"), element("aside")];
const stored = element("script");
stored.textContent = readFileSync(data, "utf8");
const box = element("div", { class: "graph" }, svg, pane, element("p", { "aria-live": "polite" }), stored);
const root = element("html", {}, box);
const byId = {};
Object.assign(globalThis, {
  document: {
    createElement: (tag) => new Element(tag),
    createElementNS: (_, tag) => new Element(tag),
    getElementById: (id) => byId[id] ?? null,
    querySelectorAll: (selector) => root.querySelectorAll(selector),
  },
  ResizeObserver: class { observe() {} },
});
new Function(readFileSync(script, "utf8"))();
const press = (key) => svg.dispatch("keydown", { key });
const answer = new Function("graph", "svg", "pane", "made", "press", "element", "byId", steps);
console.log(JSON.stringify(answer(box.drawing, svg, pane, () => made, press, element, byId)));
