"""Speed of attacks on a GPU: half-precision copies, folded norms, fused kernels, CUDA graphs."""
