/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*
 * What the interpreter relies on and does not check again: operands are in range, jumps go to instructions of their own
 * function, arities agree. Whether registers were written is a flag in each, as there is no memory here to prove it.
 */
#include "file.h"

#define MAX_REGISTERS 0xFFFFu

/*
 * The operands of each instruction: r integer, I integer register, t tensor, e tensor register, s storage, l list,
 * o operation, d dtype, x axis, v device, q string, k label, K kernel, f function, O offset. Then what follows: E
 * extents, T tensors, A arguments of a kernel, C of a call, R results.
 */
static const struct {
  char operands[9];
  char tail;
} forms[VM_OPCODES] = {
    {"", 0},     /* no instruction */
    {"Ir", 0},   /* integer */
    {"oIrr", 0}, /* compute */
    {"Itx", 0},  /* extent */
    {"Itr", 0},  /* element */
    {"err", 0},  /* set_element */
    {"rrrq", 0}, /* require_range */
    {"rrq", 0},  /* require_equal */
    {"srOv", 0}, /* storage */
    {"s", 0},    /* release */
    {"esrd", 'E'},/* tensor */
    {"etrd", 'E'},/* view */
    {"et", 0},   /* move */
    {"et", 0},   /* copy */
    {"e", 0},    /* drop */
    {"etv", 0},  /* to_device */
    {"K", 'A'},  /* invoke */
    {"q", 'T'},  /* invoke_packed */
    {"k", 0},    /* jump */
    {"rk", 0},   /* branch */
    {"f", 'C'},  /* call */
    {"", 'R'},   /* return */
    {"q", 0},    /* fail */
    {"l", 0},    /* list */
    {"lt", 0},   /* append */
    {"lrt", 0},  /* insert */
    {"lr", 0},   /* erase */
    {"elr", 0},  /* get */
    {"Il", 0},   /* length */
    {"ll", 0},   /* list_move */
    {"ert", 0},  /* paste */
    {"errtrrrr", 0}, /* blocks */
    {"It", 0},   /* rank */
};

/* A function while it is checked. */
struct function {
  const mlfc_vm* vm;
  const uint8_t* record;
  uint32_t number;
};

static uint32_t field(const struct function* function, int offset) { return mlfc_vm_u32(function->record + offset); }

static int check_operand(const struct function* function, char kind, uint32_t word) {
  const mlfc_vm* vm = function->vm;
  const int is_constant = (word & VM_CONSTANT_BIT) != 0;
  const uint32_t index = word & ~VM_CONSTANT_BIT;
  if (kind == 'b') {
    /* a tensor, or a storage by its number */
    const int is_storage = !is_constant && (word & VM_STORAGE_BIT) != 0;
    kind = is_storage ? 's' : 't';
    if (is_storage) word &= ~VM_STORAGE_BIT;
  }
  switch (kind) {
    case 'r':
      return is_constant ? index < vm->counts[VM_INTEGERS] : word < field(function, VM_FUNCTION_INTEGERS);
    case 't':
      return is_constant ? index < vm->counts[VM_CONSTANTS] : word < field(function, VM_FUNCTION_TENSORS);
    case 'I':
      return word < field(function, VM_FUNCTION_INTEGERS);
    case 'e':
      return word < field(function, VM_FUNCTION_TENSORS);
    case 's':
      return word < field(function, VM_FUNCTION_STORAGES);
    case 'l':
      return word < field(function, VM_FUNCTION_LISTS);
    case 'o':
      return word < VM_OPERATIONS;
    case 'd':
      return word < VM_DTYPES;
    case 'x':
      return word < MLFC_VM_MAX_RANK;
    case 'v':
      return word != 0 && word < VM_CONSTANT_BIT;
    case 'q':
      return word < vm->counts[VM_STRINGS];
    case 'k':
      return word < field(function, VM_FUNCTION_LABELS);
    case 'K':
      return word < vm->counts[VM_KERNELS];
    case 'f':
      return word < vm->counts[VM_FUNCTIONS];
    default: /* 'O' */
      return word == VM_NO_OFFSET || (is_constant && index < vm->counts[VM_INTEGERS]);
  }
}

static int check_operands(const struct function* function, const uint8_t* words, uint32_t count, char kind) {
  for (uint32_t i = 0; i < count; ++i) {
    if (!check_operand(function, kind, mlfc_vm_u32(words + (size_t)i * 4))) return 0;
  }
  return 1;
}

/* Checks what follows the fixed operands; notes the most that kernels take, and calls that may recurse. */
static int check_tail(mlfc_vm* vm, const struct function* function, char kind, uint32_t subject, const uint8_t* tail,
                      uint32_t count) {
  switch (kind) {
    case 'E':
      return count <= MLFC_VM_MAX_RANK && check_operands(function, tail, count, 'r');
    case 'A': {
      const uint8_t* record = mlfc_vm_record(vm, VM_KERNELS, subject, VM_KERNEL_BYTES);
      const uint32_t buffers = mlfc_vm_u32(record + 4);
      const uint32_t numbers = mlfc_vm_u32(record + 12);
      if (count != buffers + numbers) return 0;
      if (buffers > vm->most_buffers) vm->most_buffers = buffers;
      if (numbers > vm->most_numbers) vm->most_numbers = numbers;
      return check_operands(function, tail, buffers, 'b') &&
             check_operands(function, tail + (size_t)buffers * 4, numbers, 'r');
    }
    case 'C': {
      const uint8_t* record = mlfc_vm_function_record(vm, subject);
      const uint32_t parameters = mlfc_vm_u32(record + VM_FUNCTION_PARAMETERS);
      const uint32_t results = mlfc_vm_u32(record + VM_FUNCTION_RESULTS);
      if (parameters > count || results != count - parameters) return 0;
      if (subject <= function->number) vm->is_recursive = 1;
      return check_operands(function, tail, parameters, 't') &&
             check_operands(function, tail + (size_t)parameters * 4, results, 'e');
    }
    case 'R':
      return count == field(function, VM_FUNCTION_RESULTS) && check_operands(function, tail, count, 't');
    case 'T':
      if (count > vm->most_packed) vm->most_packed = count;
      return check_operands(function, tail, count, 't');
    default:
      return count == 0;
  }
}

