// Runs the digits model behind a class. SPDX-License-Identifier: 0BSD
#include <digits.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <stdexcept>

class Digits {
 public:
  using Image = std::array<float, TVMGEN_DIGITS_IMAGE_SIZE / sizeof(float)>;
  using Probabilities = std::array<float, TVMGEN_DIGITS_PROBABILITIES_SIZE / sizeof(float)>;

  Probabilities operator()(Image image) const {
    Probabilities probabilities{};
    tvmgen_digits_inputs inputs{image.data()};
    tvmgen_digits_outputs outputs{probabilities.data()};
    if (tvmgen_digits_run(&inputs, &outputs) != 0) throw std::runtime_error("the model failed");
    return probabilities;
  }
};

template <typename Array>
void transfer(std::fstream file, Array &array, bool reads) {
  char *bytes = reinterpret_cast<char *>(array.data());
  const std::streamsize size = sizeof(array[0]) * array.size();
  reads ? static_cast<void>(file.read(bytes, size)) : static_cast<void>(file.write(bytes, size));
  if (!file) throw std::runtime_error("a file is missing or too short");
}

int main(int argc, char **argv) {
  if (argc != 3) {
    std::fputs("usage: classed IMAGE OUT\n", stderr);
    return 2;
  }
  try {
    Digits::Image image;
    transfer(std::fstream(argv[1], std::ios::in | std::ios::binary), image, true);
    auto probabilities = Digits{}(image);
    transfer(std::fstream(argv[2], std::ios::out | std::ios::binary), probabilities, false);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
