; Called by modules compiled for tracing: times every operator of a run, or passes its output to a function.
; The same as operator_record.c of the runtime, for machines without a C compiler. SPDX-License-Identifier: 0BSD

%timespec = type { i64, i64 }

@started = internal global i64 0
@recorded = internal global ptr null
@capacity = internal global i32 0
@observer = internal global ptr null

declare i32 @clock_gettime(i32, ptr)

define internal i64 @now() {
  %time = alloca %timespec
  %status = call i32 @clock_gettime(i32 CLOCK_MONOTONIC, ptr %time)
  %seconds = load i64, ptr %time
  %fraction = getelementptr %timespec, ptr %time, i32 0, i32 1
  %nanoseconds = load i64, ptr %fraction
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %nanoseconds
  ret i64 %sum
}

define void @mlfc_trace_time(ptr %nanoseconds, i32 %count) {
  store ptr %nanoseconds, ptr @recorded
  store i32 %count, ptr @capacity
  ret void
}

define void @mlfc_trace_observe(ptr %function) {
  store ptr %function, ptr @observer
  ret void
}

define void @mlfc_trace_begin(i32 %index) {
  %time = call i64 @now()
  store i64 %time, ptr @started
  ret void
}

define void @mlfc_trace_end(i32 %index, ptr %data, i64 %nbytes) {
  %end = call i64 @now()
  %start = load i64, ptr @started
  %count = load i32, ptr @capacity
  %is_recorded = icmp slt i32 %index, %count
  br i1 %is_recorded, label %record, label %recorded
record:
  %passed = sub i64 %end, %start
  %table = load ptr, ptr @recorded
  %place = getelementptr i64, ptr %table, i32 %index
  store i64 %start, ptr %place
  %behind = getelementptr i64, ptr %place, i32 %count
  store i64 %passed, ptr %behind
  br label %recorded
recorded:
  %function = load ptr, ptr @observer
  %is_observed = icmp ne ptr %function, null
  br i1 %is_observed, label %observe, label %observed
observe:
  call void %function(i32 %index, ptr %data, i64 %nbytes)
  br label %observed
observed:
  ret void
}
