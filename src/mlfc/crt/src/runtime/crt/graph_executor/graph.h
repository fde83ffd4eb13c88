/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief A checked graph, read from JSON, from which an executor is created */
#ifndef TVM_RUNTIME_CRT_GRAPH_EXECUTOR_GRAPH_H_
#define TVM_RUNTIME_CRT_GRAPH_EXECUTOR_GRAPH_H_

#include <dlpack/dlpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/crt/error_codes.h>

/*! \brief An output of a node. */
typedef struct {
  uint32_t node;
  uint32_t index;
} GraphRef;

typedef enum {
  GRAPH_INPUT,
  GRAPH_CALL,
  /*! \brief Copies its input to its output. */
  GRAPH_COPY,
  /*! \brief Does nothing: its output has the storage of its input. */
  GRAPH_NOTHING
} GraphNodeKind;

typedef struct {
  GraphNodeKind kind;
  /*! \brief Position of the names in the JSON text, for json_string. */
  const char* name;
  const char* func_name;
  /*! \brief Its inputs: `num_inputs` of GraphInfo.inputs from here. */
  uint32_t first_input;
  uint32_t num_inputs;
  /*! \brief Its outputs: `num_outputs` entries from here. */
  uint32_t first_entry;
  uint32_t num_outputs;
  /*! \brief Whether arguments are passed with one dimension. */
  bool flatten;
} GraphNode;

/*! \brief Shape of an entry: `ndim` of GraphInfo.extents from `first`. */
typedef struct {
  uint32_t first;
  uint32_t ndim;
} GraphShape;

/*!
 * \brief The graph. An entry is one output of one node.
 *
 * Each count is followed by its list. In the first pass over the JSON, lists are NULL and only counted.
 */
typedef struct {
  uint32_t num_nodes;
  GraphNode* nodes;
  uint32_t num_inputs;
  GraphRef* inputs;
  uint32_t num_arg_nodes;
  uint32_t* arg_nodes;
  uint32_t num_heads;
  GraphRef* heads;
  uint32_t num_row_ptr;
  uint32_t* row_ptr;
  uint32_t num_dtypes;
  DLDataType* dtypes;
  uint32_t num_shapes;
  GraphShape* shapes;
  uint32_t num_extents;
  int64_t* extents;
  uint32_t num_storage_ids;
  uint32_t* storage_ids;
  /*! \brief 0 if the graph does not declare it. */
  uint32_t num_device_types;
  /*! \brief The memory of all lists. */
  void* memory;
} GraphInfo;

/*!
 * \brief Reads and checks a graph.
 *
 * Afterwards all numbers are in range, nodes read only outputs of earlier nodes, the lists of entries have equal
 * lengths, and storage ids are less than the number of entries.
 *
 * \param text The JSON; names point into it.
 * \param graph Must be freed by graph_free, even after an error.
 */
tvm_crt_error_t graph_load(const char* text, GraphInfo* graph);

/*! \brief Frees the lists. */
void graph_free(GraphInfo* graph);

/*! \brief Returns the number of an entry. */
uint32_t graph_entry(const GraphInfo* graph, GraphRef ref);

/*! \brief Checks the guarantees of graph_load for a graph whose text has been read. */
tvm_crt_error_t graph_check(const GraphInfo* graph);

#endif /* TVM_RUNTIME_CRT_GRAPH_EXECUTOR_GRAPH_H_ */
