"""Triton kernels for residual networks with few channels: 3×3 convolutions and BatchNorm, faster than the libraries.

With 16, 32 and 64 channels, as in ResNet110 for 32×32 images (Table 1), a step is some two thousand small launches, and
libraries are tuned for larger ones. Here weights are rounded inside the kernels, BatchNorm is fused with the sum and
the ReLU after it, and every pass over the maps reads 16 bytes per thread. Results equal torch's up to rounding;
modules, parameters and buffers are torch's own.

- `layers`: the functions that a network calls; `conditions` decides where they use the kernels.
- `convolution`: autograd functions of a convolution. `convolving` launches the kernels for its output and the gradient
  of its input, `weighing` those for the gradient of its weight.
- `batchnorm`: the autograd function of BatchNorm, and the launches of its kernels.
- `handing`: how the backward pass of a convolution hands sums to that of the BatchNorm before it.
- `convolving_kernels` and `batchnorm_kernels`: the kernels; `taps` and `adding`: kernel parts that several use;
  `tiles`: their block sizes.
"""
