/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "graph.h"

#include <string.h>
#include <tvm/runtime/crt/platform.h>

#include "../common/config.h"
#include "../common/error_text.h"
#include "layout.h"
#include "load_json.h"

static const DLDevice cpu = {kDLCPU, 0};

/*
 * The text is read twice by the same functions: first to count, then, when memory for all lists has been allocated, to
 * fill. APPEND does either.
 */
#define APPEND(count, list, value)               \
  do {                                           \
    if ((list) != NULL) (list)[(count)] = value; \
    ++(count);                                   \
  } while (0)

static GraphRef read_ref(JsonReader* reader) {
  GraphRef ref = {0, 0};
  uint32_t count = 0;
  while (json_next(reader, ']', &count)) {
    const uint32_t value = (uint32_t)json_unsigned(reader, UINT32_MAX);
    if (count == 1) ref.node = value;
    if (count == 2) ref.index = value;
  }
  if (count < 2 || count > 3) {
    json_fail(reader, kTvmErrorDataGraphInvalid, "an entry is [node, index, version], not %u numbers", count);
  }
  return ref;
}

static void read_refs(JsonReader* reader, uint32_t* total, GraphRef* list) {
  uint32_t count = 0;
  while (json_next(reader, ']', &count)) {
    const GraphRef ref = read_ref(reader);
    APPEND(*total, list, ref);
  }
}

static void read_ids(JsonReader* reader, uint32_t* total, uint32_t* list) {
  uint32_t count = 0;
  while (json_next(reader, ']', &count)) {
    const uint32_t value = (uint32_t)json_unsigned(reader, UINT32_MAX);
    APPEND(*total, list, value);
  }
}

/* Reads a number in a string, the form of all operator attributes. */
static uint32_t read_number_text(JsonReader* reader, uint32_t maximum) {
  char text[12];
  json_string(reader, text, sizeof(text), "a number");
  JsonReader inner = json_reader(text);
  const uint32_t value = (uint32_t)json_unsigned(&inner, maximum);
  json_end(&inner);
  if (inner.error != kTvmErrorNoError) {
    json_fail(reader, kTvmErrorDataGraphInvalid, "\"%s\" is not a number that can stand here", text);
  }
  return value;
}

/* Required attributes of an operator that have been read, one bit each. */
enum { FUNC_NAME = 1, NUM_INPUTS = 2, NUM_OUTPUTS = 4, FLATTEN_DATA = 8, ALL_ATTRS = 15 };

static unsigned read_node_attr(JsonReader* reader, const char* key, GraphNode* node, uint32_t* num_inputs) {
  if (strcmp(key, "func_name") == 0) {
    node->func_name = json_string_position(reader);
    return FUNC_NAME;
  }
  if (strcmp(key, "num_inputs") == 0) {
    *num_inputs = read_number_text(reader, UINT32_MAX);
    return NUM_INPUTS;
  }
  if (strcmp(key, "num_outputs") == 0) {
    node->num_outputs = read_number_text(reader, UINT32_MAX);
    return NUM_OUTPUTS;
  }
  if (strcmp(key, "flatten_data") == 0) {
    node->flatten = read_number_text(reader, 1) == 1;
    return FLATTEN_DATA;
  }
  json_skip(reader);
  return 0;
}

/* Distinguishes the two special names from function names. */
static GraphNodeKind kind_of(const char* func_name) {
  static const char copy[] = "\"__copy\"";
  static const char nothing[] = "\"__nop\"";
  if (strncmp(func_name, copy, sizeof(copy) - 1) == 0) return GRAPH_COPY;
  return strncmp(func_name, nothing, sizeof(nothing) - 1) == 0 ? GRAPH_NOTHING : GRAPH_CALL;
}

/* Facts of a node that are known only after all its keys have been read. */
typedef struct {
  bool is_input;
  bool is_operator;
  unsigned attrs;
  uint32_t num_inputs;
} NodeFacts;

