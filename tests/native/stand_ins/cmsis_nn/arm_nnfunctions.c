/* The functions of CMSIS-NN according to their documentation and TFLite's arithmetic, element by element. */
#include "arm_nnfunctions.h"

#include <string.h>

static int32_t requantized(int32_t value, int32_t multiplier, int32_t shift) {
  const int64_t left = (int64_t)value << (shift > 0 ? shift : 0);
  const int64_t product = left * multiplier;
  const int32_t high = (int32_t)((product + (product >= 0 ? 1 << 30 : 1 - (1 << 30))) / ((int64_t)1 << 31));
  const int32_t exponent = shift > 0 ? 0 : -shift;
  const int32_t mask = (int32_t)(((int64_t)1 << exponent) - 1), rest = high & mask;
  return (high >> exponent) + (rest > (mask >> 1) + (high < 0));
}

static int8_t limited(int32_t value, int32_t low, int32_t high) {
  return (int8_t)(value < low ? low : value > high ? high : value);
}

/* checks that the requested buffer exists, and overwrites it */
static arm_cmsis_nn_status fill(const cmsis_nn_context *ctx, int32_t wanted) {
  if (wanted > ctx->size || (wanted > 0 && ctx->buf == 0)) return ARM_CMSIS_NN_ARG_ERROR;
  if (wanted > 0) memset(ctx->buf, 0x55, (size_t)wanted);
  return ARM_CMSIS_NN_SUCCESS;
}

int32_t arm_convolve_wrapper_s8_get_buffer_size(const cmsis_nn_conv_params *conv_params,
                                                const cmsis_nn_dims *input_dims, const cmsis_nn_dims *filter_dims,
                                                const cmsis_nn_dims *output_dims) {
  const int32_t columns = filter_dims->h * filter_dims->w * input_dims->c;
  (void)conv_params;
  (void)output_dims;
  return 2 * ((columns + 3) / 4 * 4) * (int32_t)sizeof(int16_t);
}

arm_cmsis_nn_status arm_convolve_wrapper_s8(const cmsis_nn_context *ctx, const cmsis_nn_conv_params *conv_params,
                                            const cmsis_nn_per_channel_quant_params *quant_params,
                                            const cmsis_nn_dims *input_dims, const int8_t *input_data,
                                            const cmsis_nn_dims *filter_dims, const int8_t *filter_data,
                                            const cmsis_nn_dims *bias_dims, const int32_t *bias_data,
                                            const cmsis_nn_dims *output_dims, int8_t *output_data) {
  const int32_t channels = input_dims->c, filters = output_dims->c;
  if (filter_dims->n != filters || filter_dims->c != channels || bias_dims->c != filters) {
    return ARM_CMSIS_NN_ARG_ERROR;
  }
  if (fill(ctx, arm_convolve_wrapper_s8_get_buffer_size(conv_params, input_dims, filter_dims, output_dims)) != 0) {
    return ARM_CMSIS_NN_ARG_ERROR;
  }
  for (int32_t n = 0; n < output_dims->n; ++n)
    for (int32_t oy = 0; oy < output_dims->h; ++oy)
      for (int32_t ox = 0; ox < output_dims->w; ++ox)
        for (int32_t f = 0; f < filters; ++f) {
          int32_t sum = bias_data[f];
          for (int32_t ky = 0; ky < filter_dims->h; ++ky)
            for (int32_t kx = 0; kx < filter_dims->w; ++kx) {
              const int32_t y = oy * conv_params->stride.h - conv_params->padding.h + ky * conv_params->dilation.h;
              const int32_t x = ox * conv_params->stride.w - conv_params->padding.w + kx * conv_params->dilation.w;
              if (y < 0 || y >= input_dims->h || x < 0 || x >= input_dims->w) continue;
              for (int32_t c = 0; c < channels; ++c) {
                const int8_t data = input_data[((n * input_dims->h + y) * input_dims->w + x) * channels + c];
                const int8_t weight = filter_data[((f * filter_dims->h + ky) * filter_dims->w + kx) * channels + c];
                sum += (data + conv_params->input_offset) * weight;
              }
            }
          sum = requantized(sum, quant_params->multiplier[f], quant_params->shift[f]) + conv_params->output_offset;
          output_data[((n * output_dims->h + oy) * output_dims->w + ox) * filters + f] =
              limited(sum, conv_params->activation.min, conv_params->activation.max);
        }
  return ARM_CMSIS_NN_SUCCESS;
}

int32_t arm_depthwise_conv_wrapper_s8_get_buffer_size(const cmsis_nn_dw_conv_params *dw_conv_params,
                                                      const cmsis_nn_dims *input_dims,
                                                      const cmsis_nn_dims *filter_dims,
                                                      const cmsis_nn_dims *output_dims) {
  (void)dw_conv_params;
  (void)output_dims;
  return input_dims->c * filter_dims->w * filter_dims->h * (int32_t)sizeof(int16_t);
}

