/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/* Creates an executor from a checked graph. */
#include <string.h>
#include <tvm/runtime/crt/platform.h>

#include "../common/config.h"
#include "../common/error_text.h"
#include "../common/handles.h"
#include "executor.h"
#include "graph.h"
#include "layout.h"
#include "load_json.h"

static const DLDevice cpu = {kDLCPU, 0};

/* Lists of the executor that are reachable only through its pointers. */
typedef struct {
  TVMValue* values;
  int* codes;
  int64_t* extents;
  char* names;
  uint32_t num_args;
  uint32_t num_views;
  size_t num_name_bytes;
} Parts;

/* State of the setup. */
typedef struct {
  const GraphInfo* graph;
  TVMModuleHandle module;
  TVMGraphExecutor* executor;
  Parts parts;
} Setup;

static bool is_call(const GraphNode* node) { return node->kind == GRAPH_CALL || node->kind == GRAPH_COPY; }

static tvm_crt_error_t count_parts(const GraphInfo* graph, TVMGraphExecutor* counts, Parts* parts) {
  size_t args = 0;
  size_t views = 0;
  for (uint32_t i = 0; i < graph->num_nodes; ++i) {
    const GraphNode* node = &graph->nodes[i];
    const size_t node_args = (size_t)node->num_inputs + node->num_outputs;
    if (!is_call(node)) continue;
    ++counts->num_calls;
    args += node_args;
    if (node->flatten) views += node_args;
  }
  for (uint32_t i = 0; i < graph->num_arg_nodes; ++i) {
    JsonReader reader = json_reader(graph->nodes[graph->arg_nodes[i]].name);
    json_string_position(&reader);
    /* The quotes leave room for the terminator. */
    parts->num_name_bytes += (size_t)(reader.at - reader.begin);
  }
  if (args > INT32_MAX || views > UINT32_MAX - graph->num_dtypes) {
    return tvm_crt_fail(kTvmErrorDataLimitExceeded, "graph JSON: it has too many arguments");
  }
  parts->num_args = (uint32_t)args;
  parts->num_views = (uint32_t)views;
  counts->num_inputs = graph->num_arg_nodes;
  counts->num_outputs = graph->num_heads;
  counts->num_tensors = graph->num_dtypes + (uint32_t)views;
  for (uint32_t i = 0; i < graph->num_storage_ids; ++i) {
    if (graph->storage_ids[i] >= counts->num_storages) counts->num_storages = graph->storage_ids[i] + 1;
  }
  return kTvmErrorNoError;
}

/* Lays out the executor and its lists in one block and returns its size in bytes. */
static size_t lay_out(const GraphInfo* graph, TVMGraphExecutor* executor, Parts* parts, char* base) {
  size_t used = 0;
  layout_take(base, &used, 1, sizeof(TVMGraphExecutor));
  executor->tensors = (DLTensor*)layout_take(base, &used, executor->num_tensors, sizeof(DLTensor));
  executor->storages = (Storage*)layout_take(base, &used, executor->num_storages, sizeof(Storage));
  executor->calls = (Call*)layout_take(base, &used, executor->num_calls, sizeof(Call));
  executor->inputs = (Input*)layout_take(base, &used, executor->num_inputs, sizeof(Input));
  executor->outputs = (uint32_t*)layout_take(base, &used, executor->num_outputs, sizeof(uint32_t));
  executor->storage_of_tensor = (uint32_t*)layout_take(base, &used, executor->num_tensors, sizeof(uint32_t));
  parts->extents =
      (int64_t*)layout_take(base, &used, (size_t)graph->num_extents + parts->num_views, sizeof(int64_t));
  parts->values = (TVMValue*)layout_take(base, &used, parts->num_args, sizeof(TVMValue));
  parts->codes = (int*)layout_take(base, &used, parts->num_args, sizeof(int));
  parts->names = (char*)layout_take(base, &used, parts->num_name_bytes, 1);
  return used;
}

static tvm_crt_error_t allocate(Setup* setup) {
  TVMGraphExecutor sizes;
  void* memory = NULL;
  memset(&sizes, 0, sizeof(sizes));
  const tvm_crt_error_t error = count_parts(setup->graph, &sizes, &setup->parts);
  if (error != kTvmErrorNoError) return error;
  const size_t bytes = lay_out(setup->graph, &sizes, &setup->parts, NULL);
  if (bytes == SIZE_MAX || TVMPlatformMemoryAllocate(bytes, cpu, &memory) != kTvmErrorNoError || memory == NULL) {
    return tvm_crt_fail(kTvmErrorPlatformNoMemory, "no memory for an executor of %u calls", sizes.num_calls);
  }
  memset(memory, 0, bytes);
  setup->executor = (TVMGraphExecutor*)memory;
  lay_out(setup->graph, &sizes, &setup->parts, (char*)memory);
  *setup->executor = sizes;
  return kTvmErrorNoError;
}

