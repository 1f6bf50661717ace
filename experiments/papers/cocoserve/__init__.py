"""CoCoServe's commands, figures and tables."""