arm_cmsis_nn_status arm_depthwise_conv_wrapper_s8(const cmsis_nn_context *ctx,
                                                  const cmsis_nn_dw_conv_params *dw_conv_params,
                                                  const cmsis_nn_per_channel_quant_params *quant_params,
                                                  const cmsis_nn_dims *input_dims, const int8_t *input_data,
                                                  const cmsis_nn_dims *filter_dims, const int8_t *filter_data,
                                                  const cmsis_nn_dims *bias_dims, const int32_t *bias_data,
                                                  const cmsis_nn_dims *output_dims, int8_t *output_data) {
  const cmsis_nn_dw_conv_params *params = dw_conv_params;
  const int32_t channels = input_dims->c, filters = output_dims->c;
  if (filter_dims->n != 1 || filter_dims->c != filters || bias_dims->c != filters || input_dims->n != 1 ||
      channels * params->ch_mult != filters) {
    return ARM_CMSIS_NN_ARG_ERROR;
  }
  if (fill(ctx, arm_depthwise_conv_wrapper_s8_get_buffer_size(params, input_dims, filter_dims, output_dims)) != 0) {
    return ARM_CMSIS_NN_ARG_ERROR;
  }
  for (int32_t oy = 0; oy < output_dims->h; ++oy)
    for (int32_t ox = 0; ox < output_dims->w; ++ox)
      for (int32_t f = 0; f < filters; ++f) {
        int32_t sum = bias_data[f];
        for (int32_t ky = 0; ky < filter_dims->h; ++ky)
          for (int32_t kx = 0; kx < filter_dims->w; ++kx) {
            const int32_t y = oy * params->stride.h - params->padding.h + ky;
            const int32_t x = ox * params->stride.w - params->padding.w + kx;
            if (y < 0 || y >= input_dims->h || x < 0 || x >= input_dims->w) continue;
            sum += (input_data[(y * input_dims->w + x) * channels + f / params->ch_mult] + params->input_offset) *
                   filter_data[(ky * filter_dims->w + kx) * filters + f];
          }
        sum = requantized(sum, quant_params->multiplier[f], quant_params->shift[f]) + params->output_offset;
        output_data[(oy * output_dims->w + ox) * filters + f] =
            limited(sum, params->activation.min, params->activation.max);
      }
  return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_max_pool_s8(const cmsis_nn_context *ctx, const cmsis_nn_pool_params *pool_params,
                                    const cmsis_nn_dims *input_dims, const int8_t *input_data,
                                    const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims,
                                    int8_t *output_data) {
  const int32_t channels = input_dims->c;
  (void)ctx;
  for (int32_t n = 0; n < output_dims->n; ++n)
    for (int32_t oy = 0; oy < output_dims->h; ++oy)
      for (int32_t ox = 0; ox < output_dims->w; ++ox)
        for (int32_t c = 0; c < channels; ++c) {
          int32_t largest = -128;
          for (int32_t ky = 0; ky < filter_dims->h; ++ky)
            for (int32_t kx = 0; kx < filter_dims->w; ++kx) {
              const int32_t y = oy * pool_params->stride.h - pool_params->padding.h + ky;
              const int32_t x = ox * pool_params->stride.w - pool_params->padding.w + kx;
              if (y < 0 || y >= input_dims->h || x < 0 || x >= input_dims->w) continue;
              const int32_t value = input_data[((n * input_dims->h + y) * input_dims->w + x) * channels + c];
              if (value > largest) largest = value;
            }
          output_data[((n * output_dims->h + oy) * output_dims->w + ox) * channels + c] =
              limited(largest, pool_params->activation.min, pool_params->activation.max);
        }
  return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_elementwise_add_s8(const int8_t *input_1_vect, const int8_t *input_2_vect,
                                           const int32_t input_1_offset, const int32_t input_1_mult,
                                           const int32_t input_1_shift, const int32_t input_2_offset,
                                           const int32_t input_2_mult, const int32_t input_2_shift,
                                           const int32_t left_shift, int8_t *output, const int32_t out_offset,
                                           const int32_t out_mult, const int32_t out_shift,
                                           const int32_t out_activation_min, const int32_t out_activation_max,
                                           const int32_t block_size) {
  for (int32_t i = 0; i < block_size; ++i) {
    const int32_t first = (input_1_vect[i] + input_1_offset) * (1 << left_shift);
    const int32_t second = (input_2_vect[i] + input_2_offset) * (1 << left_shift);
    const int32_t sum = requantized(first, input_1_mult, input_1_shift) +
                        requantized(second, input_2_mult, input_2_shift);
    output[i] = limited(requantized(sum, out_mult, out_shift) + out_offset, out_activation_min, out_activation_max);
  }
  return ARM_CMSIS_NN_SUCCESS;
}
