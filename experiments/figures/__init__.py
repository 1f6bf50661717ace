"""Drawing of figures: tables in, matplotlib figures out. Other packages compute the tables."""