static tvm_crt_error_t make_tensors(Setup* setup) {
  const GraphInfo* graph = setup->graph;
  TVMGraphExecutor* executor = setup->executor;
  if (graph->num_extents > 0) memcpy(setup->parts.extents, graph->extents, graph->num_extents * sizeof(int64_t));
  for (uint32_t i = 0; i < graph->num_dtypes; ++i) {
    DLTensor* tensor = &executor->tensors[i];
    Storage* storage = &executor->storages[graph->storage_ids[i]];
    size_t bytes;
    tensor->device = cpu;
    tensor->dtype = graph->dtypes[i];
    tensor->ndim = (int32_t)graph->shapes[i].ndim;
    tensor->shape = setup->parts.extents + graph->shapes[i].first;
    executor->storage_of_tensor[i] = graph->storage_ids[i];
    if (!tvm_crt_tensor_bytes(tensor, &bytes)) {
      return tvm_crt_fail(kTvmErrorDataGraphInvalid, "graph JSON: entry %u has more bytes than fit this machine", i);
    }
    if (bytes > storage->bytes) storage->bytes = bytes;
  }
  /* Views come last; their shapes follow all others. */
  executor->num_tensors = graph->num_dtypes;
  setup->parts.extents += graph->num_extents;
  return kTvmErrorNoError;
}

/* Returns the tensor that is passed to an operator for an entry. */
static DLTensor* argument(Setup* setup, uint32_t entry, bool flatten) {
  TVMGraphExecutor* executor = setup->executor;
  DLTensor* tensor = &executor->tensors[entry];
  size_t count = 0;
  if (!flatten) return tensor;
  DLTensor* view = &executor->tensors[executor->num_tensors];
  executor->storage_of_tensor[executor->num_tensors] = executor->storage_of_tensor[entry];
  ++executor->num_tensors;
  tvm_crt_element_count(tensor->shape, tensor->ndim, &count);
  *view = *tensor;
  view->ndim = 1;
  view->shape = setup->parts.extents++;
  view->shape[0] = (int64_t)count;
  return view;
}

/* The operator __copy. */
static int copy(TVMValue* args, int* type_codes, int num_args, TVMValue* ret_value, int* ret_code,
                void* resource_handle) {
  (void)type_codes;
  (void)num_args;
  (void)ret_value;
  (void)ret_code;
  (void)resource_handle;
  return tvm_crt_copy_elements((const DLTensor*)args[0].v_handle, (DLTensor*)args[1].v_handle);
}

static tvm_crt_error_t find_function(const Setup* setup, const GraphNode* node, TVMBackendPackedCFunc* function) {
  char name[TVM_CRT_MAX_STRLEN_FUNCTION_NAME];
  if (node->kind == GRAPH_COPY) {
    *function = copy;
    return kTvmErrorNoError;
  }
  JsonReader reader = json_reader(node->func_name);
  json_string(&reader, name, sizeof(name), "TVM_CRT_MAX_STRLEN_FUNCTION_NAME");
  if (reader.error != kTvmErrorNoError) return reader.error;
  if (tvm_crt_find_function(setup->module, name, function) == kTvmErrorNoError) return kTvmErrorNoError;
  return tvm_crt_fail(kTvmErrorFunctionNameNotFound, "the graph calls a function that its module does not have: %s",
                      name);
}

static tvm_crt_error_t make_call(Setup* setup, const GraphNode* node) {
  TVMGraphExecutor* executor = setup->executor;
  Call* call = &executor->calls[executor->num_calls++];
  call->values = setup->parts.values;
  call->codes = setup->parts.codes;
  call->num_args = (int)(node->num_inputs + node->num_outputs);
  for (uint32_t i = 0; i < node->num_inputs; ++i) {
    const uint32_t entry = graph_entry(setup->graph, setup->graph->inputs[node->first_input + i]);
    call->values[i].v_handle = argument(setup, entry, node->flatten);
  }
  for (uint32_t i = 0; i < node->num_outputs; ++i) {
    const uint32_t entry = node->first_entry + i;
    call->values[node->num_inputs + i].v_handle = argument(setup, entry, node->flatten);
    executor->storages[executor->storage_of_tensor[entry]].written = true;
  }
  for (int i = 0; i < call->num_args; ++i) call->codes[i] = kTVMNDArrayHandle;
  setup->parts.values += call->num_args;
  setup->parts.codes += call->num_args;
  return find_function(setup, node, &call->function);
}

