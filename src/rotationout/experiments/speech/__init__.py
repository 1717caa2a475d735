"""Speech recognition with CTC: corpora, features, the network of Table 4, and its training runs.

What becomes of data that are not as they should be:

| what is wrong | what happens |
|---|---|
| no manifest.tsv or wav.scp, a table with a bad line, names twice, utterances that tables disagree on | refused |
| a command (``sph2pipe … |``) for a path in wav.scp | refused; commands are never run |
| audio missing, damaged, cut off, shorter than a frame, not at 16 kHz, not of one channel | the utterance is left out |
| a transcript that is empty, has a character that the alphabet lacks, or needs more frames than there are | likewise |
| more than a tenth of a split left out | refused: it is the corpus that is wrong, or the path to it |

Whatever is left out is reported on stderr by its name when the corpus is read, before the first step, and counted and
named in the record of every run, beside how many utterances were learnt from and tested on. Nothing is resampled.
"""
