// Function: softmax_kernel
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define INT64_MIN (-9223372036854775807L - 1)
#define INT64_C(x) x##L
#define UINT32_C(x) x##U
#define UINT64_C(x) x##UL

/* expm1(x - n * ln(2)), where n is the nearest exponent of x */
static inline float mlf_expm1_rest(float x, int32_t n) {
  const float count = (float)n;
  const float r = x - count * 0.6933594f - count * (-0.00021219444f);
  return r + r * r * ((((0.00139506f * r + 0.008368954f) * r + 0.041666206f) * r + 0.16666518f) * r + 0.5f);
}

static inline uint32_t mlf_bits_of_float(float x) {
  return as_uint(x);
}

/* the integer nearest to x / ln(2) */
static inline int32_t mlf_nearest_exponent(float x) {
  /* its low bits hold the integer */
  const float rounded = x * 1.442695f + 12582912.0f;
  return (int32_t)(mlf_bits_of_float(rounded) - 0x4b400000U);
}

static inline float mlf_float_of_bits(uint32_t bits) {
  return as_float(bits);
}

/* 2**exponent, for exponents of normal floats */
static inline float mlf_power_of_two(int32_t exponent) {
  return mlf_float_of_bits(((uint32_t)exponent + 127U) << 23);
}

/* e**x within 1.1 ULP, of what gives a normal float */
static inline float mlf_exp_normal_f32(float x) {
  const int32_t n = mlf_nearest_exponent(x);
  const float rest = mlf_expm1_rest(x, n);
  const float power = mlf_power_of_two(n);
  return power * rest + power;
}

/* e**x of what is not above zero, within 1.1 ULP; 0 where that is less than 2**-126 */
static inline float mlf_exp_below_f32(float x) {
  const float limited = x < (-87.336f) ? (-87.336f) : x;
  const float power = mlf_exp_normal_f32(limited);
  return x < (-87.336f) ? 0.0f : power;
}

static inline float mlf_max_f32(float a, float b) {
  return a > b ? a : b;
}

__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void softmax_kernel(__global const float *restrict x, __global float *restrict output) {
  const int32_t group_x = (int32_t)get_group_id(0);
  const int32_t item_x = (int32_t)get_local_id(0);
  __local float row[16];
  __local float top[32];
  __local float total[32];
  float part[1];
  part[0] = (-INFINITY);
  if (item_x < 16) {
    part[0] = mlf_max_f32(part[0], x[(group_x / 6) * 96 + (group_x % 6) * 16 + item_x]);
  }
  top[item_x] = part[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_x < 16) {
    top[item_x] = mlf_max_f32(top[item_x], top[item_x + 16]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_x < 8) {
    top[item_x] = mlf_max_f32(top[item_x], top[item_x + 8]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_x < 4) {
    top[item_x] = mlf_max_f32(top[item_x], top[item_x + 4]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_x < 2) {
    top[item_x] = mlf_max_f32(top[item_x], top[item_x + 2]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_x < 1) {
    top[item_x] = mlf_max_f32(top[item_x], top[item_x + 1]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  const float folded = top[0];
  float part_1[1];
  part_1[0] = 0.0f;
  if (item_x < 16) {
    const float below = x[(group_x / 6) * 96 + (group_x % 6) * 16 + item_x] - folded;
    const float power = mlf_exp_below_f32(below);
    row[item_x] = power;
    part_1[0] += power;
  }
  total[item_x] = part_1[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_x < 16) {
    total[item_x] += total[item_x + 16];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_x < 8) {
    total[item_x] += total[item_x + 8];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_x < 4) {
    total[item_x] += total[item_x + 4];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_x < 2) {
    total[item_x] += total[item_x + 2];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_x < 1) {
    total[item_x] += total[item_x + 1];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  const float folded_1 = total[0];
  const float scale = 1.0f / folded_1;
  if (item_x < 16) {
    output[(group_x / 6) * 96 + (group_x % 6) * 16 + item_x] = row[item_x] * scale;
  }
}
