"""From tokens to batches: datasets, parts of them, streams, mixtures and packed samples."""
