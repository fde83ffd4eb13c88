; functions whose assembly for a processor shows its features
define float @single(float %a, float %b, float %c) {
  %r = call float @llvm.fma.f32(float %a, float %b, float %c)
  ret float %r
}
define double @double(double %a, double %b, double %c) {
  %r = call double @llvm.fma.f64(double %a, double %b, double %c)
  ret double %r
}
define void @lanes(ptr %to, ptr %from) {
  %a = load <$halves x i16>, ptr %from, align 2
  %b = load <$halves x i16>, ptr %to, align 2
  %r = mul <$halves x i16> %a, %b
  store <$halves x i16> %r, ptr %to, align 2
  ret void
}
