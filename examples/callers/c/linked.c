/* Runs the digits model through its plain C header. SPDX-License-Identifier: 0BSD */
#include <digits.h>
#include <stdio.h>

int main(int argc, char **argv) {
  float image[TVMGEN_DIGITS_IMAGE_SIZE / sizeof(float)];
  float probabilities[TVMGEN_DIGITS_PROBABILITIES_SIZE / sizeof(float)];
  struct tvmgen_digits_inputs inputs = {image};
  struct tvmgen_digits_outputs outputs = {probabilities};
  FILE *file = argc == 3 ? fopen(argv[1], "rb") : NULL;
  if (file == NULL || fread(image, sizeof image, 1, file) != 1) {
    fprintf(stderr, "usage: linked IMAGE OUT; the image has %zu bytes\n", sizeof image);
    return 2;
  }
  fclose(file);
  if (tvmgen_digits_run(&inputs, &outputs) != 0) return 1;
  file = fopen(argv[2], "wb");
  return file == NULL || fwrite(probabilities, sizeof probabilities, 1, file) != 1 || fclose(file) != 0;
}
