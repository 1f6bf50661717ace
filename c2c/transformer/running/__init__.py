"""Steps over batches: executors, runners, sampling, generation."""
