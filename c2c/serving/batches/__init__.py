"""Instances, their queues and batches."""
