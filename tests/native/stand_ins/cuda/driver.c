/* SPDX-License-Identifier: 0BSD */
/* A stand-in for NVIDIA's driver: a libcuda.so.1 with two GPUs that are this processor; its machine code is a shared
 * library.
 *
 * Work stays in the stream until the host waits for it, which is as late as a GPU may start.
 * CUDA_STAND_IN_FAIL=<function>=<code> makes one function fail.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NO_BINARY_FOR_GPU = 209,
  INVALID_PTX = 218,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801,
};
enum { DEVICES = 2, MAX_HELD = 8, MAX_MODULES = 32 };
enum { MAX_BLOCKS = 4096, MAX_PARAMETERS = 64, PLAIN_SHARED = 48 << 10, MOST_SHARED = 227 << 10, MOST_ITEMS = 1024,
       MOST_DEEP = 64, MOST_ACROSS = 65535 };
enum { MACHINE_CUDA = 190, MACHINE_AT = 18, HEADERS_AT = 40, HEADER_SIZE_AT = 58, HEADER_COUNT_AT = 60 };

static const uint64_t total_bytes = (uint64_t)8 << 30;

typedef void (*call_t)(void **);
typedef int (*run_t)(call_t, const unsigned *, const unsigned *, unsigned, void **);

struct module {
  void *context;
  void *library; /* NULL for a GPU's machine code, which loads but cannot run here */
  run_t run;
  char *image;
  size_t size;
};

struct function {
  struct module *module;
  call_t call;
  int parameters;
  unsigned shared;
};

struct work {
  struct work *next;
  void *target;
  const void *source;
  char *staged;
  size_t size;
  struct function *function; /* NULL for a copy */
  unsigned grid[3], block[3], shared;
  uint64_t values[MAX_PARAMETERS];
};

static struct {
  char *start;
  size_t size;
} blocks[MAX_BLOCKS];
static uint64_t used_bytes;
static struct work *first_work, **last_work = &first_work;
static char contexts[DEVICES];
static __thread void *held[MAX_HELD]; /* the thread's context stack; the last one is current */
static __thread int held_count;
static int sticky, fail_code, modules;

static void *current(void) { return held_count > 0 ? held[held_count - 1] : NULL; }

static char *block_of(uint64_t address, size_t *size) {
  for (int index = 0; index < MAX_BLOCKS; ++index) {
    char *start = blocks[index].start;
    if (start != NULL && address >= (uintptr_t)start && address < (uintptr_t)start + blocks[index].size) {
      *size = blocks[index].size;
      return start;
    }
  }
  return NULL;
}

static int lies_in_memory(uint64_t address, size_t nbytes) {
  size_t size;
  const char *start = block_of(address, &size);
  return start != NULL && address + nbytes <= (uintptr_t)start + size;
}

static int run_kernel(struct work *work) {
  void *parameters[MAX_PARAMETERS];
  for (int index = 0; index < MAX_PARAMETERS; ++index) {
    parameters[index] = &work->values[index];
  }
  return work->function->module->run(work->function->call, work->grid, work->block, work->shared, parameters) == 0
             ? SUCCESS
             : LAUNCH_FAILED;
}

static int drain(void) {
  while (first_work != NULL) {
    struct work *work = first_work;
    if (sticky == SUCCESS && work->function != NULL) {
      sticky = run_kernel(work);
    } else if (sticky == SUCCESS) {
      memcpy(work->target, work->staged != NULL ? work->staged : work->source, work->size);
    }
    first_work = work->next;
    free(work->staged);
    free(work);
  }
  last_work = &first_work;
  return sticky;
}

static struct work *enqueue(void) {
  struct work *work = calloc(1, sizeof *work);
  *last_work = work;
  last_work = &work->next;
  return work;
}

static int copy(uint64_t target, uint64_t source, size_t size, int stage) {
  struct work *work = enqueue();
  work->target = (void *)(uintptr_t)target;
  work->source = (const void *)(uintptr_t)source;
  work->size = size;
  if (stage) {
    work->staged = malloc(size);
    memcpy(work->staged, work->source, size);
  }
  return SUCCESS;
}

static int init(unsigned flags) { return flags == 0 ? SUCCESS : INVALID_VALUE; }

