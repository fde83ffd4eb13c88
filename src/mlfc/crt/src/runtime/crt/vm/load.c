/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <string.h>

#include "file.h"

enum { HEADER_BYTES = 112, FIRST_SIZE = 24, VERSION = 2 };
#define MAX_ARGUMENTS 0xFFFFu /* does not fit in an int of 16 bits, as constants of an enum must */

/* 0 for strings, which have no fixed size */
static const uint8_t record_bytes[VM_SECTIONS] = {
    0, VM_SYMBOL_BYTES, VM_VALUE_BYTES, VM_VALUE_BYTES, VM_KERNEL_BYTES, VM_VALUE_BYTES, 8, VM_FUNCTION_BYTES, 4, 4,
    VM_STATE_BYTES};

const uint8_t mlfc_vm_dtype_bytes[VM_DTYPES] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

int32_t mlfc_vm_fail(mlfc_vm_error* error, int32_t code, int64_t a, int64_t b, int64_t c) {
  error->code = code;
  error->function = MLFC_VM_NOWHERE;
  error->instruction = 0;
  error->text = NULL;
  error->values[0] = a;
  error->values[1] = b;
  error->values[2] = c;
  return code;
}

static int is_zero(const uint8_t* data, size_t bytes) {
  while (bytes > 0) {
    if (data[--bytes] != 0) return 0;
  }
  return 1;
}

/* Whether the bytes are UTF-8 without a NUL: the shortest form of each code point, and no surrogates. */
static int is_text(const uint8_t* text, size_t bytes) {
  size_t at = 0;
  while (at < bytes) {
    const uint8_t first = text[at++];
    uint8_t low = 0x80;
    uint8_t high = 0xBF;
    int more = 0;
    if (first == 0) return 0;
    if (first < 0x80) continue;
    if (first >= 0xC2 && first <= 0xDF) more = 1;
    else if (first >= 0xE0 && first <= 0xEF) more = 2;
    else if (first >= 0xF0 && first <= 0xF4) more = 3;
    else return 0;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
    for (; more > 0; --more) {
      if (at == bytes || text[at] < low || text[at] > high) return 0;
      ++at;
      low = 0x80;
      high = 0xBF;
    }
  }
  return 1;
}

static int check_strings(const mlfc_vm* vm, size_t section) {
  const uint32_t count = vm->counts[VM_STRINGS];
  const uint8_t* offsets = vm->tables[VM_STRINGS];
  size_t texts;
  size_t size;
  uint32_t begin = 0;
  if (section / 4 < 1 || count > section / 4 - 1) return 0;
  texts = ((size_t)count + 1) * 4;
  if (mlfc_vm_u32(offsets) != 0) return 0;
  size = mlfc_vm_u32(offsets + (size_t)count * 4);
  if (size > section - texts || section - texts - size >= 8) return 0;
  if (!is_zero(offsets + texts + size, section - texts - size)) return 0;
  for (uint32_t number = 0; number < count; ++number) {
    const uint32_t end = mlfc_vm_u32(offsets + ((size_t)number + 1) * 4);
    if (end <= begin || end > size || offsets[texts + end - 1] != 0) return 0;
    if (!is_text(offsets + texts + begin, end - begin - 1)) return 0;
    begin = end;
  }
  return 1;
}

/* Checks a dtype and a shape; symbols and unknown extents are possible unless the value is a constant. */
static int check_value(const mlfc_vm* vm, const uint8_t* record, int is_constant) {
  const uint8_t dtype = record[4];
  const uint8_t rank = record[5];
  int64_t bytes;
  if (mlfc_vm_u32(record) >= vm->counts[VM_STRINGS] || dtype >= VM_DTYPES || rank > MLFC_VM_MAX_RANK) return 0;
  /* which part of a sequence a value is matters to those alone who make sequences of them */
  if (record[6] > (is_constant ? 0 : VM_PARTS) || record[7] >= VM_DTYPES || (record[6] == 0 && record[7] != 0)) return 0;
  if (!is_zero(record + 8 + 8 * rank, (size_t)8 * (MLFC_VM_MAX_RANK - rank))) return 0;
  bytes = mlfc_vm_dtype_bytes[dtype];
  for (uint8_t axis = 0; axis < rank; ++axis) {
    const int64_t extent = mlfc_vm_i64(record + 8 + 8 * axis);
    if (is_constant && (extent < 0 || !mlfc_vm_times(&bytes, extent))) return 0;
    if (extent < -1 && -2 - extent >= (int64_t)vm->counts[VM_SYMBOLS]) return 0;
  }
  return 1;
}

