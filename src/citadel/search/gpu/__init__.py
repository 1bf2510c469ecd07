"""Search on a GPU: the index in device memory, the kernels over it, and the choice of the device."""
