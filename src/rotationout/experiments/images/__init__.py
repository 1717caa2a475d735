"""Image classification on folders of images, Table 2: their files, crops, ResNet-50 with its noises, and training runs.

What becomes of data that are not as they should be:

| what is wrong | what happens |
|---|---|
| no folders ``train`` and ``val`` with a folder for each class, nor files that `rotationout images` wrote | refused |
| a class without images, or one that ``train`` and ``val`` do not both have | refused |
| a file that is empty, damaged, cut off or no image, whatever its name says | the image is left out |
| a class of which no image is left, more than a tenth of a split left out | refused |
| an image in grey, with a palette, with transparency or in CMYK | it is converted to RGB, as torchvision does |
| a file whose name does not end as that of an image does | it is no image, and not looked at |

Images that are held on the device are all decoded before the first step. Those that are read on the way cannot be: one
that is found bad when it is its turn counts for nothing in its batch, to learn from or to test on, and that a class has
no image left is not noticed. Whatever is left out is reported on stderr by its name, when it is first met. It
is counted and named in the record of every run, which also says how many images were learnt from and tested on, and how
many were converted.
"""
