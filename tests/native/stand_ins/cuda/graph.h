/* SPDX-License-Identifier: 0BSD */
/* Graphs of launches, a part of the stand-in for NVIDIA's driver: nodes run in the last order that dependencies
 * allow. */
enum { MAX_NODES = 512, MAX_EARLIER = 64 };

struct node_parameters {
  struct function *function;
  unsigned grid[3], block[3], shared;
  void **parameters, **extra;
  void *kernel, *context;
};

struct node {
  struct function *function; /* NULL for an event */
  unsigned grid[3], block[3], shared;
  uint64_t values[MAX_PARAMETERS];
  int earlier[MAX_EARLIER];
  int count, done;
};

struct graph {
  int count;
  struct node nodes[MAX_NODES];
};

static int graph_create(struct graph **out, unsigned flags) {
  *out = calloc(1, sizeof **out);
  return flags == 0 ? SUCCESS : INVALID_VALUE;
}

static int graph_destroy(struct graph *graph) {
  free(graph);
  return SUCCESS;
}

/* node handles count from 1 */
static int add_node(void **out, struct graph *graph, void *const *earlier, size_t count, struct node **made) {
  if (graph->count == MAX_NODES || count > MAX_EARLIER) {
    return OUT_OF_MEMORY;
  }
  struct node *node = &graph->nodes[graph->count++];
  for (size_t index = 0; index < count; ++index) {
    node->earlier[index] = (int)(intptr_t)earlier[index] - 1;
    if (node->earlier[index] < 0 || node->earlier[index] >= graph->count - 1) {
      return INVALID_VALUE;
    }
  }
  node->count = (int)count;
  *out = (void *)(intptr_t)graph->count;
  *made = node;
  return SUCCESS;
}

static int graph_add_event(void **out, struct graph *graph, void *const *earlier, size_t count, void *event) {
  struct node *node;
  (void)event;
  return add_node(out, graph, earlier, count, &node);
}

static int graph_add_kernel(void **out, struct graph *graph, void *const *earlier, size_t count,
                            const struct node_parameters *given) {
  struct node *node;
  int status = check_launch(given->function, given->grid, given->block, given->shared);
  if (status == SUCCESS) {
    status = add_node(out, graph, earlier, count, &node);
  }
  if (status == SUCCESS) {
    node->function = given->function;
    memcpy(node->grid, given->grid, sizeof node->grid);
    memcpy(node->block, given->block, sizeof node->block);
    node->shared = given->shared;
    for (int index = 0; index < node->function->parameters; ++index) {
      memcpy(&node->values[index], given->parameters[index], sizeof node->values[index]);
    }
  }
  return status;
}

static int graph_instantiate(struct graph **out, const struct graph *graph, unsigned long long flags) {
  *out = malloc(sizeof **out);
  memcpy(*out, graph, sizeof **out);
  return flags == 0 && current() != NULL ? SUCCESS : INVALID_VALUE;
}

/* takes the last ready node, so a node runs before earlier ones that it does not depend on */
static struct node *take_ready(struct graph *graph) {
  for (int index = graph->count - 1; index >= 0; --index) {
    struct node *node = &graph->nodes[index];
    int ready = !node->done;
    for (int place = 0; place < node->count; ++place) {
      ready = ready && graph->nodes[node->earlier[place]].done;
    }
    if (ready) {
      node->done = 1;
      return node;
    }
  }
  return NULL;
}

static int graph_launch(struct graph *graph, void *stream) {
  (void)stream;
  if (current() == NULL) {
    return INVALID_CONTEXT;
  }
  for (int index = 0; index < graph->count; ++index) {
    graph->nodes[index].done = 0;
  }
  for (struct node *node = take_ready(graph); node != NULL; node = take_ready(graph)) {
    if (node->function != NULL) {
      struct work *work = enqueue();
      work->function = node->function;
      memcpy(work->grid, node->grid, sizeof work->grid);
      memcpy(work->block, node->block, sizeof work->block);
      work->shared = node->shared;
      memcpy(work->values, node->values, sizeof work->values);
    }
  }
  return SUCCESS;
}
