/* Start-up of a RISC-V core in machine mode: pointers, traps, floating point. SPDX-License-Identifier: 0BSD */
  .section .start, "ax", @progbits
  .globl start
  .type start, @function
start:
  .option push
  .option norelax
  la gp, __global_pointer$
  .option pop
  la sp, linker_stack_top
  la tp, linker_threads
  la t0, trap
  csrw mtvec, t0
#if defined(__riscv_flen)
  li t0, 0x2000
  csrs mstatus, t0
#endif
  j startup
  .size start, . - start

  /* the two lowest bits of mtvec mean something else */
  .balign 4
trap:
  csrr a0, mcause
  csrr a1, mepc
  la sp, linker_stack_top
  j fault
