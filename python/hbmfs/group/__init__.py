"""Agreement between the ranks of a job: messages of each rank, agreements of all, and the exchange of bytes."""
