"""Table 2: image classification with ResNet-50 on a folder of images. Files, crops, the network and training runs.

How bad data are handled:

| problem | what happens |
|---|---|
| no folders ``train`` and ``val`` with a folder for each class, nor files that `rotationout images` wrote | an error |
| a class without images, or one that ``train`` and ``val`` do not both have | an error |
| a file with an image's name that cannot be read, is empty, damaged, cut off or no image | the image is left out |
| a class of which no image is left, or more than a tenth of a split left out | an error |
| an image in grey, with a palette, with transparency or in CMYK | it is converted to RGB, as torchvision does |
| a file without the ending of an image | it is ignored |

Images that are held on the device are all decoded before the first step. Images that are read during training are
decoded when they are needed. The network then sees another image in the place of a bad one, so that BatchNorm's
statistics are those of images, but this place does not count in the loss or in a test; and a class without any usable
image is not noticed. So that a bad test split is not found out by the first test, a sample of 200 of its images, evenly
spread, is decoded before the first step; and if more than a twentieth of these are bad, all of its images.

Every image that is left out is reported on stderr once, and counted and named in the record of the run. The record also
says how many images were used for training and for testing, and how many were converted.
"""
