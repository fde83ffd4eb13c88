/* Bytecode of the virtual machine: what is loaded is run, on inputs as it declares them, with limits of all kinds. */
#include <stdlib.h>
#include <string.h>

#include "../tests/native/crt/vm_kernels.c"
#include "mlfc_vm.h"

enum { MEMORY_BYTES = 1 << 20, MAX_INPUTS = 16, INPUT_BYTES = 1 << 12, TURNS = 2000, DEPTH = 8 };

static size_t blocks = 0;

static void* allocate(void* context, size_t bytes) {
  (void)context;
  if (bytes > 2 * MEMORY_BYTES) return NULL;
  ++blocks;
  return calloc(1, bytes);
}

static void release(void* context, void* memory) {
  (void)context;
  --blocks;
  free(memory);
}

static int32_t packed(void* context, const char* name, mlfc_vm_tensor* tensors, uint32_t count) {
  volatile size_t length = strlen(name);
  (void)context;
  (void)tensors;
  return (int32_t)((length + count) % 3 == 0);
}

static uint32_t u32(const uint8_t* at) {
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Sets an input as the record of 72 bytes declares it; returns whether it is small. */
static int set_input(mlfc_vm_tensor* tensor, const uint8_t* record, uint8_t* memory) {
  uint64_t bytes = 8;
  memset(tensor, 0, sizeof(*tensor));
  tensor->dtype = record[4];
  tensor->rank = record[5];
  for (int axis = 0; axis < tensor->rank; ++axis) {
    const uint32_t low = u32(record + 8 + 8 * axis);
    const uint32_t high = u32(record + 12 + 8 * axis);
    /* what is open is 2 */
    const uint64_t extent = (high & 0x80000000u) != 0 ? 2 : (uint64_t)high << 32 | low;
    if (extent != 0 && bytes > INPUT_BYTES / extent) return 0;
    bytes *= extent;
    tensor->extents[axis] = (int64_t)extent;
  }
  tensor->data = memory;
  return 1;
}

static void run(const mlfc_vm* vm, const mlfc_vm_host* given) {
  static uint8_t memory[INPUT_BYTES] __attribute__((aligned(64)));
  mlfc_vm_tensor inputs[MAX_INPUTS];
  const uint32_t function = 0;
  const size_t state_bytes = mlfc_vm_state_bytes(vm);
  const uint32_t states = state_bytes > 0 ? vm->counts[10] : 0;
  const uint32_t count = mlfc_vm_parameter_count(vm, function) - states;
  const uint32_t results = mlfc_vm_result_count(vm, function) - states;
  const size_t bytes = mlfc_vm_work_bytes(vm, DEPTH);
  mlfc_vm_tensor* outputs;
  mlfc_vm_error error;
  mlfc_vm_host own = *given;
  const mlfc_vm_host* host = &own;
  uint8_t* kept = NULL;
  void* work;
  if (count > MAX_INPUTS || bytes == 0 || bytes > (16u << 20) || state_bytes > (16u << 20)) return;
  for (uint32_t i = 0; i < count; ++i) {
    if (!set_input(&inputs[i], vm->tables[2] + (size_t)72 * i, memory)) return;
  }
  for (size_t i = 0; i < sizeof(memory); ++i) memory[i] = (uint8_t)(i % 3);
  work = malloc(bytes);
  outputs = (mlfc_vm_tensor*)calloc(results + 1, sizeof(*outputs));
  if (work == NULL || outputs == NULL) abort();
  memset(work, 0, bytes);
  if (state_bytes > 0) {
    kept = (uint8_t*)malloc(state_bytes + 64);
    if (kept == NULL) abort();
    own.state = kept + (64 - (uintptr_t)kept % 64) % 64;
    mlfc_vm_state_reset(vm, own.state);
  }
  if (mlfc_vm_run(vm, function, inputs, count, outputs, results, work, bytes, host, &error) == MLFC_VM_OK) {
    for (uint32_t i = 0; i < results; ++i) {
      volatile uint8_t sum = 0;
      size_t size = outputs[i].dtype == 1 || outputs[i].dtype == 0 ? 1 : 0;
      for (int axis = 0; axis < outputs[i].rank; ++axis) size *= (size_t)outputs[i].extents[axis];
      for (size_t at = 0; at < size; ++at) sum = (uint8_t)(sum + ((uint8_t*)outputs[i].data)[at]);
    }
    mlfc_vm_release(host, outputs, results);
  } else if (error.code <= 0 || error.code > MLFC_VM_INDEX || (error.text != NULL && strlen(error.text) > 1u << 20)) {
    abort();
  }
  if (blocks != 0) abort();
  free(outputs);
  free(work);
  free(kept);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const mlfc_vm_host bounded = {NULL, NULL, NULL, NULL, MEMORY_BYTES, TURNS, DEPTH, NULL};
  const mlfc_vm_host open = {allocate, release, packed, NULL, MEMORY_BYTES, TURNS, DEPTH, NULL};
  mlfc_vm vm;
  mlfc_vm_error error;
  /* The file ends where its memory ends. */
  uint8_t* file = (uint8_t*)malloc(size);
  if (file == NULL && size > 0) return 0;
  if (size > 0) memcpy(file, data, size);
  if (mlfc_vm_load(&vm, file, size, &tvmgen_vmtest_vm_code, &error) == MLFC_VM_OK) {
    run(&vm, &open);
    run(&vm, &bounded);
  }
  free(file);
  return 0;
}
