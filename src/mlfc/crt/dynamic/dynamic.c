/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/* Dynamic models behind the convention of tvm-ffi: outputs are copied to where the caller wants them. */
#include "mlfc_dynamic.h"

#include <stdlib.h>
#include <string.h>

#include "../library/ffi_host.h"

static void* allocate(int64_t bytes) { return (uint64_t)bytes > SIZE_MAX ? NULL : malloc((size_t)bytes); }

/* Returns what a tensor of these dimensions must be. */
static struct mlfc_parameter sized(const struct mlfc_parameter* parameter, const int64_t* shape) {
  struct mlfc_parameter found = *parameter;
  found.shape = shape;
  found.num_bytes = (found.dtype.bits + 7u) / 8u;
  for (int32_t axis = 0; axis < found.ndim; ++axis) found.num_bytes *= shape[axis] > 0 ? (uint64_t)shape[axis] : 0;
  return found;
}

/* Takes an input; where its address is not aligned, a copy, which the caller frees. */
static int take_input(const struct mlfc_dynamic* model, int32_t index, const DLTensor* tensor, void** copy,
                      mlfc_vm_tensor* input, struct mlfc_failure* failure) {
  const struct mlfc_parameter* declared = &model->function->parameters[index];
  struct mlfc_parameter expected;
  char* place = NULL;
  *copy = NULL;
  memset(input, 0, sizeof *input);
  for (int32_t axis = 0; axis < declared->ndim; ++axis) {
    const int is_given = tensor->ndim == declared->ndim && tensor->shape != NULL;
    input->extents[axis] = declared->shape[axis] < 0 && is_given ? tensor->shape[axis] : declared->shape[axis];
  }
  expected = sized(declared, input->extents);
  if (mlfc_check(model->function, &expected, tensor, &input->data, failure) != 0) return -1;
  input->device = MLFC_VM_CPU;
  input->dtype = model->dtypes[index];
  input->rank = (uint8_t)declared->ndim;
  if ((uintptr_t)input->data % MLFC_VM_ALIGNMENT == 0) return 0;
  if (expected.num_bytes < SIZE_MAX - MLFC_VM_ALIGNMENT) *copy = malloc((size_t)expected.num_bytes + MLFC_VM_ALIGNMENT);
  if (*copy == NULL) return mlfc_fail(failure, "RuntimeError", "no memory for %s", declared->name);
  place = (char*)*copy + (MLFC_VM_ALIGNMENT - (uintptr_t)*copy % MLFC_VM_ALIGNMENT) % MLFC_VM_ALIGNMENT;
  memcpy(place, input->data, (size_t)expected.num_bytes);
  input->data = place;
  return 0;
}

/* Notes why a run failed: with the values in the error, in their order. */
static int run_failed(const char* name, const mlfc_vm_error* error, struct mlfc_failure* failure) {
  static const char* const reasons[MLFC_VM_INDEX + 1] = {
      [MLFC_VM_BAD_INPUT] = "input %lld does not fit: its dimension %lld is %lld",
      [MLFC_VM_OVERFLOW] = "an operation on %lld and %lld overflows",
      [MLFC_VM_DIVISION] = "%lld is divided by zero",
      [MLFC_VM_ELEMENT] = "expected a tensor of %lld bytes, got %lld",
      [MLFC_VM_RANGE] = "got %lld, expected %lld to %lld",
      [MLFC_VM_EQUAL] = "expected two equal numbers, got %lld and %lld",
      [MLFC_VM_NEGATIVE] = "expected a non-negative size, got %lld",
      [MLFC_VM_SIZE] = "a tensor is too large: a dimension or its size is %lld",
      [MLFC_VM_KERNEL] = "a kernel refused its arguments with status %lld",
      [MLFC_VM_ALLOCATE] = "no memory for %lld bytes",
      [MLFC_VM_FAILED] = "the model ended the run",
      [MLFC_VM_INDEX] = "got index %lld of a list of %lld tensors",
  };
  const int is_known = error->code >= 0 && error->code <= MLFC_VM_INDEX && reasons[error->code] != NULL;
  const int is_of_input = error->code == MLFC_VM_BAD_INPUT || error->code == MLFC_VM_RANGE ||
                          error->code == MLFC_VM_EQUAL || error->code == MLFC_VM_NEGATIVE;
  const long long a = error->values[0], b = error->values[1], c = error->values[2];
  struct mlfc_failure reason;
  mlfc_fail(&reason, "", is_known ? reasons[error->code] : "values %lld, %lld, %lld", a, b, c);
  return mlfc_fail(failure, is_of_input ? "ValueError" : "RuntimeError", "%s: it failed with status %d: %s%s%s", name,
                   (int)error->code, error->text == NULL ? "" : error->text, error->text == NULL ? "" : ": ",
                   reason.text);
}

