/* The graph and its parameters, as files. SPDX-License-Identifier: 0BSD */
  .section .rodata.tvm, "a", %progbits
  .globl graph_json
graph_json:
  .incbin "graph.json"
  .byte 0

  .balign 16
  .globl graph_params_data
graph_params_data:
  .incbin "params.bin"

  .section .note.GNU-stack, "", %progbits
