/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/* The virtual machine for hosts: memory comes from malloc, and each call is one of a caller with plain pointers.
 *
 * What a run allocates stays for later runs of the same model, as fresh memory of the system costs a fault for each
 * page. Blocks are zeros when the system gives them, and later what the model's runs left there: so no model reads what
 * others wrote. With MLFC_VM_HOST_ZEROS defined they are zeros always, to compare interpreters on bytecode that reads
 * what it never wrote; mlfc writes none. */
#include "mlfc_vm_host.h"

#include <stdlib.h>
#include <string.h>

#include "../src/runtime/crt/vm/file.h"

/* Areas that wait for a run, and the sizes of blocks: four for each power of two. */
enum { SPARES = 8, QUARTERS = 4, SIZES = 64 * QUARTERS, LEAST_BITS = 8, HEADER_BYTES = 32 };
/* Kept whatever runs take. */
static const size_t slack = (size_t)1 << 16;

/* Before every block; HEADER_BYTES with what follows it. */
struct header {
  struct header* next;
  size_t bytes;
  uint32_t size;
  /* the last run that used it */
  uint32_t run;
};

/* What a run has for itself: the work area, and blocks that runs before it released. */
struct area {
  void* work;
  struct header* kept[SIZES];
  size_t kept_bytes;
  /* of blocks that the run has, now and at most */
  size_t live_bytes;
  size_t peak_bytes;
  /* the most of any run; of long ago less */
  size_t usual_bytes;
  uint32_t run;
};

struct opened {
  mlfc_vm vm;
  /* taken and given back by exchange */
  struct area* spares[SPARES];
  size_t work_bytes;
  /* of the caller, and of each output: what collects garbage may close first and release later */
  size_t references;
  uint32_t depth;
};

/* Returns the number of the size that has room for some bytes, and that size. */
static uint32_t size_of(size_t* bytes) {
  uint32_t bits = LEAST_BITS;
  size_t step;
  size_t steps;
  while (bits < 8 * sizeof(size_t) - 1 && (*bytes - 1) >> bits > 1) ++bits;
  step = ((size_t)1 << bits) / QUARTERS;
  if (*bytes <= (size_t)1 << LEAST_BITS) *bytes = (size_t)1 << LEAST_BITS;
  steps = (*bytes + step - 1) / step; /* 4 to 8 */
  *bytes = steps * step;
  return (bits - LEAST_BITS) * QUARTERS + (uint32_t)steps - QUARTERS;
}

static void* allocate(void* context, size_t bytes) {
  struct area* area = (struct area*)context;
  struct header* header;
  uint32_t size;
  if (bytes > SIZE_MAX / 4) return NULL;
  bytes += HEADER_BYTES;
  size = size_of(&bytes);
  header = area->kept[size];
  if (header != NULL) {
    area->kept[size] = header->next;
    area->kept_bytes -= bytes;
#ifdef MLFC_VM_HOST_ZEROS
    memset((uint8_t*)header + HEADER_BYTES, 0, bytes - HEADER_BYTES);
#endif
  } else {
    header = (struct header*)calloc(1, bytes);
    if (header == NULL) return NULL;
    header->bytes = bytes;
    header->size = size;
  }
  header->run = area->run;
  area->live_bytes += bytes;
  if (area->live_bytes > area->peak_bytes) area->peak_bytes = area->live_bytes;
  return (uint8_t*)header + HEADER_BYTES;
}

/* Keeps a block, unless there is twice what runs take. */
static void keep(struct area* area, struct header* header) {
  const size_t most = area->peak_bytes > area->usual_bytes ? area->peak_bytes : area->usual_bytes;
  if (area->kept_bytes + header->bytes > 2 * most + slack) {
    free(header);
    return;
  }
  header->next = area->kept[header->size];
  area->kept[header->size] = header;
  area->kept_bytes += header->bytes;
}

static struct header* header_of(void* memory) { return (struct header*)(void*)((uint8_t*)memory - HEADER_BYTES); }

static void release(void* context, void* memory) {
  struct area* area = (struct area*)context;
  area->live_bytes -= header_of(memory)->bytes;
  keep(area, header_of(memory));
}

/* Frees the blocks that this run has not used; all of them for run 0, which is none. */
static void trim(struct area* area, uint32_t run) {
  for (int size = 0; size < SIZES; ++size) {
    struct header** place = &area->kept[size];
    while (*place != NULL) {
      struct header* header = *place;
      if (header->run == run) {
        place = &header->next;
        continue;
      }
      *place = header->next;
      area->kept_bytes -= header->bytes;
      free(header);
    }
  }
}

static void free_area(struct area* area) {
  if (area == NULL) return;
  trim(area, 0);
  free(area->work);
  free(area);
}

static struct area* take_area(struct opened* self) {
  for (int i = 0; i < SPARES; ++i) {
    struct area* area = __atomic_exchange_n(&self->spares[i], NULL, __ATOMIC_ACQUIRE);
    if (area != NULL) return area;
  }
  return NULL;
}

static void give_area(struct opened* self, struct area* area) {
  for (int i = 0; i < SPARES && area != NULL; ++i) {
    struct area* none = NULL;
    if (__atomic_compare_exchange_n(&self->spares[i], &none, area, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) return;
  }
  free_area(area);
}

static struct area* new_area(const struct opened* self) {
  struct area* area = self->work_bytes == 0 ? NULL : (struct area*)calloc(1, sizeof(struct area));
  if (area == NULL) return NULL;
  area->work = calloc(1, self->work_bytes);
  if (area->work != NULL) return area;
  free(area);
  return NULL;
}

static void end_run(struct area* area) {
  area->usual_bytes -= area->usual_bytes / 16;
  if (area->peak_bytes > area->usual_bytes) area->usual_bytes = area->peak_bytes;
  if (area->kept_bytes > 2 * area->usual_bytes + slack) trim(area, area->run);
}

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
  made->references = 1;
  made->depth = depth;
  made->work_bytes = mlfc_vm_work_bytes(&made->vm, depth);
  *opened = made;
  return MLFC_VM_OK;
}

