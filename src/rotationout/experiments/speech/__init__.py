"""Table 4: speech recognition with CTC. Corpora, features, the network and training runs.

How bad data are handled:

| problem | what happens |
|---|---|
| no manifest.tsv or wav.scp, a table with a bad line, a name twice, tables with different utterances | an error |
| a command (``sph2pipe … |``) for a path in wav.scp | an error; commands are never run |
| audio missing, damaged, cut off, shorter than a frame, not at 16 kHz, not of one channel | the utterance is left out |
| a transcript that is empty, has a character that the alphabet lacks, or needs more frames than there are | likewise |
| more than a tenth of a split left out | an error: the corpus is wrong, or its path |

Every utterance that is left out is reported on stderr when the corpus is read, before the first step, and counted and
named in the record of every run. The record also has the numbers of training and test utterances. Audio is never
resampled.
"""
