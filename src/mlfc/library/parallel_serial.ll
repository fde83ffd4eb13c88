; Where there is no compiler to build the pool of threads with, kernels run their parallel parts themselves.
define i32 @mlfc_parallel_for(ptr %task, ptr %arguments, i32 %count, i32 %most, i64 %scratch_bytes) {
  %status = call i32 %task(ptr %arguments, i32 0, i32 %count, ptr null)
  ret i32 %status
}

define i32 @mlfc_parallel_for_if_asked(ptr %task, ptr %arguments, i32 %count, i32 %most, i64 %scratch_bytes) {
  %status = call i32 %task(ptr %arguments, i32 0, i32 %count, ptr null)
  ret i32 %status
}
