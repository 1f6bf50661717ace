"""C2CServe's figures and tables, one module each: settings in, tidy tables and results out."""
