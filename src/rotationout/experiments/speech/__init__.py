"""Speech recognition with CTC: corpora, features, the network of Table 4, and its training runs."""
