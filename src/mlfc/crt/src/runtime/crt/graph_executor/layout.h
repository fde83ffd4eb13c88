/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Consecutive lists in one block of memory */
#ifndef TVM_RUNTIME_CRT_GRAPH_EXECUTOR_LAYOUT_H_
#define TVM_RUNTIME_CRT_GRAPH_EXECUTOR_LAYOUT_H_

#include <stddef.h>
#include <stdint.h>

/*!
 * \brief Reserves the next part of a block, at a multiple of eight bytes.
 * \param base The block; NULL to compute its size.
 * \param used Bytes used so far; SIZE_MAX on overflow.
 * \param count Elements of the part.
 * \param size Bytes of an element.
 * \return The part; NULL without a block.
 */
void* layout_take(char* base, size_t* used, size_t count, size_t size);

#endif /* TVM_RUNTIME_CRT_GRAPH_EXECUTOR_LAYOUT_H_ */