/* A place of the arena that is known before the run is within it. */
static int check_place(const mlfc_vm* vm, uint32_t bytes, uint32_t offset) {
  int64_t start;
  int64_t known;
  if (offset == VM_NO_OFFSET) return 1;
  start = mlfc_vm_pool(vm, offset);
  known = (bytes & VM_CONSTANT_BIT) != 0 ? mlfc_vm_pool(vm, bytes) : 0;
  return start >= 0 && start % MLFC_VM_ALIGNMENT == 0 && known >= 0 && start <= vm->arena_bytes &&
         known <= vm->arena_bytes - start;
}

static int check_instruction(mlfc_vm* vm, const struct function* function, const uint8_t* at, uint32_t opcode,
                             uint32_t length) {
  const char* operands;
  uint32_t fixed;
  if (opcode == 0 || opcode >= VM_OPCODES) return 0;
  operands = forms[opcode].operands;
  fixed = 1;
  while (operands[fixed - 1] != 0) ++fixed;
  if (length < fixed) return 0;
  for (uint32_t i = 1; i < fixed; ++i) {
    if (!check_operand(function, operands[i - 1], mlfc_vm_u32(at + (size_t)i * 4))) return 0;
  }
  if (opcode == VM_STORAGE && !check_place(vm, mlfc_vm_u32(at + 8), mlfc_vm_u32(at + 12))) return 0;
  return check_tail(vm, function, forms[opcode].tail, fixed > 1 ? mlfc_vm_u32(at + 4) : 0, at + (size_t)fixed * 4,
                    length - fixed);
}

/* Returns the number of the first instruction that is damaged, or -1. */
static int64_t check_code(mlfc_vm* vm, const struct function* function) {
  const uint32_t words = field(function, VM_FUNCTION_WORDS);
  const uint8_t* code = mlfc_vm_record(vm, VM_CODE, field(function, VM_FUNCTION_FIRST_WORD), 4);
  const uint8_t* labels = mlfc_vm_record(vm, VM_LABELS, field(function, VM_FUNCTION_FIRST_LABEL), 4);
  const uint32_t label_count = field(function, VM_FUNCTION_LABELS);
  uint32_t opcode = 0;
  uint32_t at = 0;
  uint32_t label = 0;
  int64_t number = 0;
  while (at < words) {
    const uint32_t word = mlfc_vm_u32(code + (size_t)at * 4);
    const uint32_t length = word >> 8;
    opcode = word & 0xFF;
    if (length == 0 || length > words - at) return number;
    if (!check_instruction(vm, function, code + (size_t)at * 4, opcode, length)) return number;
    /* labels ascend, so one that is at no instruction stays behind */
    if (label < label_count && mlfc_vm_u32(labels + (size_t)label * 4) == at) ++label;
    at += length;
    ++number;
  }
  if (label < label_count || (opcode != VM_JUMP && opcode != VM_RETURN && opcode != VM_FAIL)) return number;
  return -1;
}

static int check_registers(const struct function* function) {
  const uint32_t parameters = field(function, VM_FUNCTION_PARAMETERS);
  const uint64_t most = (uint64_t)field(function, VM_FUNCTION_WORDS) + parameters;
  for (int offset = VM_FUNCTION_TENSORS; offset <= VM_FUNCTION_LISTS; offset += 4) {
    const uint32_t count = field(function, offset);
    if (count > MAX_REGISTERS || count > most) return 0;
  }
  return parameters <= field(function, VM_FUNCTION_TENSORS);
}

int32_t mlfc_vm_verify(mlfc_vm* vm, mlfc_vm_error* error) {
  struct function function;
  function.vm = vm;
  for (function.number = 0; function.number < vm->counts[VM_FUNCTIONS]; ++function.number) {
    int64_t damaged = 0;
    function.record = mlfc_vm_function_record(vm, function.number);
    if (function.number == 0 && (field(&function, VM_FUNCTION_PARAMETERS) != vm->counts[VM_INPUTS] ||
                                 field(&function, VM_FUNCTION_RESULTS) != vm->counts[VM_OUTPUTS])) {
      mlfc_vm_fail(error, MLFC_VM_BAD_CODE, 0, 0, 0);
      error->function = 0;
      return error->code;
    }
    if (check_registers(&function)) damaged = check_code(vm, &function);
    if (damaged >= 0) {
      mlfc_vm_fail(error, MLFC_VM_BAD_CODE, 0, 0, 0);
      error->function = function.number;
      error->instruction = (uint32_t)damaged;
      return error->code;
    }
  }
  return MLFC_VM_OK;
}
