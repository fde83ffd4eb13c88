int32_t convolution(const int8_t *restrict x, const int32_t *restrict bias, const int32_t *restrict weights, int8_t *restrict output) {
  int32_t patch[72];
  for (int32_t tile = 0; tile < 15; ++tile) {
    const int32_t pixel = tile * 2;
    const int32_t y = pixel / 6;
    const int32_t x_1 = pixel % 6;
    const int32_t top = y - 1;
    const int32_t left = x_1 - 1;
    if (top >= 0 && top <= 2 && left >= 0 && left <= 3) {
      for (int32_t ky = 0; ky < 3; ++ky) {
        for (int32_t kx = 0; kx < 3; ++kx) {
          const int32_t y_1 = top + ky;
          const int32_t x_2 = left + kx;
          const int32_t four = mlf_word_i8(&x[y_1 * 48 + x_2 * 8]);
          patch[ky * 12 + kx * 4] = mlf_even_bytes(four);
          patch[ky * 12 + kx * 4 + 1] = mlf_odd_bytes(four);
          const int32_t four_1 = mlf_word_i8(&x[y_1 * 48 + x_2 * 8 + 4]);
          patch[ky * 12 + kx * 4 + 2] = mlf_even_bytes(four_1);
          patch[ky * 12 + kx * 4 + 3] = mlf_odd_bytes(four_1);
        }
      }
    }
    if (!(top >= 0 && top <= 2 && left >= 0 && left <= 3)) {
      for (int32_t ky_1 = 0; ky_1 < 3; ++ky_1) {
        for (int32_t kx_1 = 0; kx_1 < 3; ++kx_1) {
          const int32_t y_2 = top + ky_1;
          const int32_t x_3 = left + kx_1;
          if (y_2 >= 0 && y_2 <= 4 && x_3 >= 0 && x_3 <= 5) {
            const int32_t four_2 = mlf_word_i8(&x[y_2 * 48 + x_3 * 8]);
            patch[ky_1 * 12 + kx_1 * 4] = mlf_even_bytes(four_2);
            patch[ky_1 * 12 + kx_1 * 4 + 1] = mlf_odd_bytes(four_2);
            const int32_t four_3 = mlf_word_i8(&x[y_2 * 48 + x_3 * 8 + 4]);
            patch[ky_1 * 12 + kx_1 * 4 + 2] = mlf_even_bytes(four_3);
            patch[ky_1 * 12 + kx_1 * 4 + 3] = mlf_odd_bytes(four_3);
          }
          if (!(y_2 >= 0 && y_2 <= 4 && x_3 >= 0 && x_3 <= 5)) {
            patch[ky_1 * 12 + kx_1 * 4] = (-8323200);
            patch[ky_1 * 12 + kx_1 * 4 + 1] = (-8323200);
            patch[ky_1 * 12 + kx_1 * 4 + 2] = (-8323200);
            patch[ky_1 * 12 + kx_1 * 4 + 3] = (-8323200);
          }
        }
      }
    }
    const int32_t pixel_1 = tile * 2 + 1;
    const int32_t y_3 = pixel_1 / 6;
    const int32_t x_4 = pixel_1 % 6;
    const int32_t top_1 = y_3 - 1;
    const int32_t left_1 = x_4 - 1;
    if (top_1 >= 0 && top_1 <= 2 && left_1 >= 0 && left_1 <= 3) {
      for (int32_t ky_2 = 0; ky_2 < 3; ++ky_2) {
        for (int32_t kx_2 = 0; kx_2 < 3; ++kx_2) {
          const int32_t y_4 = top_1 + ky_2;
          const int32_t x_5 = left_1 + kx_2;
          const int32_t four_4 = mlf_word_i8(&x[y_4 * 48 + x_5 * 8]);
          patch[ky_2 * 12 + kx_2 * 4 + 36] = mlf_even_bytes(four_4);
          patch[ky_2 * 12 + kx_2 * 4 + 37] = mlf_odd_bytes(four_4);
          const int32_t four_5 = mlf_word_i8(&x[y_4 * 48 + x_5 * 8 + 4]);
          patch[ky_2 * 12 + kx_2 * 4 + 38] = mlf_even_bytes(four_5);
          patch[ky_2 * 12 + kx_2 * 4 + 39] = mlf_odd_bytes(four_5);
        }
      }
    }
    if (!(top_1 >= 0 && top_1 <= 2 && left_1 >= 0 && left_1 <= 3)) {
      for (int32_t ky_3 = 0; ky_3 < 3; ++ky_3) {
        for (int32_t kx_3 = 0; kx_3 < 3; ++kx_3) {
          const int32_t y_5 = top_1 + ky_3;
          const int32_t x_6 = left_1 + kx_3;
          if (y_5 >= 0 && y_5 <= 4 && x_6 >= 0 && x_6 <= 5) {
            const int32_t four_6 = mlf_word_i8(&x[y_5 * 48 + x_6 * 8]);
            patch[ky_3 * 12 + kx_3 * 4 + 36] = mlf_even_bytes(four_6);
            patch[ky_3 * 12 + kx_3 * 4 + 37] = mlf_odd_bytes(four_6);
            const int32_t four_7 = mlf_word_i8(&x[y_5 * 48 + x_6 * 8 + 4]);
            patch[ky_3 * 12 + kx_3 * 4 + 38] = mlf_even_bytes(four_7);
            patch[ky_3 * 12 + kx_3 * 4 + 39] = mlf_odd_bytes(four_7);
          }
          if (!(y_5 >= 0 && y_5 <= 4 && x_6 >= 0 && x_6 <= 5)) {
            patch[ky_3 * 12 + kx_3 * 4 + 36] = (-8323200);
            patch[ky_3 * 12 + kx_3 * 4 + 37] = (-8323200);
            patch[ky_3 * 12 + kx_3 * 4 + 38] = (-8323200);
            patch[ky_3 * 12 + kx_3 * 4 + 39] = (-8323200);
          }
        }
      }
    }
    int32_t sums[8];
    sums[0] = 0;
    sums[1] = 0;
    sums[2] = 0;
    sums[3] = 0;
    sums[4] = 0;
    sums[5] = 0;
    sums[6] = 0;
    sums[7] = 0;
    for (int32_t k = 0; k < 6; ++k) {
      const int32_t x_7 = patch[k * 6];
      const int32_t x_8 = patch[k * 6 + 36];
      const int32_t both = weights[k * 12];
      const int32_t low = mlf_even_bytes(both);
      sums[0] = mlf_dot2(sums[0], x_7, low);
      sums[1] = mlf_dot2(sums[1], x_7, both);
      sums[2] = mlf_dot2(sums[2], x_8, low);
      sums[3] = mlf_dot2(sums[3], x_8, both);
      const int32_t both_1 = weights[k * 12 + 1];
      const int32_t low_1 = mlf_even_bytes(both_1);
      sums[4] = mlf_dot2(sums[4], x_7, low_1);
      sums[5] = mlf_dot2(sums[5], x_7, both_1);
      sums[6] = mlf_dot2(sums[6], x_8, low_1);
      sums[7] = mlf_dot2(sums[7], x_8, both_1);
      const int32_t x_9 = patch[k * 6 + 1];
      const int32_t x_10 = patch[k * 6 + 37];
      const int32_t both_2 = weights[k * 12 + 2];
      const int32_t low_2 = mlf_even_bytes(both_2);
      sums[0] = mlf_dot2(sums[0], x_9, low_2);
      sums[1] = mlf_dot2(sums[1], x_9, both_2);
      sums[2] = mlf_dot2(sums[2], x_10, low_2);
      sums[3] = mlf_dot2(sums[3], x_10, both_2);
      const int32_t both_3 = weights[k * 12 + 3];
      const int32_t low_3 = mlf_even_bytes(both_3);
      sums[4] = mlf_dot2(sums[4], x_9, low_3);
      sums[5] = mlf_dot2(sums[5], x_9, both_3);
      sums[6] = mlf_dot2(sums[6], x_10, low_3);
      sums[7] = mlf_dot2(sums[7], x_10, both_3);
      const int32_t x_11 = patch[k * 6 + 2];
      const int32_t x_12 = patch[k * 6 + 38];
      const int32_t both_4 = weights[k * 12 + 4];
      const int32_t low_4 = mlf_even_bytes(both_4);
      sums[0] = mlf_dot2(sums[0], x_11, low_4);
      sums[1] = mlf_dot2(sums[1], x_11, both_4);
      sums[2] = mlf_dot2(sums[2], x_12, low_4);
      sums[3] = mlf_dot2(sums[3], x_12, both_4);
      const int32_t both_5 = weights[k * 12 + 5];
      const int32_t low_5 = mlf_even_bytes(both_5);
      sums[4] = mlf_dot2(sums[4], x_11, low_5);
      sums[5] = mlf_dot2(sums[5], x_11, both_5);
      sums[6] = mlf_dot2(sums[6], x_12, low_5);
      sums[7] = mlf_dot2(sums[7], x_12, both_5);
      const int32_t x_13 = patch[k * 6 + 3];
      const int32_t x_14 = patch[k * 6 + 39];
      const int32_t both_6 = weights[k * 12 + 6];
      const int32_t low_6 = mlf_even_bytes(both_6);
      sums[0] = mlf_dot2(sums[0], x_13, low_6);
      sums[1] = mlf_dot2(sums[1], x_13, both_6);
      sums[2] = mlf_dot2(sums[2], x_14, low_6);
      sums[3] = mlf_dot2(sums[3], x_14, both_6);
      const int32_t both_7 = weights[k * 12 + 7];
      const int32_t low_7 = mlf_even_bytes(both_7);
      sums[4] = mlf_dot2(sums[4], x_13, low_7);
      sums[5] = mlf_dot2(sums[5], x_13, both_7);
      sums[6] = mlf_dot2(sums[6], x_14, low_7);
      sums[7] = mlf_dot2(sums[7], x_14, both_7);
      const int32_t x_15 = patch[k * 6 + 4];
      const int32_t x_16 = patch[k * 6 + 40];
      const int32_t both_8 = weights[k * 12 + 8];
      const int32_t low_8 = mlf_even_bytes(both_8);
      sums[0] = mlf_dot2(sums[0], x_15, low_8);
      sums[1] = mlf_dot2(sums[1], x_15, both_8);
      sums[2] = mlf_dot2(sums[2], x_16, low_8);
      sums[3] = mlf_dot2(sums[3], x_16, both_8);
      const int32_t both_9 = weights[k * 12 + 9];
      const int32_t low_9 = mlf_even_bytes(both_9);
      sums[4] = mlf_dot2(sums[4], x_15, low_9);
      sums[5] = mlf_dot2(sums[5], x_15, both_9);
      sums[6] = mlf_dot2(sums[6], x_16, low_9);
      sums[7] = mlf_dot2(sums[7], x_16, both_9);
      const int32_t x_17 = patch[k * 6 + 5];
      const int32_t x_18 = patch[k * 6 + 41];
      const int32_t both_10 = weights[k * 12 + 10];
      const int32_t low_10 = mlf_even_bytes(both_10);
      sums[0] = mlf_dot2(sums[0], x_17, low_10);
      sums[1] = mlf_dot2(sums[1], x_17, both_10);
      sums[2] = mlf_dot2(sums[2], x_18, low_10);
      sums[3] = mlf_dot2(sums[3], x_18, both_10);
      const int32_t both_11 = weights[k * 12 + 11];
      const int32_t low_11 = mlf_even_bytes(both_11);
      sums[4] = mlf_dot2(sums[4], x_17, low_11);
      sums[5] = mlf_dot2(sums[5], x_17, both_11);
      sums[6] = mlf_dot2(sums[6], x_18, low_11);
      sums[7] = mlf_dot2(sums[7], x_18, both_11);
    }
    const int32_t start = bias[0];
    const int32_t value = mlf_wrap_add_i32(start, sums[0]);
    output[y * 24 + x_1 * 4] = (int8_t)mlf_saturate_byte(mlf_requantize_narrow(value, 1099511680, 7, (-3)));
    const int32_t value_1 = mlf_wrap_add_i32(start, sums[2]);
    output[y_3 * 24 + x_4 * 4] = (int8_t)mlf_saturate_byte(mlf_requantize_narrow(value_1, 1099511680, 7, (-3)));
    const int32_t start_1 = bias[1];
    const int32_t value_2 = mlf_wrap_add_i32(start_1, mlf_wrap_sub_i32(sums[1], sums[0]) >> 8);
    output[y * 24 + x_1 * 4 + 1] = (int8_t)mlf_saturate_byte(mlf_requantize_narrow(value_2, 1099511680, 7, (-3)));
    const int32_t value_3 = mlf_wrap_add_i32(start_1, mlf_wrap_sub_i32(sums[3], sums[2]) >> 8);
    output[y_3 * 24 + x_4 * 4 + 1] = (int8_t)mlf_saturate_byte(mlf_requantize_narrow(value_3, 1099511680, 7, (-3)));
    const int32_t start_2 = bias[2];
    const int32_t value_4 = mlf_wrap_add_i32(start_2, sums[4]);
    output[y * 24 + x_1 * 4 + 2] = (int8_t)mlf_saturate_byte(mlf_requantize_narrow(value_4, 1099511680, 7, (-3)));
    const int32_t value_5 = mlf_wrap_add_i32(start_2, sums[6]);
    output[y_3 * 24 + x_4 * 4 + 2] = (int8_t)mlf_saturate_byte(mlf_requantize_narrow(value_5, 1099511680, 7, (-3)));
    const int32_t start_3 = bias[3];
    const int32_t value_6 = mlf_wrap_add_i32(start_3, mlf_wrap_sub_i32(sums[5], sums[4]) >> 8);
    output[y * 24 + x_1 * 4 + 3] = (int8_t)mlf_saturate_byte(mlf_requantize_narrow(value_6, 1099511680, 7, (-3)));
    const int32_t value_7 = mlf_wrap_add_i32(start_3, mlf_wrap_sub_i32(sums[7], sums[6]) >> 8);
    output[y_3 * 24 + x_4 * 4 + 3] = (int8_t)mlf_saturate_byte(mlf_requantize_narrow(value_7, 1099511680, 7, (-3)));
  }
  return 0;
}
