; Without a compiler to build the thread pool, kernels run their parallel parts serially.
define i32 @mlfc_parallel_for(ptr %task, ptr %arguments, i32 %count, i32 %most, i64 %scratch_bytes) {
  %status = call i32 %task(ptr %arguments, i32 0, i32 %count, ptr null)
  ret i32 %status
}

define i32 @mlfc_parallel_for_if_asked(ptr %task, ptr %arguments, i32 %count, i32 %most, i64 %scratch_bytes) {
  %status = call i32 %task(ptr %arguments, i32 0, i32 %count, ptr null)
  ret i32 %status
}