static int driver_get_version(int *version) {
  *version = 12090;
  return SUCCESS;
}

static int device_get_count(int *count) {
  *count = DEVICES;
  return SUCCESS;
}

static int device_get(int *device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < DEVICES ? SUCCESS : INVALID_DEVICE;
}

static int device_get_name(char *name, int length, int device) {
  (void)device;
  snprintf(name, (size_t)length, "a processor");
  return SUCCESS;
}

static int device_total_mem(size_t *nbytes, int device) {
  (void)device;
  *nbytes = (size_t)total_bytes;
  return SUCCESS;
}

static int device_get_attribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == 75 ? 9 : 0; /* compute capability 9.0 */
  return SUCCESS;
}

static int primary_ctx_retain(void **context, int device) {
  *context = &contexts[device];
  return SUCCESS;
}

static int ctx_set_current(void *context) {
  held_count = held_count > 0 ? held_count - 1 : 0;
  if (context != NULL) {
    held[held_count++] = context;
  }
  return SUCCESS;
}

static int ctx_get_current(void **context) {
  *context = current();
  return SUCCESS;
}

static int ctx_push_current(void *context) {
  if (held_count == MAX_HELD) {
    return INVALID_VALUE;
  }
  held[held_count++] = context;
  return SUCCESS;
}

static int ctx_pop_current(void **context) {
  *context = current();
  return held_count > 0 ? (--held_count, SUCCESS) : INVALID_CONTEXT;
}

static int ctx_get_device(int *device) {
  *device = current() == NULL ? 0 : (int)((char *)current() - contexts);
  return current() != NULL ? SUCCESS : INVALID_CONTEXT;
}

static int mem_alloc(uint64_t *address, size_t nbytes) {
  int index = 0;
  if (current() == NULL) {
    return INVALID_CONTEXT;
  }
  while (index < MAX_BLOCKS && blocks[index].start != NULL) {
    ++index;
  }
  if (index == MAX_BLOCKS || nbytes > total_bytes - used_bytes) {
    return OUT_OF_MEMORY;
  }
  void *start = NULL;
  if (posix_memalign(&start, 512, nbytes) != 0) {
    return OUT_OF_MEMORY;
  }
  memset(start, 0xA5, nbytes);
  blocks[index].start = start;
  blocks[index].size = nbytes;
  used_bytes += nbytes;
  *address = (uintptr_t)start;
  return SUCCESS;
}

static int mem_free(uint64_t address) {
  drain();
  for (int index = 0; index < MAX_BLOCKS; ++index) {
    if (blocks[index].start != NULL && (uintptr_t)blocks[index].start == address) {
      used_bytes -= blocks[index].size;
      free(blocks[index].start);
      blocks[index].start = NULL;
      return SUCCESS;
    }
  }
  return INVALID_VALUE;
}

static int mem_get_address_range(uint64_t *base, size_t *size, uint64_t address) {
  char *start = block_of(address, size);
  *base = (uintptr_t)start;
  return start != NULL ? SUCCESS : NOT_FOUND;
}

static int memcpy_htod(uint64_t target, const void *source, size_t size, void *stream) {
  (void)stream;
  return lies_in_memory(target, size) ? copy(target, (uintptr_t)source, size, 1) : INVALID_VALUE;
}

static int memcpy_dtoh(void *target, uint64_t source, size_t size, void *stream) {
  (void)stream;
  return lies_in_memory(source, size) ? copy((uintptr_t)target, source, size, 0) : INVALID_VALUE;
}

static int memcpy_dtod(uint64_t target, uint64_t source, size_t size, void *stream) {
  (void)stream;
  return lies_in_memory(target, size) && lies_in_memory(source, size) ? copy(target, source, size, 0) : INVALID_VALUE;
}

static int stream_synchronize(void *stream) {
  (void)stream;
  return current() != NULL ? drain() : INVALID_CONTEXT;
}

static int event_create(void **event, unsigned flags) {
  static int made;
  (void)flags;
  *event = (void *)(intptr_t)++made;
  return SUCCESS;
}

static int event_record(void *event, void *stream) {
  (void)event;
  (void)stream;
  return current() != NULL ? SUCCESS : INVALID_CONTEXT;
}