/* Nodes that only pass a tensor on must have one input and one matching output. */
static tvm_crt_error_t check_passing(const Setup* setup, const GraphNode* node) {
  const TVMGraphExecutor* executor = setup->executor;
  size_t in_bytes = 0;
  size_t out_bytes = 0;
  bool fits = node->num_inputs == 1 && node->num_outputs == 1;
  if (fits) {
    const uint32_t in = graph_entry(setup->graph, setup->graph->inputs[node->first_input]);
    const uint32_t out = node->first_entry;
    fits = tvm_crt_tensor_bytes(&executor->tensors[in], &in_bytes) &&
           tvm_crt_tensor_bytes(&executor->tensors[out], &out_bytes) && in_bytes == out_bytes;
    if (node->kind == GRAPH_NOTHING) {
      fits = fits && executor->storage_of_tensor[in] == executor->storage_of_tensor[out];
    }
  }
  if (fits) return kTvmErrorNoError;
  return tvm_crt_fail(kTvmErrorDataGraphInvalid,
                      "graph JSON: __copy and __nop need an input and an output of one size, __nop in one storage");
}

static tvm_crt_error_t make_calls(Setup* setup) {
  setup->executor->num_calls = 0;
  for (uint32_t i = 0; i < setup->graph->num_nodes; ++i) {
    const GraphNode* node = &setup->graph->nodes[i];
    tvm_crt_error_t error = kTvmErrorNoError;
    if (node->kind == GRAPH_COPY || node->kind == GRAPH_NOTHING) error = check_passing(setup, node);
    if (error == kTvmErrorNoError && is_call(node)) error = make_call(setup, node);
    if (error != kTvmErrorNoError) return error;
  }
  return kTvmErrorNoError;
}

static tvm_crt_error_t make_ends(Setup* setup) {
  const GraphInfo* graph = setup->graph;
  char* name = setup->parts.names;
  for (uint32_t i = 0; i < graph->num_arg_nodes; ++i) {
    const GraphNode* node = &graph->nodes[graph->arg_nodes[i]];
    JsonReader reader = json_reader(node->name);
    json_string(&reader, name, TVM_CRT_MAX_STRLEN_FUNCTION_NAME, "TVM_CRT_MAX_STRLEN_FUNCTION_NAME");
    if (reader.error != kTvmErrorNoError) return reader.error;
    setup->executor->inputs[i].name = name;
    setup->executor->inputs[i].tensor = node->first_entry;
    name += strlen(name) + 1;
  }
  for (uint32_t i = 0; i < graph->num_heads; ++i) setup->executor->outputs[i] = graph_entry(graph, graph->heads[i]);
  return kTvmErrorNoError;
}

/* Inputs and parameters are allocated when first set, since they may be linked before. */
static tvm_crt_error_t allocate_written(TVMGraphExecutor* executor) {
  for (uint32_t id = 0; id < executor->num_storages; ++id) {
    if (!executor->storages[id].written) continue;
    const tvm_crt_error_t error = storage_own(executor, id);
    if (error != kTvmErrorNoError) return error;
  }
  return kTvmErrorNoError;
}

static tvm_crt_error_t set_up(Setup* setup) {
  tvm_crt_error_t error = allocate(setup);
  if (error == kTvmErrorNoError) error = make_tensors(setup);
  if (error == kTvmErrorNoError) error = make_calls(setup);
  if (error == kTvmErrorNoError) error = make_ends(setup);
  if (error == kTvmErrorNoError) error = allocate_written(setup->executor);
  return error;
}

int TVMGraphExecutor_Create(const char* sym_json, TVMModuleHandle module_handle, const DLDevice* devices,
                            TVMGraphExecutor** executor) {
  GraphInfo graph;
  Setup setup;
  if (executor == NULL) return tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "the place for the executor is NULL");
  *executor = NULL;
  if (sym_json == NULL || devices == NULL) {
    return tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "%s is NULL",
                        sym_json == NULL ? "the graph JSON" : "the list of devices");
  }
  if (devices[0].device_type != kDLCPU) {
    return tvm_crt_fail(kTvmErrorExecutorModuleBadContext, "the graph executor runs on the CPU alone");
  }
  memset(&setup, 0, sizeof(setup));
  setup.graph = &graph;
  setup.module = module_handle;
  tvm_crt_error_t error = graph_load(sym_json, &graph);
  if (error == kTvmErrorNoError) error = set_up(&setup);
  graph_free(&graph);
  *executor = setup.executor;
  if (error != kTvmErrorNoError && *executor != NULL) TVMGraphExecutor_Release(executor);
  return error;
}
