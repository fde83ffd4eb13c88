/* The parameters, as a file. SPDX-License-Identifier: 0BSD */
  .section .rodata.tvm, "a", %progbits
  .balign 16
  .globl parameter_data
parameter_data:
  .incbin "parameters.bin"

  .section .note.GNU-stack, "", %progbits
