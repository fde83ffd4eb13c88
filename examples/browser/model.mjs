// The digits model as WebAssembly, in a browser or in Node. SPDX-License-Identifier: 0BSD

const IMAGE = 64;
const DIGITS = 10;

/** Return a function from an image (64 numbers from 0 to 1, by rows) to ten probabilities. */
export async function loadModel(bytes) {
  // the C library requests files, which a page does not have: "bad file descriptor"
  const missing = () => 8;
  const system = new Proxy({}, { get: () => missing });
  const { instance } = await WebAssembly.instantiate(bytes, { wasi_snapshot_preview1: system });
  const { memory, malloc, _initialize: start, tvmgen_digits_run: run } = instance.exports;
  start?.();
  const image = malloc(4 * IMAGE + 4 * DIGITS + 8);
  const scores = image + 4 * IMAGE;
  const pointers = scores + 4 * DIGITS;
  return (pixels) => {
    new Float32Array(memory.buffer, image, IMAGE).set(pixels);
    new Uint32Array(memory.buffer, pointers, 2).set([image, scores]);
    if (run(pointers, pointers + 4) !== 0) {
      throw new Error("the model failed");
    }
    return [...new Float32Array(memory.buffer, scores, DIGITS)];
  };
}
