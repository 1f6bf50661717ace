"""Instances, their queues and batches, and the moments at which these change."""
