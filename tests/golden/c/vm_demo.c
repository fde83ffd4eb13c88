/*
 * Runs every module of this archive on this machine and prints its outputs.
 *
 * It runs on zeros, with the least and with the largest open extents: compile with --test-vectors N to have inputs and expected outputs in it.
 *
 * This code is yours to use as you like. SPDX-License-Identifier: 0BSD
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <mlfc_vm.h>

#include "tensor_check.h"
#include "tvmgen_net.h"

void tensor_write(const char *text) { (void)fputs(text, stdout); }

/* Runs module net */
static void demo_net(struct tensor_checks *checks) {
  /* the model aligns its work area; inputs start at a multiple of 64 */
  static uint8_t work[TVMGEN_NET_VM_WORK_SIZE];
  static uint8_t in_x[TVMGEN_NET_X_SIZE + 63];
  static const int64_t extents[2][1][MLFC_VM_MAX_RANK] = {
    {{1, 8}},
    {{4, 8}},
  };
  mlfc_vm_host host;
  mlfc_vm_error error;
  mlfc_vm_tensor inputs[1];
  mlfc_vm_tensor outputs[1];
  memset(&host, 0, sizeof host);
  memset(inputs, 0, sizeof inputs);
  inputs[0].data = in_x + (64 - (uintptr_t)in_x % 64) % 64;
  inputs[0].dtype = TVMGEN_NET_X_DTYPE;
  inputs[0].rank = TVMGEN_NET_X_RANK;
  for (size_t run = 0; run < 2; ++run) {
    struct tensor found[1];
    static const char *const names[] = {
      "probabilities",
    };
    static const enum tensor_kind kinds[] = {
      TENSOR_FLOAT32,
    };
    for (size_t i = 0; i < 1; ++i) {
      memcpy(inputs[i].extents, extents[run][i], sizeof inputs[i].extents);
    }
    if (tvmgen_net_vm_run(&host, inputs, outputs, work, sizeof work, &error) != MLFC_VM_OK) {
      tensor_failed(checks, "net");
      return;
    }
    for (size_t i = 0; i < 1; ++i) {
      found[i].name = names[i];
      found[i].kind = kinds[i];
      found[i].data = outputs[i].data;
      found[i].count = 1;
      for (uint8_t axis = 0; axis < outputs[i].rank; ++axis) {
        found[i].count *= (size_t)outputs[i].extents[axis];
      }
      tensor_print("net", &found[i]);
    }
  }
}

int main(int argc, char **argv) {
  (void)argc;
  (void)argv;
  struct tensor_checks checks = {0};
  demo_net(&checks);
  return tensor_verdict(&checks);
}
