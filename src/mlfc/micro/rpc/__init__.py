"""Communication with the C runtime on a device, in microTVM's protocol."""