static void read_node_key(JsonReader* reader, const char* key, GraphInfo* graph, GraphNode* node, NodeFacts* facts) {
  if (strcmp(key, "op") == 0) {
    char op[16];
    json_string(reader, op, sizeof(op), "the name of an operation");
    facts->is_input = strcmp(op, "null") == 0;
    facts->is_operator = strcmp(op, "tvm_op") == 0;
  } else if (strcmp(key, "name") == 0) {
    node->name = json_string_position(reader);
  } else if (strcmp(key, "inputs") == 0) {
    if (node->num_inputs != 0) json_fail(reader, kTvmErrorDataGraphInvalid, "a node has its inputs twice");
    read_refs(reader, &graph->num_inputs, graph->inputs);
    node->num_inputs = graph->num_inputs - node->first_input;
  } else if (strcmp(key, "attrs") == 0 || strcmp(key, "attr") == 0) {
    char attr[JSON_KEY_SIZE];
    uint32_t count = 0;
    while (json_next(reader, '}', &count)) {
      json_key(reader, attr);
      facts->attrs |= read_node_attr(reader, attr, node, &facts->num_inputs);
    }
  } else {
    json_skip(reader);
  }
}

static GraphNode read_node(JsonReader* reader, GraphInfo* graph) {
  GraphNode node;
  NodeFacts facts = {false, false, 0, 0};
  char key[JSON_KEY_SIZE];
  uint32_t count = 0;
  memset(&node, 0, sizeof(node));
  node.first_input = graph->num_inputs;
  while (json_next(reader, '}', &count)) {
    json_key(reader, key);
    read_node_key(reader, key, graph, &node, &facts);
  }
  if (reader->error != kTvmErrorNoError) return node;
  if (node.name == NULL || facts.is_input == facts.is_operator) {
    json_fail(reader, kTvmErrorDataGraphInvalid, "a node needs a name and the op null or tvm_op");
  } else if (facts.is_input) {
    node.num_outputs = 1;
    node.kind = GRAPH_INPUT;
    if (node.num_inputs != 0) json_fail(reader, kTvmErrorDataGraphInvalid, "a node of op null has inputs");
  } else if (facts.attrs != ALL_ATTRS || facts.num_inputs != node.num_inputs) {
    json_fail(reader, kTvmErrorDataGraphInvalid,
              "an operator needs func_name, num_outputs, flatten_data, and num_inputs as it has inputs");
  } else {
    node.kind = kind_of(node.func_name);
  }
  return node;
}

static void read_nodes(JsonReader* reader, GraphInfo* graph) {
  uint32_t count = 0;
  uint32_t entries = 0;
  if (graph->num_nodes != 0) json_fail(reader, kTvmErrorDataGraphInvalid, "nodes are given twice");
  while (json_next(reader, ']', &count)) {
    GraphNode node = read_node(reader, graph);
    node.first_entry = entries;
    if (node.num_outputs > UINT32_MAX - entries) json_fail(reader, kTvmErrorDataGraphInvalid, "too many outputs");
    entries += node.num_outputs;
    APPEND(graph->num_nodes, graph->nodes, node);
  }
}

/* Reads digits at *at into a number below 65536. */
static bool read_dtype_number(const char** at, uint32_t* value) {
  const char* start = *at;
  *value = 0;
  while (**at >= '0' && **at <= '9' && *value < UINT16_MAX) *value = *value * 10 + (uint32_t)(*(*at)++ - '0');
  return *at != start && *value > 0 && *value <= UINT16_MAX;
}