int64_t mlfc_vm_fixed_bytes(const uint8_t* record) {
  int64_t bytes = mlfc_vm_dtype_bytes[record[4]];
  for (uint8_t axis = 0; axis < record[5]; ++axis) bytes *= mlfc_vm_i64(record + 8 + 8 * axis);
  return bytes;
}

/* Checks the records of a section; returns the number of the first that is damaged, or their count. */
static uint32_t check_records(const mlfc_vm* vm, int section) {
  const size_t size = record_bytes[section];
  uint32_t number;
  for (number = 0; number < vm->counts[section]; ++number) {
    const uint8_t* record = mlfc_vm_record(vm, section, number, size);
    int fits = 1;
    if (section == VM_SYMBOLS) {
      const int64_t low = mlfc_vm_i64(record + 8);
      fits = mlfc_vm_u32(record) < vm->counts[VM_STRINGS] && mlfc_vm_u32(record + 4) == 0 && low >= 0 &&
             low <= mlfc_vm_i64(record + 16);
    } else if (section == VM_INPUTS || section == VM_OUTPUTS || section == VM_CONSTANTS) {
      fits = check_value(vm, record, section == VM_CONSTANTS);
    } else if (section == VM_KERNELS) {
      const uint32_t buffers = mlfc_vm_u32(record + 4);
      fits = mlfc_vm_u32(record) < vm->counts[VM_STRINGS] && buffers <= MAX_ARGUMENTS &&
             mlfc_vm_u32(record + 8) <= buffers && mlfc_vm_u32(record + 12) <= MAX_ARGUMENTS;
    } else if (section == VM_FUNCTIONS) {
      fits = mlfc_vm_u32(record) < vm->counts[VM_STRINGS] && mlfc_vm_u32(record + VM_FUNCTION_ZERO) == 0;
    }
    if (!fits) break;
  }
  return number;
}

/* Checks that functions share out labels and code in order. */
static int check_functions(const mlfc_vm* vm) {
  uint32_t label = 0;
  uint32_t word = 0;
  if (vm->counts[VM_FUNCTIONS] == 0) return 0;
  for (uint32_t number = 0; number < vm->counts[VM_FUNCTIONS]; ++number) {
    const uint8_t* record = mlfc_vm_function_record(vm, number);
    const uint32_t labels = mlfc_vm_u32(record + VM_FUNCTION_LABELS);
    const uint32_t words = mlfc_vm_u32(record + VM_FUNCTION_WORDS);
    if (mlfc_vm_u32(record + VM_FUNCTION_FIRST_LABEL) != label) return 0;
    if (mlfc_vm_u32(record + VM_FUNCTION_FIRST_WORD) != word) return 0;
    if (labels > vm->counts[VM_LABELS] - label || words > vm->counts[VM_CODE] - word) return 0;
    label += labels;
    word += words;
  }
  return label == vm->counts[VM_LABELS] && word == vm->counts[VM_CODE];
}

static int32_t check_native(const mlfc_vm* vm, mlfc_vm_error* error) {
  const mlfc_vm_code* code = vm->code;
  if (code->kernel_count != vm->counts[VM_KERNELS]) return mlfc_vm_fail(error, MLFC_VM_BAD_NATIVE, -1, -1, 0);
  if (code->constant_count != vm->counts[VM_CONSTANTS]) return mlfc_vm_fail(error, MLFC_VM_BAD_NATIVE, -1, -1, 0);
  for (uint32_t number = 0; number < code->kernel_count; ++number) {
    const uint8_t* record = mlfc_vm_record(vm, VM_KERNELS, number, VM_KERNEL_BYTES);
    const mlfc_vm_kernel_entry* kernel = &code->kernels[number];
    if (mlfc_vm_u32(record + 4) != kernel->buffers || mlfc_vm_u32(record + 8) != kernel->reads ||
        mlfc_vm_u32(record + 12) != kernel->numbers) {
      mlfc_vm_fail(error, MLFC_VM_BAD_NATIVE, number, -1, 0);
      error->text = mlfc_vm_string(vm, mlfc_vm_u32(record));
      return error->code;
    }
  }
  for (uint32_t number = 0; number < code->constant_count; ++number) {
    const uint8_t* record = mlfc_vm_record(vm, VM_CONSTANTS, number, VM_VALUE_BYTES);
    if (mlfc_vm_fixed_bytes(record) != code->constants[number].bytes) {
      mlfc_vm_fail(error, MLFC_VM_BAD_NATIVE, -1, number, 0);
      error->text = mlfc_vm_string(vm, mlfc_vm_u32(record));
      return error->code;
    }
  }
  return MLFC_VM_OK;
}

