/* Runs a model on each set of inputs by the graph executor and reports. SPDX-License-Identifier: 0BSD */
#include <tvm/runtime/crt/crt.h>
#include <tvm/runtime/crt/graph_executor.h>
#include <tvm/runtime/crt/module.h>
#include <tvm/runtime/crt/platform.h>

#include "counter.h"
#include "graph_model.h"
#include "host_io.h"
#include "report.h"
#include "stack_paint.h"

enum { NO_INPUTS = 2, NO_OUTPUTS = 3, MODEL_FAILED = 4, NO_REPORT = 5, NO_STACK = 6 };

static int read_inputs(int file) {
  int status = 0;
  for (uint32_t i = 0; status == 0 && i < graph_num_inputs; ++i) {
    status = host_read(file, graph_inputs[i].tensor.data, graph_inputs[i].nbytes);
  }
  return status;
}

static int set_tensors(TVMGraphExecutor *executor, const struct graph_tensor *tensors, uint32_t count) {
  int status = 0;
  for (uint32_t i = 0; status == 0 && i < count; ++i) {
    DLTensor tensor = tensors[i].tensor;
    status = TVMGraphExecutor_SetInput(executor, tensors[i].name, &tensor);
  }
  return status;
}

static TVMGraphExecutor *start(void) {
  static const DLDevice cpu = {kDLCPU, 0};
  TVMGraphExecutor *executor = NULL;
  TVMModuleHandle library;
  if (TVMPlatformInitialize() != kTvmErrorNoError || TVMInitializeRuntime() != kTvmErrorNoError ||
      TVMModCreateFromCModule(TVMSystemLibEntryPoint(), &library) != 0 ||
      TVMGraphExecutor_Create(graph_json, library, &cpu, &executor) != 0 ||
      set_tensors(executor, graph_params, graph_num_params) != 0) {
    return NULL;
  }
  return executor;
}

static int write_outputs(int file, TVMGraphExecutor *executor) {
  int status = 0;
  for (uint32_t i = 0; status == 0 && i < graph_num_outputs; ++i) {
    DLTensor view = {0};
    status = TVMGraphExecutor_GetOutput(executor, (int32_t)i, &view);
    if (status == 0) {
      status = host_write(file, (const char *)view.data + view.byte_offset, graph_outputs[i]);
    }
  }
  return status;
}

static int failed(void) {
  host_print(TVMGetLastError());
  host_print("\n");
  return MODEL_FAILED;
}

int main(void) {
  const int given = graph_num_inputs > 0 ? host_open("inputs.bin", 0) : 0;
  const int results = graph_num_outputs > 0 ? host_open("outputs.bin", 1) : 0;
  struct measures measures = {0, 0, 0};
  TVMGraphExecutor *executor;
  uint8_t goes_on = 0;
  if (given == -1) {
    return NO_INPUTS;
  }
  if (results == -1) {
    return NO_OUTPUTS;
  }
  executor = start();
  if (executor == NULL) {
    return failed();
  }
  do {
    if (read_inputs(given) != 0) {
      return NO_INPUTS;
    }
    if (set_tensors(executor, graph_inputs, graph_num_inputs) != 0) {
      return failed();
    }
    if (measures.startup == 0) {
      measures.startup = counter_ticks();
    }
    stack_paint();
    const uint64_t started = counter_ticks();
    const int status = TVMGraphExecutor_Run(executor);
    measures.ticks += counter_ticks() - started;
    const size_t used = stack_used();
    measures.stack = used > measures.stack ? used : measures.stack;
    if (stack_ran_out()) {
      return NO_STACK;
    }
    if (status != 0) {
      return failed();
    }
    if (write_outputs(results, executor) != 0) {
      return NO_OUTPUTS;
    }
    /* a byte of 1 precedes each further set */
  } while (graph_num_inputs > 0 && host_read(given, &goes_on, 1) == 0 && goes_on == 1);
  if (graph_num_inputs > 0) {
    host_close(given);
  }
  if (graph_num_outputs > 0) {
    host_close(results);
  }
  return report_write("report.txt", &measures) == 0 ? 0 : NO_REPORT;
}