static DLDataType read_dtype(JsonReader* reader) {
  static const struct {
    const char* name;
    uint8_t code;
  } kinds[] = {
      {"int", kDLInt}, {"uint", kDLUInt}, {"float", kDLFloat}, {"bfloat", kDLBfloat}, {"handle", kDLOpaqueHandle}};
  static const DLDataType boolean = {kDLUInt, 1, 1};
  /* DLPack's numbers, which older headers do not name */
  static const struct {
    const char* name;
    DLDataType dtype;
  } narrow[] = {{"float8_e4m3fn", {10, 8, 1}},   {"float8_e4m3fnuz", {11, 8, 1}}, {"float8_e5m2", {12, 8, 1}},
                {"float8_e5m2fnuz", {13, 8, 1}}, {"float8_e8m0fnu", {14, 8, 1}},  {"float4_e2m1fn", {17, 4, 1}}};
  DLDataType dtype = {0, 0, 1};
  char text[TVM_CRT_MAX_STRLEN_DLTYPE];
  json_string(reader, text, sizeof(text), "TVM_CRT_MAX_STRLEN_DLTYPE");
  if (reader->error != kTvmErrorNoError) return dtype;
  if (strcmp(text, "bool") == 0) return boolean;
  for (size_t i = 0; i < sizeof(narrow) / sizeof(narrow[0]); ++i) {
    if (strcmp(text, narrow[i].name) == 0) return narrow[i].dtype;
  }
  for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i) {
    const size_t length = strlen(kinds[i].name);
    const char* at = text + length;
    uint32_t bits;
    uint32_t lanes = 1;
    if (strncmp(text, kinds[i].name, length) != 0 || !read_dtype_number(&at, &bits) || bits > UINT8_MAX) continue;
    if (*at == 'x') {
      ++at;
      if (!read_dtype_number(&at, &lanes)) continue;
    }
    if (*at != '\0') continue;
    dtype.code = kinds[i].code;
    dtype.bits = (uint8_t)bits;
    dtype.lanes = (uint16_t)lanes;
    return dtype;
  }
  json_fail(reader, kTvmErrorDataGraphInvalid, "\"%s\" is not a type that this runtime knows", text);
  return dtype;
}

static void read_shape(JsonReader* reader, GraphInfo* graph) {
  GraphShape shape = {graph->num_extents, 0};
  uint32_t count = 0;
  while (json_next(reader, ']', &count)) {
    const int64_t extent = (int64_t)json_unsigned(reader, INT64_MAX);
    APPEND(graph->num_extents, graph->extents, extent);
  }
  shape.ndim = graph->num_extents - shape.first;
  if (shape.ndim > TVM_CRT_MAX_NDIM) {
    json_fail(reader, kTvmErrorDataLimitExceeded, "a shape has more dimensions than TVM_CRT_MAX_NDIM allows");
  }
  APPEND(graph->num_shapes, graph->shapes, shape);
}

static void read_device_type(JsonReader* reader, GraphInfo* graph) {
  if (json_unsigned(reader, UINT32_MAX) != kDLCPU) {
    json_fail(reader, kTvmErrorDataGraphInvalid, "this runtime has no device but the CPU");
  }
  ++graph->num_device_types;
}

/* Reads the second half of [tag, list]. */
static void read_entry_list(JsonReader* reader, const char* key, GraphInfo* graph) {
  uint32_t count = 0;
  if (strcmp(key, "storage_id") == 0) {
    read_ids(reader, &graph->num_storage_ids, graph->storage_ids);
    return;
  }
  while (json_next(reader, ']', &count)) {
    if (strcmp(key, "dltype") == 0) {
      const DLDataType dtype = read_dtype(reader);
      APPEND(graph->num_dtypes, graph->dtypes, dtype);
    } else if (strcmp(key, "shape") == 0) {
      read_shape(reader, graph);
    } else {
      read_device_type(reader, graph);
    }
  }
}

static void read_entry_attrs(JsonReader* reader, GraphInfo* graph) {
  char key[JSON_KEY_SIZE];
  uint32_t count = 0;
  while (json_next(reader, '}', &count)) {
    uint32_t part = 0;
    json_key(reader, key);
    if (strcmp(key, "dltype") != 0 && strcmp(key, "shape") != 0 && strcmp(key, "storage_id") != 0 &&
        strcmp(key, "device_index") != 0) {
      json_skip(reader);
      continue;
    }
    while (json_next(reader, ']', &part)) {
      if (part == 2) {
        read_entry_list(reader, key, graph);
      } else {
        json_skip(reader);
      }
    }
    if (part != 2) json_fail(reader, kTvmErrorDataGraphInvalid, "a graph's attribute is not a tag and a list");
  }
}

