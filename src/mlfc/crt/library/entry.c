/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/* Tensors are checked before a function is called: invalid arguments cannot make it access other memory. */
#include "mlfc_entry.h"

#include <stdarg.h>
#include <stdio.h>

#include "../src/runtime/crt/common/config.h"

int mlfc_fail(struct mlfc_failure* failure, const char* kind, const char* format, ...) {
  va_list args;
  va_start(args, format);
  failure->kind = kind;
  vsnprintf(failure->text, sizeof failure->text, format, args);
  va_end(args);
  return -1;
}

static const char* dtype_name(DLDataType dtype, char* out, size_t size) {
  static const char* const names[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const int is_bool = dtype.bits == 1 || dtype.code == MLFC_DLPACK_BOOL;
  if (is_bool && dtype.lanes == 1) return "bool";
  if (dtype.code > MLFC_DLPACK_BOOL) {
    snprintf(out, size, "of code %u with %u bits", (unsigned)dtype.code, (unsigned)dtype.bits);
  } else if (dtype.lanes != 1) {
    snprintf(out, size, "%s%ux%u", names[dtype.code], (unsigned)dtype.bits, (unsigned)dtype.lanes);
  } else {
    snprintf(out, size, "%s%u", names[dtype.code], (unsigned)dtype.bits);
  }
  return out;
}

/* A bool, one byte of 0 or 1, has two types: TVM's 1-bit unsigned integer, and that of newer DLPack. */
static int same_dtype(DLDataType given, DLDataType expected) {
  if (expected.bits == 1 && given.code == MLFC_DLPACK_BOOL && given.bits == 8) return given.lanes == 1;
  return given.code == expected.code && given.bits == expected.bits && given.lanes == expected.lanes;
}

static int check_layout(const struct mlfc_function* function, const struct mlfc_parameter* expected,
                        const DLTensor* tensor, struct mlfc_failure* failure) {
  int64_t stride = 1;
  for (int32_t axis = 0; axis < expected->ndim; ++axis) {
    if (tensor->shape[axis] != expected->shape[axis]) {
      return mlfc_fail(failure, "ValueError",
                          "Argument %s.%s.shape[%d] has an unsatisfied constraint: it is %lld, expected is %lld",
                          function->name, expected->name, (int)axis, (long long)tensor->shape[axis],
                          (long long)expected->shape[axis]);
    }
  }
  for (int32_t axis = expected->ndim - 1; tensor->strides != NULL && expected->num_bytes > 0 && axis >= 0; --axis) {
    if (expected->shape[axis] != 1 && tensor->strides[axis] != stride) {
      return mlfc_fail(failure, "ValueError", "%s.%s.strides: expected to be compact array", function->name,
                          expected->name);
    }
    stride *= expected->shape[axis];
  }
  return 0;
}

static int check_memory(const struct mlfc_function* function, const struct mlfc_parameter* expected,
                        const DLTensor* tensor, void** data, struct mlfc_failure* failure) {
  const uintptr_t element = (expected->dtype.bits + 7u) / 8u;
  if (tensor->device.device_type != kDLCPU) {
    return mlfc_fail(failure, "ValueError",
                        "Argument %s.%s.device_type has an unsatisfied constraint: it is %d, expected is %d, the CPU",
                        function->name, expected->name, (int)tensor->device.device_type, (int)kDLCPU);
  }
  if (tensor->data == NULL) {
    *data = NULL;
    if (expected->num_bytes == 0) return 0;
    return mlfc_fail(failure, "ValueError", "%s.%s.data is expected to be a pointer, not NULL", function->name,
                        expected->name);
  }
  *data = (char*)tensor->data + tensor->byte_offset;
  if (expected->num_bytes != 0 && (uintptr_t)*data % element != 0) {
    return mlfc_fail(failure, "ValueError",
                        "%s.%s.data is expected to be aligned to the %u bytes of an element, its byte_offset included",
                        function->name, expected->name, (unsigned)element);
  }
  return 0;
}

int mlfc_check(const struct mlfc_function* function, const struct mlfc_parameter* expected, const DLTensor* tensor,
               void** data, struct mlfc_failure* failure) {
  char given_name[40], expected_name[40];
  if (tensor->ndim != expected->ndim) {
    return mlfc_fail(failure, "ValueError", "%s.%s.ndim is expected to equal %d, it is %d", function->name,
                        expected->name, (int)expected->ndim, (int)tensor->ndim);
  }
  if (!same_dtype(tensor->dtype, expected->dtype)) {
    return mlfc_fail(failure, "TypeError", "%s.%s.dtype is expected to be %s, it is %s", function->name,
                        expected->name, dtype_name(expected->dtype, expected_name, sizeof expected_name),
                        dtype_name(tensor->dtype, given_name, sizeof given_name));
  }
  if (tensor->ndim > 0 && tensor->shape == NULL) {
    return mlfc_fail(failure, "ValueError", "%s.%s.shape is expected to be a pointer, not NULL", function->name,
                        expected->name);
  }
  if (check_layout(function, expected, tensor, failure) != 0) return -1;
  return check_memory(function, expected, tensor, data, failure);
}

/* Outputs are written while inputs and other outputs are still needed. */
static int check_overlap(const struct mlfc_function* function, void* const* data, struct mlfc_failure* failure) {
  const struct mlfc_parameter* all = function->parameters;
  for (int32_t output = function->num_inputs; output < function->num_inputs + function->num_outputs; ++output) {
    const uintptr_t start = (uintptr_t)data[output];
    for (int32_t other = 0; other < output; ++other) {
      const uintptr_t begin = (uintptr_t)data[other];
      if (start < begin + all[other].num_bytes && begin < start + all[output].num_bytes) {
        return mlfc_fail(failure, "ValueError", "%s.%s is expected to share no memory with %s.%s", function->name,
                            all[output].name, function->name, all[other].name);
      }
    }
  }
  return 0;
}

int mlfc_run(const struct mlfc_function* function, const DLTensor* const* tensors, void** data,
                struct mlfc_failure* failure) {
  int32_t status;
  for (int32_t index = 0; index < function->num_inputs + function->num_outputs; ++index) {
    if (mlfc_check(function, &function->parameters[index], tensors[index], &data[index], failure) != 0) return -1;
  }
  if (check_overlap(function, data, failure) != 0) return -1;
  if (function->gate != NULL) mlfc_gate_enter(function->gate);
  status = function->run(data);
  if (function->gate != NULL) mlfc_gate_leave(function->gate);
  if (status == 0) return 0;
  return mlfc_fail(failure, "RuntimeError", "%s: it failed with status %d", function->name, (int)status);
}

static int take_tensors(const struct mlfc_function* function, const TVMValue* args, const int* type_codes,
                        int num_args, const DLTensor** tensors, struct mlfc_failure* failure) {
  const int count = function->num_inputs + function->num_outputs;
  if (num_args != count) {
    return mlfc_fail(failure, "TypeError", "%s: num_args should be %d, it is %d", function->name, count, num_args);
  }
  if (count > 0 && (args == NULL || type_codes == NULL)) {
    return mlfc_fail(failure, "TypeError", "%s: Expect arg[0] to be pointer, the tensor %s; the lists are NULL",
                        function->name, function->parameters[0].name);
  }
  for (int index = 0; index < count; ++index) {
    const int code = type_codes[index];
    const int is_pointer = code == kTVMOpaqueHandle || code == kTVMNullptr || code == kTVMDLTensorHandle ||
                           code == kTVMNDArrayHandle;
    if (!is_pointer) {
      return mlfc_fail(failure, "TypeError", "%s: Expect arg[%d] to be pointer, the tensor %s", function->name,
                          index, function->parameters[index].name);
    }
    if (code == kTVMNullptr || args[index].v_handle == NULL) {
      return mlfc_fail(failure, "TypeError", "%s.%s is expected to be a tensor, not NULL", function->name,
                          function->parameters[index].name);
    }
    tensors[index] = (const DLTensor*)args[index].v_handle;
  }
  return 0;
}

int mlfc_classic_entry(const struct mlfc_function* function, const TVMValue* args, const int* type_codes,
                          int num_args, const DLTensor** tensors, void** data) {
  struct mlfc_failure failure;
  if (take_tensors(function, args, type_codes, num_args, tensors, &failure) == 0 &&
      mlfc_run(function, tensors, data, &failure) == 0) {
    return 0;
  }
  TVMAPISetLastError(failure.text);
  return -1;
}
