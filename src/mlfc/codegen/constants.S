//: head
/* Symbols of the constants; the bytes are in the file beside this one, under its name with .bin behind. */
#if !defined(__GNUC__)
#error "expected gcc or clang, whose assemblers have .macro and .incbin"
#endif
#define MLF_CONSTANT(name, offset, size, file) mlf_constant __USER_LABEL_PREFIX__, name, offset, size, file
#if defined(__APPLE__)
  .section __TEXT,__const
#elif defined(_WIN32)
  .section .rdata,"dr"
#else
  .section .rodata
#endif
.macro mlf_constant prefix, name, offset, size, file
  .balign 64
  .globl \prefix\name
#if defined(__ELF__)
  .hidden \prefix\name
  .type \prefix\name, %object
  .size \prefix\name, \size
#elif defined(__APPLE__)
  .private_extern \prefix\name
#endif
\prefix\name:
  .incbin "\file\().bin", \offset, \size
.endm

//: tail
#if defined(__ELF__)
  .section .note.GNU-stack,"",%progbits
#endif
