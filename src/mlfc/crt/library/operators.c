/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "mlfc_entry.h"

int32_t mlfc_call_operators(const struct mlfc_call* calls, int32_t count, void* const* storages, DLTensor* tensors,
                            TVMValue* values, int* type_codes) {
  for (int32_t index = 0; index < count; ++index) {
    const struct mlfc_call* call = &calls[index];
    TVMValue result = {0};
    int result_code = kTVMNullptr;
    int status;
    for (int32_t place = 0; place < call->count; ++place) { /* operators know the shapes: elements in a row will do */
      const struct mlfc_operand* operand = &call->operands[place];
      const DLTensor tensor = {storages[operand->storage], {kDLCPU, 0}, 1, operand->dtype,
                               (int64_t*)(uintptr_t)&operand->elements, NULL, 0};
      tensors[place] = tensor;
      values[place].v_handle = &tensors[place];
      type_codes[place] = kTVMDLTensorHandle;
    }
    status = call->function(values, type_codes, call->count, &result, &result_code, NULL);
    if (status != 0) return status;
  }
  return 0;
}
