int32_t convolution(const int8_t *restrict x, const int8_t *restrict weights, const int32_t *restrict start, int8_t *restrict output) {
  int8_t strip[192];
  MLF_ROLLED
  for (int32_t oy = 0; oy < 5; ++oy) {
    MLF_ROLLED
    for (int32_t ky = 0; ky < 3; ++ky) {
      const int32_t y = oy + ky - 1;
      MLF_ROLLED
      for (int32_t column = 0; column < 8; ++column) {
        if (y >= 0 && y < 5 && (-1) + column >= 0 && (-1) + column < 6) {
          mlf_copy_run(&strip[column * 24 + ky * 8], &x[y * 48 + column * 8 - 8], 8);
        }
        if (!(y >= 0 && y < 5 && (-1) + column >= 0 && (-1) + column < 6)) {
          mlf_fill_run(&strip[column * 24 + ky * 8], (-128), 8);
        }
      }
    }
    MLF_ROLLED
    for (int32_t pair = 0; pair < 3; ++pair) {
      int32_t sums[8];
      mlf_dots2(&sums[0], &start[0], &strip[pair * 48], &strip[pair * 48 + 24], &weights[0], 4, 1, 1);
      mlf_i32x4 value;
      MLF_EACH(q) value[q] = ((const mlf_i32x4_u *)&sums[0])[q];
      MLF_EACH(q) mlf_saturate_i8x4(&output[oy * 24 + pair * 8], mlf_wrap_add_i32x4(mlf_requantize_down_i32x4(value[q], mlf_splat_i32x4(1099511680), mlf_splat_i32x4(7)), mlf_splat_i32x4((-3))));
      mlf_i32x4 value_1;
      MLF_EACH(q) value_1[q] = ((const mlf_i32x4_u *)&sums[4])[q];
      MLF_EACH(q) mlf_saturate_i8x4(&output[oy * 24 + pair * 8 + 4], mlf_wrap_add_i32x4(mlf_requantize_down_i32x4(value_1[q], mlf_splat_i32x4(1099511680), mlf_splat_i32x4(7)), mlf_splat_i32x4((-3))));
    }
  }
  return 0;
}
