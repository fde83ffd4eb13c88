/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "../common/config.h"
#include "../common/error_text.h"
#include "graph.h"

static tvm_crt_error_t refuse(const char* what, uint32_t number) {
  return tvm_crt_fail(kTvmErrorDataGraphInvalid, "graph JSON: %s (%u)", what, number);
}

/* A node may read only outputs of nodes before `limit`, so cycles are impossible. */
static bool is_output_before(const GraphInfo* graph, GraphRef ref, uint32_t limit) {
  return ref.node < limit && ref.index < graph->nodes[ref.node].num_outputs;
}

static tvm_crt_error_t check_nodes(const GraphInfo* graph) {
  for (uint32_t i = 0; i < graph->num_nodes; ++i) {
    const GraphNode* node = &graph->nodes[i];
    const GraphRef* inputs = graph->inputs + node->first_input;
    for (uint32_t k = 0; k < node->num_inputs; ++k) {
      if (!is_output_before(graph, inputs[k], i)) {
        return refuse("a node reads something else than an output of an earlier node", i);
      }
    }
    if (node->kind == GRAPH_CALL &&
        (node->num_inputs > TVM_CRT_MAX_ARGS || node->num_outputs > TVM_CRT_MAX_ARGS - node->num_inputs)) {
      return tvm_crt_fail(kTvmErrorDataLimitExceeded, "graph JSON: node %u has more arguments than TVM_CRT_MAX_ARGS",
                          i);
    }
  }
  return kTvmErrorNoError;
}

static uint32_t num_entries(const GraphInfo* graph) {
  if (graph->num_nodes == 0) return 0;
  const GraphNode* last = &graph->nodes[graph->num_nodes - 1];
  return last->first_entry + last->num_outputs;
}

static tvm_crt_error_t check_lists(const GraphInfo* graph) {
  const uint32_t entries = num_entries(graph);
  if (graph->num_nodes == 0 || graph->num_heads == 0) return refuse("it has no nodes or no heads", 0);
  if (graph->num_row_ptr != graph->num_nodes + 1) {
    return refuse("node_row_ptr must have a number more than there are nodes", graph->num_row_ptr);
  }
  for (uint32_t i = 0; i < graph->num_row_ptr; ++i) {
    const uint32_t expected = i < graph->num_nodes ? graph->nodes[i].first_entry : entries;
    if (graph->row_ptr[i] != expected) return refuse("node_row_ptr is not the sum of outputs before each node", i);
  }
  if (graph->num_dtypes != entries || graph->num_shapes != entries || graph->num_storage_ids != entries ||
      (graph->num_device_types != 0 && graph->num_device_types != entries)) {
    return refuse("dltype, shape, storage_id and device_index must have an element for each entry", entries);
  }
  for (uint32_t i = 0; i < entries; ++i) {
    if (graph->storage_ids[i] >= entries) return refuse("a storage id is not less than the number of entries", i);
  }
  return kTvmErrorNoError;
}

static tvm_crt_error_t check_ends(const GraphInfo* graph) {
  for (uint32_t i = 0; i < graph->num_arg_nodes; ++i) {
    const uint32_t node = graph->arg_nodes[i];
    if (node >= graph->num_nodes || graph->nodes[node].kind != GRAPH_INPUT ||
        (i > 0 && node <= graph->arg_nodes[i - 1])) {
      return refuse("arg_nodes must be nodes of op null, in order", i);
    }
  }
  for (uint32_t i = 0; i < graph->num_heads; ++i) {
    if (!is_output_before(graph, graph->heads[i], graph->num_nodes)) return refuse("a head is not an output", i);
  }
  return kTvmErrorNoError;
}

tvm_crt_error_t graph_check(const GraphInfo* graph) {
  tvm_crt_error_t error = check_nodes(graph);
  if (error == kTvmErrorNoError) error = check_lists(graph);
  if (error == kTvmErrorNoError) error = check_ends(graph);
  return error;
}
