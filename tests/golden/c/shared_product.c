#include <stdint.h>
#include <string.h>


static inline int32_t mlf_wrap_add_i32(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a + (uint32_t)b);
}

static inline int32_t mlf_wrap_mul_i32(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a * (uint32_t)b);
}

/* the numbers in which the kernels of tvmgen_net_product differ */
struct tvmgen_net_product_values {
  int16_t k_count;
  int8_t row_count;
  int8_t column_count;
};

/* product: 2 kernels in one */
int32_t tvmgen_net_product(const int8_t *restrict data, const int8_t *restrict weights, int32_t *restrict output, uint8_t *restrict workspace, const struct tvmgen_net_product_values *values) {
  const int32_t k_count = values->k_count;
  const int32_t row_count = values->row_count;
  const int32_t column_count = values->column_count;
  int32_t *restrict wide = (int32_t *)workspace;
  for (int32_t row = 0; row < row_count; ++row) {
    for (int32_t k = 0; k < k_count; ++k) {
      wide[k] = (int32_t)data[row * k_count + k] - row_count;
    }
    for (int32_t column = 0; column < column_count; ++column) {
      output[row * column_count + column] = 0;
      for (int32_t k_1 = 0; k_1 < k_count; ++k_1) {
        output[row * column_count + column] = mlf_wrap_add_i32(output[row * column_count + column], mlf_wrap_mul_i32(wide[k_1], (int32_t)weights[column * k_count + k_1]));
      }
    }
  }
  return 0;
}

/* product: int8[1, 6] -> int32[1, 4], 24 multiply-accumulates, 24 bytes of scratch
 */
static const struct tvmgen_net_product_values tvmgen_net_product_0_values = {
  .k_count = 6,
  .row_count = 1,
  .column_count = 4,
};

/* product: int8[5, 300] -> int32[5, 2], 3000 multiply-accumulates, 1200 bytes of scratch
 */
static const struct tvmgen_net_product_values tvmgen_net_product_1_values = {
  .k_count = 300,
  .row_count = 5,
  .column_count = 2,
};
