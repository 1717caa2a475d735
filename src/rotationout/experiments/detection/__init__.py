"""Object detection with RetinaNet: annotations, images, the network of Table 3 and its loss, scores, training runs.

What becomes of data that are not as they should be:

| what is wrong | what happens |
|---|---|
| no annotation file, or no JSON of COCO's; images without id or size; test and train differ in categories | refused |
| a box that is malformed, has no size, lies outside its image, or whose category or image is unknown | it is left out |
| a box that lies partly outside its image | it is clipped |
| an image that is missing, damaged, cut off or of another size than annotated; none of its boxes usable | left out |
| more than a tenth of the boxes or of the images of a split left out | refused: the data set is wrong, or the path |

Whatever is left out is reported on stderr by its name, and counted and named in the record of every run. Images that
are held on the device are all looked at before the first step. Those that are read while a run goes on are missed then,
and found bad when it is their turn: such an image counts for nothing in its batch. A test image that cannot be read is
one in which nothing was found.
"""
