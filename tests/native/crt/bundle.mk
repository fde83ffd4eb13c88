# The structure of TVM's example of bundles: the model's tar is unpacked, and its three objects are linked with three
# libraries of the C runtime.
build_dir := build
CRT_ROOT ?= runtime
FLAGS = -O1 -Wall -fPIC -I$(CRT_ROOT)/include -I$(CRT_ROOT)/host -I$(PROGRAMS)
MODEL_OBJ = $(build_dir)/model_c/devc.o $(build_dir)/model_c/lib0.o $(build_dir)/model_c/lib1.o
LIBRARIES = $(build_dir)/libmemory.a $(build_dir)/libgraph_executor.a $(build_dir)/libcommon.a

$(build_dir)/demo_static: $(build_dir)/bundle.o $(MODEL_OBJ) $(LIBRARIES)
	$(CC) $(FLAGS) -o $@ $^ -pthread -lm

$(MODEL_OBJ): model_c.tar
	mkdir -p $(build_dir)/model_c
	tar -C $(build_dir)/model_c -xf $<

$(build_dir)/bundle.o: $(PROGRAMS)/bundle.c $(MODEL_OBJ)
	$(CC) -c $(FLAGS) -o $@ $<

$(build_dir)/lib%.a: $(CRT_ROOT)/src/runtime/crt/%/
	mkdir -p $(build_dir)/$*
	cd $(build_dir)/$* && $(CC) -c $(FLAGS:-I%=-I$(CURDIR)/%) $(CURDIR)/$</*.c
	$(AR) rcs $@ $(build_dir)/$*/*.o
