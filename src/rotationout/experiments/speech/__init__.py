"""Table 4: speech recognition with CTC. Corpora, features, the network and training runs.

How bad data are handled:

| problem | what happens |
|---|---|
| no manifest.tsv or wav.scp, a table with a bad line, a name twice, tables with different utterances | an error |
| a split without utterances, a piece of a recording whose start or end is no finite number | likewise |
| a command (``sph2pipe … |``) for a path in wav.scp | an error; commands are never run |
| audio missing, unreadable (a folder, or not permitted), damaged, cut off | the utterance is left out |
| audio shorter than a frame, not at 16 kHz, not of one channel, with absurd samples | likewise |
| audio in a format other than WAV, FLAC and NIST SPHERE (not compressed): it may be cut off unnoticed | likewise |
| a transcript that is empty, has a character that the alphabet lacks, or needs more frames than there are | likewise |
| more than a tenth of a split left out | an error: the corpus is wrong, or its path |

A WAV file is taken to be whole if its header does not say how long it is, as programs write it that do not know.

Every utterance that is left out is reported on stderr when the corpus is read, before the first step, and counted and
named in the record of every run. The record also has the numbers of training and test utterances. Audio is never
resampled.
"""
