// Function: mean_kernel
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

__kernel __attribute__((reqd_work_group_size(16, 16, 1)))
void mean_kernel(__global const float *restrict x, __global float *restrict output) {
  const int32_t item_x = (int32_t)get_local_id(0);
  const int32_t item_y = (int32_t)get_local_id(1);
  __local float partial[256];
  float total[1];
  total[0] = 0.0f;
  for (int32_t turn = 0; turn < 3; ++turn) {
    const int32_t place = turn * 16 + item_y;
    if (place < 36) {
      total[0] += x[(place / 6) * 96 + (place % 6) * 16 + item_x];
    }
  }
  partial[item_y * 16 + item_x] = total[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_y < 8) {
    partial[item_y * 16 + item_x] += partial[item_y * 16 + item_x + 128];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_y < 4) {
    partial[item_y * 16 + item_x] += partial[item_y * 16 + item_x + 64];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_y < 2) {
    partial[item_y * 16 + item_x] += partial[item_y * 16 + item_x + 32];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_y < 1) {
    partial[item_y * 16 + item_x] += partial[item_y * 16 + item_x + 16];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item_y == 0) {
    output[item_x] = partial[item_x] / 36.0f;
  }
}
