/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "ffi_host.h"

static const char* kind_name(int32_t type_index) {
  switch (type_index) {
    case kFfiNone:
      return "None";
    case kFfiInt:
      return "an int";
    case kFfiBool:
      return "a bool";
    case kFfiFloat:
      return "a float";
    case kFfiRawString:
    case kFfiSmallString:
    case kFfiString:
      return "a string";
    case kFfiBytesPointer:
    case kFfiSmallBytes:
    case kFfiBytes:
      return "bytes";
    case kFfiArray:
      return "an array of objects";
    default:
      return "something else";
  }
}

/* Returns an argument as a tensor; NULL if it is not one. */
static const DLTensor* tensor_of(const struct mlfc_any* arg) {
  if (arg->value.v_ptr == NULL) return NULL;
  if (arg->type_index == kFfiTensorPointer) return (const DLTensor*)arg->value.v_ptr;
  if (arg->type_index == kFfiTensor) return (const DLTensor*)((const char*)arg->value.v_ptr + kFfiHeaderBytes);
  return NULL;
}

int mlfc_ffi_take(const struct mlfc_function* function, const struct mlfc_any* args, int32_t num_args,
                  const struct mlfc_any* result, const DLTensor** tensors, struct mlfc_failure* failure) {
  const int32_t all = function->num_inputs + function->num_outputs;
  const int returns = num_args == function->num_inputs && num_args != all && function->num_outputs <= MLFC_MAX_RESULTS;
  if (num_args != all && !returns) {
    return mlfc_fail(failure, "TypeError", "%s: num_args should be %d, or %d for results of its own, it is %d",
                     function->name, (int)all, (int)function->num_inputs, (int)num_args);
  }
  if ((num_args > 0 && args == NULL) || (returns && result == NULL)) {
    return mlfc_fail(failure, "TypeError", "%s: %s is expected to be a pointer, not NULL", function->name,
                     args == NULL ? "args" : "result");
  }
  for (int32_t index = 0; index < num_args; ++index) {
    tensors[index] = tensor_of(&args[index]);
    if (tensors[index] == NULL) {
      return mlfc_fail(failure, "TypeError", "%s: Expect arg[%d] to be a tensor, %s; it is %s", function->name,
                          (int)index, function->parameters[index].name, kind_name(args[index].type_index));
    }
  }
  return returns;
}

int mlfc_ffi_return(struct mlfc_any* made, int32_t count, int status, struct mlfc_any* result,
                    struct mlfc_failure* failure) {
  if (status == 0 && count == 1) {
    *result = made[0];
    return 0;
  }
  if (status == 0) status = mlfc_ffi_array(made, count, result, failure);
  while (count > 0) mlfc_ffi_release(&made[--count]);
  return status;
}

/* Runs the function on fresh outputs and returns them. */
static int run_for_results(const struct mlfc_function* function, const DLTensor** tensors, void** data,
                           struct mlfc_any* result, struct mlfc_failure* failure) {
  struct mlfc_any made[MLFC_MAX_RESULTS];
  int32_t count = 0;
  int status = 0;
  for (; status == 0 && count < function->num_outputs; ++count) {
    status = mlfc_ffi_tensor(&function->parameters[function->num_inputs + count], &made[count], failure);
    if (status != 0) break;
    tensors[function->num_inputs + count] = (const DLTensor*)((const char*)made[count].value.v_ptr + kFfiHeaderBytes);
  }
  if (status == 0) status = mlfc_run(function, tensors, data, failure);
  return mlfc_ffi_return(made, count, status, result, failure);
}

int mlfc_ffi_entry(const struct mlfc_function* function, const struct mlfc_any* args, int32_t num_args,
                      struct mlfc_any* result, const DLTensor** tensors, void** data) {
  struct mlfc_failure failure;
  const int returns = mlfc_ffi_take(function, args, num_args, result, tensors, &failure);
  if (returns < 0) return mlfc_ffi_raise(&failure);
  if (returns) {
    if (run_for_results(function, tensors, data, result, &failure) == 0) return 0;
  } else if (mlfc_run(function, tensors, data, &failure) == 0) {
    return 0;
  }
  return mlfc_ffi_raise(&failure);
}

int mlfc_ffi_packed(const char* name, TVMBackendPackedCFunc packed, int32_t count, const struct mlfc_any* args,
                       int32_t num_args, TVMValue* values, int* type_codes) {
  struct mlfc_failure failure;
  TVMValue result = {0};
  int result_code = kTVMNullptr;
  if (num_args != count) {
    mlfc_fail(&failure, "TypeError", "%s: num_args should be %d, it is %d", name, (int)count, (int)num_args);
    return mlfc_ffi_raise(&failure);
  }
  if (count > 0 && args == NULL) {
    mlfc_fail(&failure, "TypeError", "%s: args is expected to be a pointer, not NULL", name);
    return mlfc_ffi_raise(&failure);
  }
  for (int32_t index = 0; index < count; ++index) {
    values[index].v_handle = (void*)(uintptr_t)tensor_of(&args[index]);
    type_codes[index] = kTVMDLTensorHandle;
    if (values[index].v_handle == NULL) {
      mlfc_fail(&failure, "TypeError", "%s: Expect arg[%d] to be a tensor; it is %s", name, (int)index,
                   kind_name(args[index].type_index));
      return mlfc_ffi_raise(&failure);
    }
  }
  if (packed(values, type_codes, num_args, &result, &result_code, NULL) == 0) return 0;
  mlfc_fail(&failure, "ValueError", "%s", TVMGetLastError());
  return mlfc_ffi_raise(&failure);
}

int mlfc_ffi_text(const char* text, struct mlfc_any* result) {
  struct mlfc_failure failure;
  if (result == NULL) {
    mlfc_fail(&failure, "TypeError", "result is expected to be a pointer, not NULL");
    return mlfc_ffi_raise(&failure);
  }
  if (mlfc_ffi_string(text, result, &failure) == 0) return 0;
  return mlfc_ffi_raise(&failure);
}
