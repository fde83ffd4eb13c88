// Runs the page's model without a browser: node check.mjs PAGE.html < IMAGES, 64 floats each. SPDX-License-Identifier: 0BSD
import { readFileSync } from "node:fs";

const page = readFileSync(process.argv[2], "utf8");
const [, wasm] = page.match(/<script id="wasm" type="text\/plain">([^<]*)<\/script>/);
const [, code] = page.match(/<script type="module">\n([^]*?)\nconst bytes = /);
const { loadModel } = await import(`data:text/javascript,${encodeURIComponent(code)}`);
const classify = await loadModel(Buffer.from(wasm, "base64"));
const input = readFileSync(0);
const images = new Float32Array(input.buffer.slice(input.byteOffset, input.byteOffset + input.length));
for (let at = 0; at < images.length; at += 64) {
  const scores = classify(images.subarray(at, at + 64));
  console.log(scores.indexOf(Math.max(...scores)));
}
