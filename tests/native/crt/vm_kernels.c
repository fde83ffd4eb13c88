/* Native code of small models for the virtual machine: kernels and constants that its tests name by number. */
#include <mlfc_vm_code.h>
#include <string.h>

/* z = x + y, n elements of int32 */
static int32_t add(const mlfc_vm_buffer* buffers, const int64_t* numbers) {
  const int64_t n = numbers[0];
  if (n < 0 || n > INT32_MAX) return 1;
  for (int i = 0; i < 3; ++i) {
    if (buffers[i].bytes < n * 4) return 2;
  }
  for (int64_t i = 0; i < n; ++i) {
    uint32_t x, y;
    memcpy(&x, buffers[0].data + i * 4, 4);
    memcpy(&y, buffers[1].data + i * 4, 4);
    x += y;
    memcpy(buffers[2].data + i * 4, &x, 4);
  }
  return 0;
}

/* every byte of z becomes the value */
static int32_t fill(const mlfc_vm_buffer* buffers, const int64_t* numbers) {
  if (numbers[0] < 0 || numbers[0] > 255) return 1;
  if (buffers[0].bytes > 0) memset(buffers[0].data, (int)numbers[0], (size_t)buffers[0].bytes);
  return 0;
}

/* z = the bytes of x in reverse, by way of a workspace */
static int32_t reverse(const mlfc_vm_buffer* buffers, const int64_t* numbers) {
  const int64_t n = buffers[0].bytes;
  (void)numbers;
  if (buffers[1].bytes != n || buffers[2].bytes < n) return 1;
  for (int64_t i = 0; i < n; ++i) buffers[2].data[i] = buffers[0].data[n - 1 - i];
  if (n > 0) memcpy(buffers[1].data, buffers[2].data, (size_t)n);
  return 0;
}

/* the number as status */
static int32_t status(const mlfc_vm_buffer* buffers, const int64_t* numbers) {
  (void)buffers;
  return (int32_t)numbers[0];
}

static const mlfc_vm_kernel_entry kernels[] = {{add, 3, 2, 1}, {fill, 1, 0, 1}, {reverse, 3, 1, 0}, {status, 0, 0, 1}};

static union {
  int64_t numbers[3];
  uint8_t bytes[64];
  long double aligned[4];
} integers __attribute__((aligned(64))) = {{3, -1, 7}};
static uint8_t flags[64] __attribute__((aligned(64))) = {1, 0, 1};
static uint8_t big[64] __attribute__((aligned(64))) = {255, 255, 255, 255, 255, 255, 255, 255};
static float floats[16] __attribute__((aligned(64))) = {1.5f, -2.0f};

static const mlfc_vm_buffer constants[] = {{integers.bytes, 24}, {flags, 3}, {big, 8}, {(uint8_t*)floats, 8}};

const mlfc_vm_code tvmgen_vmtest_vm_code = {4, kernels, 4, constants};
