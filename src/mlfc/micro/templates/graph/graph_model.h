/* What the graph executor needs of a model. SPDX-License-Identifier: 0BSD */
#ifndef GRAPH_MODEL_H_
#define GRAPH_MODEL_H_
#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

struct graph_tensor {
  const char *name;
  size_t nbytes;
  DLTensor tensor;
};

extern const char graph_json[];
/* parameters stay where they are, in flash */
extern const uint8_t graph_params_data[];
extern const struct graph_tensor graph_params[], graph_inputs[];
extern const uint32_t graph_num_params, graph_num_inputs;
/* the bytes of each output */
extern const size_t graph_outputs[];
extern const uint32_t graph_num_outputs;

#endif /* GRAPH_MODEL_H_ */
