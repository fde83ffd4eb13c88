/* SPDX-License-Identifier: 0BSD */
/* CUDA C++ as C++14 for the host, whose headers compile faster than those of C++17: each work item runs to the next barrier before any passes it. */
#ifndef ON_HOST_H
#define ON_HOST_H

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
/* groups run one at a time, so shared memory may be static */
#define __shared__ static

#define ON_HOST_VECTORS(kind, type)                                                                        \
  struct kind##2 { type x, y; } __attribute__((aligned(2 * sizeof(type))));                               \
  struct kind##3 { type x, y, z; };                                                                        \
  struct kind##4 { type x, y, z, w; } __attribute__((aligned(sizeof(type) < 8 ? 4 * sizeof(type) : 16))); \
  static inline kind##2 make_##kind##2(type x, type y) { return {x, y}; }                                  \
  static inline kind##3 make_##kind##3(type x, type y, type z) { return {x, y, z}; }                       \
  static inline kind##4 make_##kind##4(type x, type y, type z, type w) { return {x, y, z, w}; }

ON_HOST_VECTORS(char, signed char)
ON_HOST_VECTORS(uchar, unsigned char)
ON_HOST_VECTORS(short, short)
ON_HOST_VECTORS(ushort, unsigned short)
ON_HOST_VECTORS(int, int)
ON_HOST_VECTORS(uint, unsigned)
ON_HOST_VECTORS(longlong, long long)
ON_HOST_VECTORS(ulonglong, unsigned long long)
ON_HOST_VECTORS(float, float)
ON_HOST_VECTORS(double, double)

static uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace on_host {

using Call = void (*)(void **);

constexpr size_t stack_bytes = 64 << 10;

struct Item {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool waits;
};

static ucontext_t scheduler;
static Item *running;
static Call call;
static void **parameters;
static char *dynamic_shared;

static void run_item() {
  call(parameters);
  running->waits = false;
}

static inline uint3 place_of(unsigned number) {
  return {number % blockDim.x, number / blockDim.x % blockDim.y, number / blockDim.x / blockDim.y};
}

/* runs the items of a group from barrier to barrier; false if some return while others wait */
static bool run_group(std::vector<Item> &items) {
  for (Item &item : items) {
    getcontext(&item.context);
    item.context.uc_stack.ss_sp = item.stack.get();
    item.context.uc_stack.ss_size = stack_bytes;
    item.context.uc_link = &scheduler;
    makecontext(&item.context, run_item, 0);
  }
  for (;;) {
    size_t waiting = 0;
    for (size_t number = 0; number < items.size(); ++number) {
      running = &items[number];
      running->waits = true;
      threadIdx = place_of(static_cast<unsigned>(number));
      swapcontext(&scheduler, &running->context);
      waiting += running->waits;
    }
    if (waiting == 0 || waiting != items.size()) {
      return waiting == 0;
    }
  }
}

template <class... Types, size_t... Places>
void spread(void (*kernel)(Types...), void **values, std::index_sequence<Places...>) {
  kernel(*static_cast<std::remove_cv_t<Types> *>(values[Places])...);
}

template <class... Types>
void spread(void (*kernel)(Types...), void **values) {
  spread(kernel, values, std::index_sequence_for<Types...>());
}

template <class... Types>
constexpr int count(void (*)(Types...)) {
  return sizeof...(Types);
}

}  // namespace on_host

static inline void __syncthreads() {
  swapcontext(&on_host::running->context, &on_host::scheduler);
}

static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }

static inline int __dp4a(int a, int b, int sum) {
  signed char left[4], right[4];
  std::memcpy(left, &a, 4);
  std::memcpy(right, &b, 4);
  for (int byte = 0; byte < 4; ++byte) {
    sum += left[byte] * right[byte];
  }
  return sum;
}

static inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

/* the entry point for the driver stand-in; returns 1 if some items do not reach a barrier, else 0 */
extern "C" int on_host_run(on_host::Call call, const unsigned *grid, const unsigned *block, unsigned shared_bytes,
                           void **parameters) {
  std::vector<char> shared(shared_bytes);
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  on_host::call = call;
  on_host::parameters = parameters;
  on_host::dynamic_shared = shared.data();
  std::vector<on_host::Item> items(static_cast<size_t>(block[0]) * block[1] * block[2]);
  for (on_host::Item &item : items) {
    item.stack.reset(new char[on_host::stack_bytes]);
  }
  for (unsigned z = 0; z < grid[2]; ++z) {
    for (unsigned y = 0; y < grid[1]; ++y) {
      for (unsigned x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        if (!on_host::run_group(items)) {
          return 1;
        }
      }
    }
  }
  return 0;
}

/* follows the kernels, once for each */
#define ON_HOST_KERNEL(name)                                                            \
  extern "C" void on_host_call_##name(void **values) { on_host::spread(name, values); } \
  extern "C" const int on_host_parameters_##name;                                       \
  const int on_host_parameters_##name = on_host::count(name);

#endif
