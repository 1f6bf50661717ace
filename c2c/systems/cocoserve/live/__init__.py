"""CoCoServe on live models."""
