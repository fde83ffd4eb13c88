/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/* The virtual machine for hosts: memory comes from malloc, and each call is one of a caller with plain pointers. */
#include "mlfc_vm_host.h"

#include <stdlib.h>
#include <string.h>

struct opened {
  mlfc_vm vm;
  /* the work area of a run that ended, for the next one; taken and given back by exchange */
  void* spare;
  size_t work_bytes;
  uint32_t depth;
};

static void* allocate(void* context, size_t bytes) {
  (void)context;
  return calloc(1, bytes);
}

static void release(void* context, void* memory) {
  (void)context;
  free(memory);
}

static const mlfc_vm_host memory_functions = {allocate, release, NULL, NULL, 0, 0, 0};

int32_t mlfc_vm_host_open(const uint8_t* file, uint64_t bytes, const mlfc_vm_code* code, uint32_t depth, void** opened,
                          mlfc_vm_error* error) {
  struct opened* made = (struct opened*)calloc(1, sizeof(struct opened));
  int32_t status;
  *opened = NULL;
  if (made == NULL) {
    memset(error, 0, sizeof(*error));
    error->code = MLFC_VM_ALLOCATE;
    return error->code;
  }
  status = bytes > SIZE_MAX ? MLFC_VM_ALLOCATE : mlfc_vm_load(&made->vm, file, (size_t)bytes, code, error);
  if (status != MLFC_VM_OK) {
    free(made);
    return status;
  }
  made->depth = depth;
  made->work_bytes = mlfc_vm_work_bytes(&made->vm, depth);
  *opened = made;
  return MLFC_VM_OK;
}

void mlfc_vm_host_close(void* opened) {
  free(((struct opened*)opened)->spare);
  free(opened);
}

int32_t mlfc_vm_host_run(void* opened, uint32_t function, const mlfc_vm_tensor* inputs, uint32_t input_count,
                         mlfc_vm_tensor* outputs, uint32_t output_count, int64_t memory_limit, uint64_t turn_limit,
                         void** work, mlfc_vm_error* error) {
  struct opened* self = (struct opened*)opened;
  mlfc_vm_host host = memory_functions;
  int32_t status;
  host.memory_limit = memory_limit;
  host.turn_limit = turn_limit;
  host.depth_limit = self->depth;
  *work = __atomic_exchange_n(&self->spare, NULL, __ATOMIC_ACQUIRE);
  if (*work == NULL) *work = self->work_bytes == 0 ? NULL : calloc(1, self->work_bytes);
  if (*work == NULL) {
    memset(error, 0, sizeof(*error));
    error->code = MLFC_VM_ALLOCATE;
    error->values[0] = (int64_t)self->work_bytes;
    return error->code;
  }
  status = mlfc_vm_run(&self->vm, function, inputs, input_count, outputs, output_count, *work, self->work_bytes, &host,
                       error);
  if (status != MLFC_VM_OK) mlfc_vm_host_finish(opened, NULL, 0, *work);
  return status;
}

void mlfc_vm_host_finish(void* opened, mlfc_vm_tensor* outputs, uint32_t output_count, void* work) {
  mlfc_vm_release(&memory_functions, outputs, output_count);
  free(__atomic_exchange_n(&((struct opened*)opened)->spare, work, __ATOMIC_RELEASE));
}
