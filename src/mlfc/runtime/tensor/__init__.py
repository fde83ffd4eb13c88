"""Arrays of the caller, tensors on devices, and the C structures that describe both."""
