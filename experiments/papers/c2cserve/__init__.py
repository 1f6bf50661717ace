"""C2CServe's figures and tables."""