/* Finds the sections; returns the offset of the first byte that is damaged, or 0. */
static size_t find_sections(mlfc_vm* vm, const uint8_t* file, size_t bytes) {
  size_t at = HEADER_BYTES;
  for (int section = 0; section < VM_SECTIONS; ++section) {
    const size_t place = FIRST_SIZE + 8 * (size_t)section;
    const uint32_t count = mlfc_vm_u32(file + place);
    const uint32_t size = mlfc_vm_u32(file + place + 4);
    const size_t each = record_bytes[section];
    if (size > bytes - at) return place;
    if (section != VM_STRINGS) {
      if (count > size / each || size - count * each >= 8 || size % 8 != 0) return place;
      if (!is_zero(file + at + count * each, size - count * each)) return at + count * each;
    } else if (size % 8 != 0) {
      return place;
    }
    vm->tables[section] = file + at;
    vm->counts[section] = count;
    at += size;
  }
  return at == bytes ? 0 : at;
}

int32_t mlfc_vm_load(mlfc_vm* vm, const uint8_t* file, size_t bytes, const mlfc_vm_code* code, mlfc_vm_error* error) {
  size_t damaged;
  int32_t status;
  memset(vm, 0, sizeof(*vm));
  if (bytes < HEADER_BYTES) return mlfc_vm_fail(error, MLFC_VM_BAD_FILE, (int64_t)bytes, 0, 0);
  if (memcmp(file, "MLFC-VM\n", 8) != 0) return mlfc_vm_fail(error, MLFC_VM_BAD_FILE, 0, 0, 0);
  if (mlfc_vm_u32(file + 8) - 1u >= VERSION) return mlfc_vm_fail(error, MLFC_VM_BAD_FILE, 8, 0, 0);
  if ((uint64_t)bytes >> 31 != 0) return mlfc_vm_fail(error, MLFC_VM_BAD_FILE, 0, 0, 0);
  vm->code = code;
  vm->arena_bytes = mlfc_vm_i64(file + 16);
  damaged = find_sections(vm, file, bytes);
  if (damaged != 0) return mlfc_vm_fail(error, MLFC_VM_BAD_FILE, (int64_t)damaged, 0, 0);
  if (!check_strings(vm, (size_t)(vm->tables[VM_SYMBOLS] - vm->tables[VM_STRINGS]))) {
    return mlfc_vm_fail(error, MLFC_VM_BAD_FILE, HEADER_BYTES, 0, 0);
  }
  if (mlfc_vm_u32(file + 12) >= vm->counts[VM_STRINGS] || mlfc_vm_string(vm, mlfc_vm_u32(file + 12))[0] == 0) {
    return mlfc_vm_fail(error, MLFC_VM_BAD_FILE, 12, 0, 0);
  }
  if (vm->arena_bytes < -1) return mlfc_vm_fail(error, MLFC_VM_BAD_FILE, 16, 0, 0);
  for (int section = VM_SYMBOLS; section < VM_SECTIONS; ++section) {
    const uint32_t number = check_records(vm, section);
    if (number < vm->counts[section]) {
      const uint8_t* record = mlfc_vm_record(vm, section, number, record_bytes[section]);
      return mlfc_vm_fail(error, MLFC_VM_BAD_FILE, record - file, 0, 0);
    }
  }
  if (!mlfc_vm_check_states(vm)) return mlfc_vm_fail(error, MLFC_VM_BAD_FILE, vm->tables[VM_STATES] - file, 0, 0);
  if (!check_functions(vm)) return mlfc_vm_fail(error, MLFC_VM_BAD_FILE, vm->tables[VM_FUNCTIONS] - file, 0, 0);
  status = mlfc_vm_verify(vm, error);
  return status != MLFC_VM_OK ? status : check_native(vm, error);
}

uint32_t mlfc_vm_function(const mlfc_vm* vm, const char* name) {
  uint32_t number = 0;
  while (number < vm->counts[VM_FUNCTIONS]) {
    const uint8_t* record = mlfc_vm_function_record(vm, number);
    if (strcmp(mlfc_vm_string(vm, mlfc_vm_u32(record + VM_FUNCTION_NAME)), name) == 0) break;
    ++number;
  }
  return number;
}

uint32_t mlfc_vm_parameter_count(const mlfc_vm* vm, uint32_t function) {
  if (function >= vm->counts[VM_FUNCTIONS]) return 0;
  return mlfc_vm_u32(mlfc_vm_function_record(vm, function) + VM_FUNCTION_PARAMETERS);
}

uint32_t mlfc_vm_result_count(const mlfc_vm* vm, uint32_t function) {
  if (function >= vm->counts[VM_FUNCTIONS]) return 0;
  return mlfc_vm_u32(mlfc_vm_function_record(vm, function) + VM_FUNCTION_RESULTS);
}