static void drop(struct opened* self) {
  if (__atomic_sub_fetch(&self->references, 1, __ATOMIC_ACQ_REL) > 0) return;
  for (int i = 0; i < SPARES; ++i) free_area(self->spares[i]);
  free(self);
}

void mlfc_vm_host_close(void* opened) { drop((struct opened*)opened); }

static size_t bytes_of(const mlfc_vm_tensor* tensor) {
  size_t bytes = mlfc_vm_dtype_bytes[tensor->dtype];
  for (uint8_t axis = 0; axis < tensor->rank; ++axis) bytes *= (size_t)tensor->extents[axis];
  return bytes;
}

static int fits(const mlfc_vm_tensor* target, const mlfc_vm_tensor* result) {
  if (target->dtype != result->dtype || target->rank != result->rank) return 0;
  for (uint8_t axis = 0; axis < result->rank; ++axis) {
    if (target->extents[axis] != result->extents[axis]) return 0;
  }
  return 1;
}

static int32_t copy_out(const mlfc_vm_tensor* outputs, uint32_t count, const mlfc_vm_tensor* targets,
                        mlfc_vm_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    if (!fits(&targets[i], &outputs[i])) {
      error->code = MLFC_VM_BAD_OUTPUT;
      error->values[0] = i;
      return error->code;
    }
  }
  for (uint32_t i = 0; i < count; ++i) {
    const size_t bytes = bytes_of(&outputs[i]);
    if (bytes > 0) memmove(targets[i].data, outputs[i].data, bytes);
  }
  return MLFC_VM_OK;
}

static int has_own_block(const mlfc_vm_tensor* outputs, uint32_t number) {
  for (uint32_t i = 0; i < number; ++i) {
    if (outputs[i].block == outputs[number].block) return 0;
  }
  return outputs[number].block != NULL;
}

/* Copies results that are in the work area, inputs, constants or in the block of another result. */
static int32_t separate(const mlfc_vm_host* host, mlfc_vm_tensor* outputs, uint32_t count, mlfc_vm_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    const size_t bytes = bytes_of(&outputs[i]);
    uint8_t* block;
    uint8_t* data;
    if (has_own_block(outputs, i)) continue;
    block = (uint8_t*)host->allocate(host->context, bytes + MLFC_VM_ALIGNMENT);
    if (block == NULL) {
      error->code = MLFC_VM_ALLOCATE;
      error->values[0] = (int64_t)bytes;
      /* those before have blocks of their own, which may be copies that no run knows */
      for (uint32_t own = 0; own < i; ++own) {
        for (uint32_t later = i; later < count; ++later) {
          if (outputs[later].block == outputs[own].block) outputs[later].block = NULL;
        }
        host->release(host->context, outputs[own].block);
        outputs[own].block = NULL;
      }
      mlfc_vm_release(host, outputs + i, count - i);
      return error->code;
    }
    data = block + (MLFC_VM_ALIGNMENT - (size_t)((uintptr_t)block % MLFC_VM_ALIGNMENT)) % MLFC_VM_ALIGNMENT;
    if (bytes > 0) memcpy(data, outputs[i].data, bytes);
    mlfc_vm_release(host, &outputs[i], 1);
    outputs[i].block = block;
    outputs[i].data = data;
  }
  return MLFC_VM_OK;
}

int32_t mlfc_vm_host_run(const mlfc_vm_host_call* call) {
  struct opened* self = (struct opened*)call->opened;
  struct area* area = take_area(self);
  mlfc_vm_host host = {allocate, release, NULL, NULL, 0, 0, 0, NULL};
  int32_t status;
  if (area == NULL) area = new_area(self);
  if (area == NULL) {
    memset(call->error, 0, sizeof(*call->error));
    call->error->code = MLFC_VM_ALLOCATE;
    call->error->values[0] = (int64_t)self->work_bytes;
    return call->error->code;
  }
  host.context = area;
  host.memory_limit = call->memory_limit;
  host.turn_limit = call->turn_limit;
  host.depth_limit = self->depth;
  area->live_bytes = area->peak_bytes = 0;
  if (++area->run == 0) ++area->run;
  status = mlfc_vm_run(&self->vm, call->function, call->inputs, call->input_count, call->outputs, call->output_count,
                       area->work, self->work_bytes, &host, call->error);
  if (status == MLFC_VM_OK && call->targets == NULL) {
    status = separate(&host, call->outputs, call->output_count, call->error);
    if (status == MLFC_VM_OK) __atomic_add_fetch(&self->references, call->output_count, __ATOMIC_RELAXED);
  } else if (status == MLFC_VM_OK) {
    status = copy_out(call->outputs, call->output_count, call->targets, call->error);
    mlfc_vm_release(&host, call->outputs, call->output_count);
  }
  end_run(area);
  give_area(self, area);
  return status;
}

void mlfc_vm_host_release(void* opened, void* block) {
  struct opened* self = (struct opened*)opened;
  struct area* area = block == NULL ? NULL : take_area(self);
  if (block == NULL) return;
  if (area == NULL) {
    free(header_of(block));
  } else {
    keep(area, header_of(block));
    give_area(self, area);
  }
  drop(self);
}
