// Runs the digits model as WebAssembly. SPDX-License-Identifier: 0BSD
import { readFile, writeFile } from "node:fs/promises";
import { WASI } from "node:wasi";

const IMAGE_BYTES = 256;
const OUT_BYTES = 40;

const [module, image, out] = process.argv.slice(2);
if (out === undefined) {
  console.error("usage: node run.mjs MODULE IMAGE OUT");
  process.exit(2);
}

const wasi = new WASI({ version: "preview1" });
const { instance } = await WebAssembly.instantiate(await readFile(module), wasi.getImportObject());
wasi.initialize(instance);
const { memory, malloc, free, tvmgen_digits_run: run } = instance.exports;

// the model's memory: the image, the probabilities, and a struct of one pointer for inputs and for outputs
const at = malloc(IMAGE_BYTES + OUT_BYTES + 8);
const outAt = at + IMAGE_BYTES;
const inputs = outAt + OUT_BYTES;
new Uint8Array(memory.buffer, at, IMAGE_BYTES).set(await readFile(image));
new Uint32Array(memory.buffer, inputs, 2).set([at, outAt]);
if (run(inputs, inputs + 4) !== 0) {
  console.error("the model failed");
  process.exit(1);
}
await writeFile(out, new Uint8Array(memory.buffer, outAt, OUT_BYTES));
free(at);
