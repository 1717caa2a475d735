"""Table 3: object detection with RetinaNet. Annotations, images, the network and its loss, scores, training runs.

How bad data are handled:

| problem | what happens |
|---|---|
| no annotation file, or not one of COCO's; images without id or size; train and test differ in categories | an error |
| a split that has no box, or none that can be used and is not of a crowd | an error |
| a box that is malformed, has no size, lies outside its image, or whose category or image is unknown | it is left out |
| a box that lies partly outside its image | it is clipped |
| an image that is missing, damaged, cut off, not of the annotated size, or whose boxes are all unusable | left out |
| more than a tenth of the boxes or of the images of a split left out | an error: the data set is wrong, or its path |

Everything that is left out is reported on stderr, and counted and named in the record of every run. Images that are
held on the device are all decoded before the first step. For images that are read during training, of bad files
only missing ones are noticed before it, and those in a sample of the test images (as in
`rotationout.experiments.images`): others are found when they are read. The network then sees another image in the place
of a bad one, so that BatchNorm's statistics are those of images, but this place does not count in the loss.

Average precision counts all boxes of the test split that can be used: an image that was left out counts as one without
detections, whether images are held or read during training.
"""
