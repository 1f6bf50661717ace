"""CoCoServe on live models: layers over several devices, whose layout changes while they serve."""