/* Runs the model on its inputs; sets `outputs`, which lie in `work` where the model does not release them. */
static int run(const struct mlfc_dynamic* model, const mlfc_vm_host* host, const mlfc_vm_tensor* inputs,
               mlfc_vm_tensor* outputs, void* work, struct mlfc_failure* failure) {
  mlfc_vm_error error = {0, NULL, {0, 0, 0}};
  int32_t status = 0;
  if (model->function->gate != NULL) mlfc_gate_enter(model->function->gate);
  if (model->reset != NULL && !*model->is_set) status = model->reset(NULL);
  if (status == 0) status = model->run(host, inputs, outputs, work, model->work_bytes, &error);
  if (model->function->gate != NULL) mlfc_gate_leave(model->function->gate);
  return status == 0 ? 0 : run_failed(model->function->name, &error, failure);
}

/* Copies the outputs to fresh tensors, or to those of the caller, where all have the right shapes. */
static int give_outputs(const struct mlfc_dynamic* model, const mlfc_vm_tensor* outputs, int returns,
                        const DLTensor** tensors, void** data, struct mlfc_any* result, struct mlfc_failure* failure) {
  const struct mlfc_function* function = model->function;
  struct mlfc_any made[MLFC_MAX_RESULTS];
  int32_t count = 0;
  int status = 0;
  for (int32_t index = 0; status == 0 && index < function->num_outputs; ++index) {
    const struct mlfc_parameter expected = sized(&function->parameters[function->num_inputs + index],
                                                 outputs[index].extents);
    if (returns) {
      status = mlfc_ffi_tensor(&expected, &made[index], failure);
      if (status != 0) break;
      count = index + 1;
      tensors[index] = (const DLTensor*)((const char*)made[index].value.v_ptr + kFfiHeaderBytes);
    }
    status = mlfc_check(function, &expected, tensors[index], &data[index], failure);
  }
  for (int32_t index = 0; status == 0 && index < function->num_outputs; ++index) {
    const struct mlfc_parameter expected = sized(&function->parameters[function->num_inputs + index],
                                                 outputs[index].extents);
    if (expected.num_bytes > 0) memcpy(data[index], outputs[index].data, (size_t)expected.num_bytes);
  }
  return returns ? mlfc_ffi_return(made, count, status, result, failure) : status;
}

int mlfc_ffi_dynamic(const struct mlfc_dynamic* model, const struct mlfc_any* args, int32_t num_args,
                     struct mlfc_any* result, const DLTensor** tensors, void** data, mlfc_vm_tensor* values) {
  const int32_t count = model->function->num_inputs;
  mlfc_vm_tensor* outputs = values + count;
  struct mlfc_failure failure;
  mlfc_vm_host host = {0};
  const int returns = mlfc_ffi_take(model->function, args, num_args, result, tensors, &failure);
  int status = returns < 0 ? -1 : 0;
  int32_t taken = 0;
  void* work = NULL;
  host.allocate = allocate;
  host.release = free;
  host.state = model->state;
  for (; status == 0 && taken < count; ++taken) {
    status = take_input(model, taken, tensors[taken], &data[taken], &values[taken], &failure);
  }
  if (status == 0 && model->work_bytes > 0) {
    work = allocate(model->work_bytes);
    if (work == NULL) {
      status = mlfc_fail(&failure, "RuntimeError", "%s: no memory for %lld bytes", model->function->name,
                         (long long)model->work_bytes);
    }
  }
  if (status == 0) {
    status = run(model, &host, values, outputs, work, &failure);
    if (status == 0) {
      status = give_outputs(model, outputs, returns, tensors + count, data + count, result, &failure);
      if (model->release != NULL) (void)model->release(&host, outputs, model->function->num_outputs);
    }
  }
  while (taken > 0) free(data[--taken]);
  free(work);
  return status == 0 ? 0 : mlfc_ffi_raise(&failure);
}