static void read_graph(JsonReader* reader, GraphInfo* graph) {
  char key[JSON_KEY_SIZE];
  uint32_t count = 0;
  while (json_next(reader, '}', &count)) {
    json_key(reader, key);
    if (strcmp(key, "nodes") == 0) {
      read_nodes(reader, graph);
    } else if (strcmp(key, "arg_nodes") == 0) {
      read_ids(reader, &graph->num_arg_nodes, graph->arg_nodes);
    } else if (strcmp(key, "heads") == 0) {
      read_refs(reader, &graph->num_heads, graph->heads);
    } else if (strcmp(key, "node_row_ptr") == 0) {
      read_ids(reader, &graph->num_row_ptr, graph->row_ptr);
    } else if (strcmp(key, "attrs") == 0) {
      read_entry_attrs(reader, graph);
    } else {
      json_skip(reader);
    }
  }
  json_end(reader);
}

/* Lays out the counted lists from `base`, resets the counts, and returns their size in bytes. */
static size_t lay_out(GraphInfo* graph, char* base) {
  const GraphInfo counted = *graph;
  size_t used = 0;
  memset(graph, 0, sizeof(*graph));
  graph->extents = (int64_t*)layout_take(base, &used, counted.num_extents, sizeof(int64_t));
  graph->nodes = (GraphNode*)layout_take(base, &used, counted.num_nodes, sizeof(GraphNode));
  graph->inputs = (GraphRef*)layout_take(base, &used, counted.num_inputs, sizeof(GraphRef));
  graph->heads = (GraphRef*)layout_take(base, &used, counted.num_heads, sizeof(GraphRef));
  graph->shapes = (GraphShape*)layout_take(base, &used, counted.num_shapes, sizeof(GraphShape));
  graph->arg_nodes = (uint32_t*)layout_take(base, &used, counted.num_arg_nodes, sizeof(uint32_t));
  graph->row_ptr = (uint32_t*)layout_take(base, &used, counted.num_row_ptr, sizeof(uint32_t));
  graph->storage_ids = (uint32_t*)layout_take(base, &used, counted.num_storage_ids, sizeof(uint32_t));
  graph->dtypes = (DLDataType*)layout_take(base, &used, counted.num_dtypes, sizeof(DLDataType));
  return used;
}

tvm_crt_error_t graph_load(const char* text, GraphInfo* graph) {
  JsonReader reader = json_reader(text);
  memset(graph, 0, sizeof(*graph));
  read_graph(&reader, graph);
  if (reader.error != kTvmErrorNoError) return reader.error;
  GraphInfo sizes = *graph;
  const size_t bytes = lay_out(&sizes, NULL);
  void* memory = NULL;
  if (bytes == SIZE_MAX || TVMPlatformMemoryAllocate(bytes, cpu, &memory) != kTvmErrorNoError || memory == NULL) {
    return tvm_crt_fail(kTvmErrorPlatformNoMemory, "no memory to read a graph of %u nodes", graph->num_nodes);
  }
  lay_out(graph, (char*)memory);
  graph->memory = memory;
  reader = json_reader(text);
  read_graph(&reader, graph);
  return reader.error != kTvmErrorNoError ? reader.error : graph_check(graph);
}

void graph_free(GraphInfo* graph) {
  if (graph->memory != NULL) TVMPlatformMemoryFree(graph->memory, cpu);
  memset(graph, 0, sizeof(*graph));
}

uint32_t graph_entry(const GraphInfo* graph, GraphRef ref) { return graph->nodes[ref.node].first_entry + ref.index; }
