"""Residual networks of few channels on a GPU: 3×3 convolutions and BatchNorm in kernels of their own.

With 16, 32 and 64 channels, as ResNet110 for 32×32 images has them, a step is some two thousand small launches, and
libraries are tuned for larger ones. Here weights are rounded where they are used, BatchNorm comes with the sum and the
ReLU behind it, and every pass over the maps reads 16 bytes a thread.

`layers` has the layers, and `conditions` says where the kernels are used. `convolution` has the derivatives of a
convolution, `convolving` and `weighing` what launches the kernels for its maps and for its weight, `batchnorm` the same
of BatchNorm, `handing` what the former finds out for the latter; `convolving_kernels` and `batchnorm_kernels` are
kernels, `taps` and `adding` what several share, and `tiles` says how large their pieces are. Numbers are torch's up to
rounding; modules, parameters and buffers are torch's own.
"""