static int event_synchronize(void *event) {
  (void)event;
  return drain();
}

/* one millisecond per event in between */
static int event_elapsed_time(float *milliseconds, void *start, void *end) {
  *milliseconds = (float)((intptr_t)end - (intptr_t)start);
  return SUCCESS;
}

static int event_destroy(void *event) {
  (void)event;
  return SUCCESS;
}

static size_t image_size(const char *image) {
  uint64_t headers;
  uint16_t size, count;
  memcpy(&headers, image + HEADERS_AT, sizeof headers);
  memcpy(&size, image + HEADER_SIZE_AT, sizeof size);
  memcpy(&count, image + HEADER_COUNT_AT, sizeof count);
  return (size_t)headers + (size_t)size * count;
}

static int module_load(struct module **out, const char *image, unsigned count, int *options, void **values) {
  char path[64];
  uint16_t machine;
  if (current() == NULL) {
    return INVALID_CONTEXT;
  }
  if (modules == MAX_MODULES) {
    return OUT_OF_MEMORY;
  }
  if (memcmp(image, "\177ELF", 4) != 0) {
    for (unsigned index = 0; index < count; ++index) {
      if (options[index] == 5) { /* the compile log of the driver */
        snprintf(values[index], 256, "ptxas application ptx input, line 1; fatal : not compiled by a stand-in");
      }
    }
    return strstr(image, ".version") != NULL ? INVALID_PTX : INVALID_IMAGE;
  }
  struct module *module = calloc(1, sizeof *module);
  ++modules;
  module->context = current();
  memcpy(&machine, image + MACHINE_AT, sizeof machine);
  module->size = image_size(image);
  module->image = malloc(module->size);
  memcpy(module->image, image, module->size);
  *out = module;
  if (machine == MACHINE_CUDA) {
    return SUCCESS;
  }
  const int file = memfd_create("image", 0);
  if (file < 0 || write(file, image, module->size) != (ssize_t)module->size) {
    return OUT_OF_MEMORY;
  }
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  module->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (module->library == NULL) {
    return NO_BINARY_FOR_GPU;
  }
  *(void **)&module->run = dlsym(module->library, "on_host_run");
  return SUCCESS;
}

static int module_unload(struct module *module) {
  if (first_work != NULL) {
    return LAUNCH_FAILED; /* its kernels may still be running */
  }
  --modules;
  if (module->library != NULL) {
    dlclose(module->library);
  }
  free(module->image);
  free(module);
  return SUCCESS;
}

static int module_get_function(struct function **out, struct module *module, const char *name) {
  char symbol[512];
  snprintf(symbol, sizeof symbol, module->library != NULL ? "on_host_call_%s" : ".text.%s", name);
  struct function *function = calloc(1, sizeof *function);
  function->module = module;
  function->shared = PLAIN_SHARED;
  *out = function;
  if (module->library == NULL) {
    return memmem(module->image, module->size, symbol, strlen(symbol)) != NULL ? SUCCESS : NOT_FOUND;
  }
  *(void **)&function->call = dlsym(module->library, symbol);
  snprintf(symbol, sizeof symbol, "on_host_parameters_%s", name);
  const int *count = dlsym(module->library, symbol);
  function->parameters = count != NULL ? *count : 0;
  return function->call != NULL && function->parameters <= MAX_PARAMETERS ? SUCCESS : NOT_FOUND;
}

static int func_set_attribute(struct function *function, int attribute, int value) {
  if (attribute != 8 || value > MOST_SHARED) {
    return INVALID_VALUE;
  }
  function->shared = (unsigned)value;
  return SUCCESS;
}

static int check_launch(struct function *function, const unsigned *grid, const unsigned *block, unsigned shared) {
  if (function->module->context != current()) {
    return INVALID_HANDLE;
  }
  if (function->call == NULL) {
    return NOT_SUPPORTED;
  }
  return (uint64_t)block[0] * block[1] * block[2] > MOST_ITEMS || shared > function->shared || block[2] > MOST_DEEP ||
                 grid[0] > INT32_MAX || grid[1] > MOST_ACROSS || grid[2] > MOST_ACROSS
             ? INVALID_VALUE
             : SUCCESS;
}

static int launch_kernel(struct function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters,
                         void **extra) {
  (void)stream;
  (void)extra;
  const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
  const int status = check_launch(function, grid, block, shared);
  if (status != SUCCESS) {
    return status;
  }
  struct work *work = enqueue();
  work->function = function;
  memcpy(work->grid, grid, sizeof work->grid);
  memcpy(work->block, block, sizeof work->block);
  work->shared = shared;
  for (int index = 0; index < function->parameters; ++index) {
    memcpy(&work->values[index], parameters[index], sizeof work->values[index]);
  }
  return SUCCESS;
}

#include "graph.h"

static int fail(void) { return fail_code; }

static int get_proc_address(const char *, void **, int, uint64_t, int *);

static const struct {
  const char *name;
  void *function;
} functions[] = {
    {"cuInit", (void *)init},
    {"cuDriverGetVersion", (void *)driver_get_version},
    {"cuDeviceGetCount", (void *)device_get_count},
    {"cuDeviceGet", (void *)device_get},
    {"cuDeviceGetName", (void *)device_get_name},
    {"cuDeviceTotalMem", (void *)device_total_mem},
    {"cuDeviceGetAttribute", (void *)device_get_attribute},
    {"cuDevicePrimaryCtxRetain", (void *)primary_ctx_retain},
    {"cuCtxSetCurrent", (void *)ctx_set_current},
    {"cuCtxGetCurrent", (void *)ctx_get_current},
    {"cuCtxPushCurrent", (void *)ctx_push_current},
    {"cuCtxPopCurrent", (void *)ctx_pop_current},
    {"cuCtxGetDevice", (void *)ctx_get_device},
    {"cuMemAlloc", (void *)mem_alloc},
    {"cuMemFree", (void *)mem_free},
    {"cuMemGetAddressRange", (void *)mem_get_address_range},
    {"cuMemcpyHtoDAsync", (void *)memcpy_htod},
    {"cuMemcpyDtoHAsync", (void *)memcpy_dtoh},
    {"cuMemcpyDtoDAsync", (void *)memcpy_dtod},
    {"cuStreamSynchronize", (void *)stream_synchronize},
    {"cuEventCreate", (void *)event_create},
    {"cuEventRecord", (void *)event_record},
    {"cuEventSynchronize", (void *)event_synchronize},
    {"cuEventElapsedTime", (void *)event_elapsed_time},
    {"cuEventDestroy", (void *)event_destroy},
    {"cuModuleLoadDataEx", (void *)module_load},
    {"cuModuleUnload", (void *)module_unload},
    {"cuModuleGetFunction", (void *)module_get_function},
    {"cuFuncSetAttribute", (void *)func_set_attribute},
    {"cuLaunchKernel", (void *)launch_kernel},
    {"cuGraphCreate", (void *)graph_create},
    {"cuGraphDestroy", (void *)graph_destroy},
    {"cuGraphAddKernelNode", (void *)graph_add_kernel},
    {"cuGraphAddEventRecordNode", (void *)graph_add_event},
    {"cuGraphInstantiateWithFlags", (void *)graph_instantiate},
    {"cuGraphInstantiate", (void *)graph_instantiate},
    {"cuGraphLaunch", (void *)graph_launch},
    {"cuGraphExecDestroy", (void *)graph_destroy},
    {"cuGetProcAddress", (void *)get_proc_address},
};

static int get_proc_address(const char *name, void **out, int version, uint64_t flags, int *status) {
  const char *failing = getenv("CUDA_STAND_IN_FAIL");
  const size_t length = strlen(name);
  (void)version;
  (void)flags;
  *out = NULL;
  if (status != NULL) {
    *status = 1;
  }
  for (size_t index = 0; index < sizeof functions / sizeof *functions; ++index) {
    if (strcmp(functions[index].name, name) == 0) {
      *out = functions[index].function;
    }
  }
  if (failing != NULL && strncmp(failing, name, length) == 0 && failing[length] == '=') {
    fail_code = atoi(failing + length + 1);
    *out = (void *)fail;
  }
  if (*out != NULL && status != NULL) {
    *status = 0;
  }
  return *out != NULL ? SUCCESS : NOT_FOUND;
}

int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
  return get_proc_address(name, out, version, flags, status);
}
